"""Rows that cannot be read, as a crash, a restore or a hand may leave them: mended as they are read, and told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

MOST = 1000
"""Damaged rows that are remembered as told."""

MOST_SHAPES = 10_000
"""Combinations of types of a whole row that are known to be good."""


class Unreadable:
    """Stands for text in a column of JSON that is no JSON."""


UNREADABLE: Final = Unreadable()

_lock = threading.Lock()
_known: set[tuple[str, str, str]] = set()
_untold: list[str] = []


def decoded(text: str | bytes) -> Any:
    """A value of a JSON column; one that cannot be read is no reason not to read the row, and all rows after it."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return UNREADABLE


def note(table: str, key: str, what: str) -> None:
    """This row is damaged; it is told once."""
    with _lock:
        if len(_known) < MOST and (table, key, what) not in _known:
            _known.add((table, key, what))
            _untold.append(f"the row {key} of the table {table} is damaged: {what}")


def untold() -> list[str]:
    """What was noted since this was asked for last."""
    if not _untold:
        return []
    with _lock:
        found = list(_untold)
        _untold.clear()
        return found


def forget() -> None:
    """All damage is told anew from here on."""
    with _lock:
        _known.clear()
        _untold.clear()


class Shape:
    """The types that a row of one record must have, so that one look tells a sound one."""

    def __init__(self, record: type, table: str, **instead: Any) -> None:
        """``instead`` stands for columns that cannot be read, where the record has no better default."""
        hints = get_type_hints(record)
        self._table = table
        self._names = [field.name for field in fields(record)]
        self._types = [_types(hints[name]) for name in self._names]
        self._instead = [instead.get(each.name, _default(each, hints[each.name])) for each in fields(record)]
        self._good: set[tuple[type, ...]] = set()

    def mend(self, key: str, values: list[Any]) -> list[str]:
        """Put a default in the place of each column that is of no good type; returns their names, and notes them."""
        types = tuple(map(type, values))
        if types in self._good:
            return []
        bad = [place for place, each in enumerate(types) if each not in self._types[place]]
        if not bad:
            if len(self._good) < MOST_SHAPES:
                self._good.add(types)
            return []
        for place in bad:
            values[place] = self._instead[place]() if callable(self._instead[place]) else self._instead[place]
        names = [self._names[place] for place in bad]
        note(self._table, key, f"{', '.join(names)} cannot be read")
        return names


def _types(hint: Any) -> frozenset[type]:
    if get_origin(hint) in (Union, UnionType):
        return frozenset().union(*map(_types, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind is float:
        return frozenset({float, int})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return frozenset({str})
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return frozenset({dict})
    if isinstance(kind, type) and issubclass(kind, Sequence | tuple) and kind is not str:
        return frozenset({list})
    return frozenset({kind})


def _default(field: Any, hint: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory
    types = _types(hint)
    if NoneType in types:
        return None
    makers: Iterable[Callable[[], Any]] = (float, int, bool, str, dict, list)
    return next(maker for maker in makers if maker in types)
