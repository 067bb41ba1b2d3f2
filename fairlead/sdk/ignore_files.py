"""Applies .fairleadignore files, folder by folder, with the rules of .gitignore."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec
from pathspec.pattern import RegexPattern

from fairlead.errors import InvalidSpec

IGNORE_FILE = ".fairleadignore"
_SLASH = "ps_d"  # pathspec's group for the slash after a matched folder

Rules = tuple[tuple[PurePosixPath, tuple[RegexPattern, ...]], ...]
"""Patterns with the folder they are relative to, outermost first."""


def rules(root: Path, inside: PurePosixPath, defaults: Iterable[str] = ()) -> Rules:
    """The default patterns followed by those of this folder's ignore file."""
    path = root / inside / IGNORE_FILE
    try:
        own = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = GitIgnoreSpec.from_lines([*defaults, *own]).patterns
    except (OSError, ValueError) as error:
        field = (inside / IGNORE_FILE).as_posix()
        raise InvalidSpec(str(error), field=field, fix="write one pattern per line, as in a .gitignore") from None
    patterns = tuple(each for each in found if isinstance(each, RegexPattern) and each.include is not None)
    return ((inside, patterns),) if patterns else ()


def is_ignored(name: PurePosixPath, folder: bool, given: Rules) -> bool:
    """True if a name is ignored: the innermost ignore file that matches it decides, by its last matching line."""
    for place, patterns in reversed(given):
        path = f"{name.relative_to(place)}{'/' if folder else ''}"
        for pattern in reversed(patterns):
            found = pattern.match_file(path)
            if found is not None and _matches_itself(found.match, path):
                return bool(pattern.include)
    return False


def _matches_itself(match: re.Match[str], path: str) -> bool:
    """True if the pattern matches this name itself and not a folder around it.

    Rules for the folders around it were applied when they were walked.
    """
    folder = path.endswith("/")
    if _SLASH not in match.re.groupindex:
        return not (folder and match.end() == len(path))  # data/** matches only the content of data
    if match[_SLASH] is None or match.end(_SLASH) == len(path):
        return True
    return folder and match.re.search(path, len(path) - 1) is not None  # */ matches every folder, also the last
