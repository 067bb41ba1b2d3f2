"""The node manager of one virtual node: starts, watches and measures workers, and reports to the leader."""
