"""The Python client: finds a platform, submits jobs and follows them, with the verbs of the command line."""
