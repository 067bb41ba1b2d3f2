"""The embedded engine: virtual nodes of one machine, each a node manager and a fork server below a shared warm host."""
