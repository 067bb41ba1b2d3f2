"""The Python door: find a platform, hand it work, follow it; the same verbs as the command line."""
