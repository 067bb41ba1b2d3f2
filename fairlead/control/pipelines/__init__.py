"""Drives pipelines: which stage starts next, and what becomes of those that fail."""
