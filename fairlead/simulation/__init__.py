"""The core on a virtual clock: the same ``decide`` as live, on traces, with failures and what-if questions."""
