"""Warm processes with torch loaded, which fork workers in milliseconds."""
