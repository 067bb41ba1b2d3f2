"""Parses references to other stages' results in arguments: ``$load``, ``$split[train]``; ``$$`` is a dollar sign."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_REFERENCE = re.compile(r"\$([a-z0-9][-a-z0-9]*)((?:\[[^\[\]]{1,100}\])*)")
_KEY = re.compile(r"\[([^\[\]]+)\]")
VALUE_PREFIX = "$@"
"""Prefix of a text that names a pickled value in the code bundle; unpickled only in a worker."""

MAX_DEPTH = 20


class BadReference(ValueError):
    """A text that begins with a dollar sign and is no reference: what is wrong, and the fix."""

    def __init__(self, text: str, what: str, fix: str) -> None:
        super().__init__(f"{text!r} {what}; {fix}")
        self.text, self.what, self.fix = text, what, fix


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a stage, or the part of it under these keys."""

    stage: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"${self.stage}" + "".join(f"[{_format_key(key)}]" for key in self.path)

    def part_of(self, value: Any) -> Any:
        """The referenced part of the stage's whole result."""
        for key in self.path:
            value = value[key]
        return value


def parse(text: str) -> Reference | None:
    """The reference in this text, or None for plain text; raises :class:`BadReference`."""
    if not text.startswith("$") or text.startswith(("$$", VALUE_PREFIX)):
        return None
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise BadReference(text, "names no stage", "write $stage or $stage[key], or $$ for a plain dollar sign")
    return Reference(match[1], tuple(_parse_key(key) for key in _KEY.findall(match[2])))


def _format_key(key: str | int) -> str:
    """A key as written in a reference: a name that looks like a number is quoted."""
    return f'"{key}"' if isinstance(key, str) and (isinstance(_parse_key(key), int) or key[:1] == '"') else str(key)


def _parse_key(key: str) -> str | int:
    if len(key) > 1 and key[0] == key[-1] == '"':
        return key[1:-1]
    return int(key) if key.removeprefix("-").isdecimal() else key


def escape(text: str) -> str:
    """A plain text escaped for use among arguments."""
    return f"${text}" if text.startswith("$") else text


def references(value: Any) -> Iterator[Reference]:
    """All references in a tree of arguments, in order."""
    for leaf in _leaves(value, 0):
        if isinstance(leaf, str):
            found = parse(leaf)
            if found is not None:
                yield found


def resolve(value: Any, result: Callable[[Reference], Any], pickled: Callable[[str], Any] | None = None) -> Any:
    """The tree of arguments with every reference replaced by its value."""
    if isinstance(value, Mapping):
        return {key: resolve(each, result, pickled) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(each, result, pickled) for each in value]
    if not isinstance(value, str):
        return value
    if pickled is not None and value.startswith(VALUE_PREFIX):
        return pickled(value.removeprefix(VALUE_PREFIX))
    found = parse(value)
    if found is not None:
        return result(found)
    return value.removeprefix("$") if value.startswith("$$") else value


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if depth > MAX_DEPTH:
        raise BadReference("...", f"is nested more than {MAX_DEPTH} levels deep", "pass it as the result of a stage")
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, depth + 1)
    else:
        yield value
