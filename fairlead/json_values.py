"""Checks free-form JSON values (depth, size, 64-bit integers), so that every store and process can hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 64
"""Maximum nesting of lists and mappings."""
LONGEST_KEY = 255
LARGEST = 1 << 20
"""Maximum size: characters of all texts plus 8 per number, list, mapping and key; about the JSON's bytes."""
INTEGERS = range(-(1 << 63), 1 << 63)
"""Integers that every database and wire format can hold."""

_ODD = re.compile(r"[^\w.-]")
_SHOWN_PARTS = 6


class InvalidValue(ValueError):
    """A refused value: its path, the problem and the fix."""

    def __init__(self, path: tuple[str, ...], what: str, fix: str) -> None:
        self.path, self.what, self.fix = _shown(path), what, fix
        super().__init__(f"{self.path}: {what}; {fix}" if path else f"{what}; {fix}")


def check(value: Any, *, deepest: int = DEEPEST, largest: int | None = LARGEST) -> None:
    """Raise :class:`InvalidValue` for values too deep or large, or integers beyond 64 bits. Accepts non-JSON types."""
    size = 0
    pending: list[tuple[Any, tuple[str, ...], int]] = [(value, (), 1)]
    while pending:
        each, path, depth = pending.pop()
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, int) and each not in INTEGERS:
            raise InvalidValue(path, "is an integer of more than 64 bits", "write it as text")
        elif isinstance(each, float) and not math.isfinite(each):
            raise InvalidValue(path, "is not a finite number", "write a number, or text")
        elif isinstance(each, Mapping | list | tuple):
            if depth > deepest:
                fix = "flatten it, or upload it as a file with the code"
                raise InvalidValue(path, f"is nested more than {deepest} levels deep", fix)
            inner = each.items() if isinstance(each, Mapping) else enumerate(each)
            for key, part in inner:
                if isinstance(key, str):
                    if len(key) > LONGEST_KEY:
                        raise InvalidValue(path, f"has a key of more than {LONGEST_KEY} characters", "shorten it")
                    size += len(key)
                pending.append((part, (*path, str(key)) if depth <= _SHOWN_PARTS else path, depth + 1))
        size += 8
        if largest is not None and size > largest:
            raise InvalidValue((), f"is larger than {largest} bytes in total", "upload it as a file with the code")


def _shown(path: tuple[str, ...]) -> str:
    """The path as one word of bounded length."""
    return ".".join(_ODD.sub("_", part)[:40] or "_" for part in path)
