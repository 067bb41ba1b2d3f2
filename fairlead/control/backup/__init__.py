"""Backs up a running platform and restores it."""
