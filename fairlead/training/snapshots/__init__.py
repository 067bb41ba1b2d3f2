"""Snapshots of a training: staged in the grid, written to disk, found and verified."""
