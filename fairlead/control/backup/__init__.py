"""Keeping a platform alive over years: its backup while it runs, and its return from one."""
