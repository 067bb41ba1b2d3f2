"""Where profiles come from: a model looked at without running it in full, a node measured once, known device types."""
