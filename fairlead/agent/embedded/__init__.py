"""One machine with virtual nodes: a host that stays warm, node managers that watch, fork servers that start workers."""
