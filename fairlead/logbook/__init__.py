"""The log of the platform's own processes: structured lines without secrets, in rotated files."""

from fairlead.logbook.redact import redact
from fairlead.logbook.rotate import roll_over
from fairlead.logbook.setup import (
    FORMAT_VARIABLE,
    LEVEL_VARIABLE,
    VARIABLES,
    configure,
    reset,
    wanted_format,
    wanted_level,
)

__all__ = [
    "FORMAT_VARIABLE",
    "LEVEL_VARIABLE",
    "VARIABLES",
    "configure",
    "redact",
    "reset",
    "roll_over",
    "wanted_format",
    "wanted_level",
]  # fmt: skip
