"""The node manager of one machine: starts and watches workers, measures them, and reports to the leader."""
