"""Readers of published traces, and of traces that users write."""
