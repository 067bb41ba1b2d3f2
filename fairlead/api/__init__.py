"""The door for programs: the platform over HTTP."""
