"""Readers of the traces that others have published, and of those that users write."""
