"""Looks ahead for those who ask: the policy played forward, in a process of its own."""
