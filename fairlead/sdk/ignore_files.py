"""Ignore files: what they leave out of a bundle, folder by folder, as git does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec
from pathspec.pattern import RegexPattern

from fairlead.errors import InvalidSpec

IGNORE_FILE = ".fairleadignore"
_SLASH = "ps_d"  # the library's name for the slash behind a folder that a pattern matched

Rules = tuple[tuple[PurePosixPath, tuple[RegexPattern, ...]], ...]
"""Patterns by the folder that they count from: from the outermost to the innermost."""


def rules(root: Path, inside: PurePosixPath, defaults: Iterable[str] = ()) -> Rules:
    """What the ignore file of this folder says, if there is one, after what is left out by default."""
    path = root / inside / IGNORE_FILE
    try:
        own = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = GitIgnoreSpec.from_lines([*defaults, *own]).patterns
    except (OSError, ValueError) as error:
        field = (inside / IGNORE_FILE).as_posix()
        raise InvalidSpec(str(error), field=field, fix="write one pattern per line, as in a .gitignore") from None
    said = tuple(each for each in found if isinstance(each, RegexPattern) and each.include is not None)
    return ((inside, said),) if said else ()


def left_out(name: PurePosixPath, folder: bool, given: Rules) -> bool:
    """Whether a name is left out: the innermost file that speaks of it decides, and in it the last such line."""
    for place, patterns in reversed(given):
        path = f"{name.relative_to(place)}{'/' if folder else ''}"
        for pattern in reversed(patterns):
            found = pattern.match_file(path)
            if found is not None and _itself(found.match, path):
                return bool(pattern.include)
    return False


def _itself(match: re.Match[str], path: str) -> bool:
    """Whether the pattern speaks of this very name, and not of a folder around it.

    Whoever got here has walked through those folders, so what is said of them was heard already.
    """
    folder = path.endswith("/")
    if _SLASH not in match.re.groupindex:
        return not (folder and match.end() == len(path))  # data/** speaks of what is inside of data only
    if match[_SLASH] is None or match.end(_SLASH) == len(path):
        return True
    return folder and match.re.search(path, len(path) - 1) is not None  # */ speaks of every folder, also of the last
