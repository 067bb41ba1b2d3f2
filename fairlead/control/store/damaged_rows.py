"""Detects damaged database rows, replaces unreadable columns with defaults and reports each row once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

MAX_REPORTED = 1000
"""Damaged rows that are remembered as reported."""

MAX_SHAPES = 10_000
"""Valid combinations of a row's column types that are cached."""


class Unreadable:
    """Stands for text in a JSON column that is not JSON."""


UNREADABLE: Final = Unreadable()

_lock = threading.Lock()
_reported: set[tuple[str, str, str]] = set()
_unreported: list[str] = []


def decode_json(text: str | bytes) -> Any:
    """A value of a JSON column. Text that is not JSON becomes ``UNREADABLE``: one bad row must not hide the others."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return UNREADABLE


def report_damage(table: str, key: str, what: str) -> None:
    """Queue a message about a damaged row; the same message is queued once only."""
    with _lock:
        if len(_reported) < MAX_REPORTED and (table, key, what) not in _reported:
            _reported.add((table, key, what))
            _unreported.append(f"the row {key} of the table {table} is damaged: {what}")


def take_unreported() -> list[str]:
    """The messages queued since the last call."""
    if not _unreported:
        return []
    with _lock:
        found = list(_unreported)
        _unreported.clear()
        return found


def reset_reports() -> None:
    """Report all damage again from here on."""
    with _lock:
        _reported.clear()
        _unreported.clear()


class RowShape:
    """The column types that rows of one record must have, checked by one set lookup per row."""

    def __init__(self, record: type, table: str, **defaults: Any) -> None:
        """``defaults`` replace unreadable columns where the record has no better default."""
        hints = get_type_hints(record)
        self._table = table
        self._names = [field.name for field in fields(record)]
        self._types = [_types(hints[name]) for name in self._names]
        self._defaults = [defaults.get(each.name, _default(each, hints[each.name])) for each in fields(record)]
        self._good: set[tuple[type, ...]] = set()

    def repair(self, key: str, values: list[Any]) -> list[str]:
        """Replace each column of a wrong type by its default, report the row, and return the names of those columns."""
        types = tuple(map(type, values))
        if types in self._good:
            return []
        bad = [place for place, each in enumerate(types) if each not in self._types[place]]
        if not bad:
            if len(self._good) < MAX_SHAPES:
                self._good.add(types)
            return []
        for place in bad:
            values[place] = self._defaults[place]() if callable(self._defaults[place]) else self._defaults[place]
        names = [self._names[place] for place in bad]
        report_damage(self._table, key, f"{', '.join(names)} cannot be read")
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
