"""Makes untrusted text safe for a terminal: no control characters, forged lines or reordered letters."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|.)?")
_BREAKS = re.compile("[\n\r\x0b\x0c\x85\u2028\u2029]+")
# C0 without the tab, DEL, C1, and what reorders letters: a file named "\u202etxt.exe" would show its end first.
_STEERING = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text as one line without control characters.

    Removes single characters only, never whole sequences: one that begins in one name and ends in another would remove
    the text between them.
    """
    return _STEERING.sub("", _BREAKS.sub(" ", text))


def safe_file_name(name: str) -> str:
    """The name with ``_`` for each unsafe character, for use as a file name."""
    text = name.encode("utf-8", "replace").decode()
    return _STEERING.sub("_", _BREAKS.sub("_", text)).replace("\t", "_")


def without_sequences(text: str) -> str:
    """The text without escape sequences; the rest may still need :func:`plain`."""
    return _SEQUENCES.sub("", text)
