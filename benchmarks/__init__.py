"""Every figure in the README comes from here: ``python -m benchmarks.NAME [--quick] [--json FILE]``."""
