"""Deletes what is past retention: ended jobs, their outputs, and old rows."""
