"""Parses simple command lines without typer's parser, which costs more CPU time than most verbs.

Simple are words, numbers and switches of a top-level verb, as declared by the verb. Everything else (help, mistakes,
files, groups of verbs) goes through typer, with its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

_SIMPLE = (bool, int, str)
_UNUSUAL = ("callback", "envvar", "parser", "click_type", "is_eager", "prompt", "count")


def shortcut(app: typer.Typer, arguments: list[str]) -> Callable[[], Any] | None:
    """The call for this command line, or None if it is not simple."""
    verb = next((info for info in app.registered_commands if arguments and info.name == arguments[0]), None)
    if verb is None or verb.callback is None:
        return None
    function = verb.callback
    values = _values(get_type_hints(function, include_extras=True), arguments[1:])
    return None if values is None else lambda: function(**values)


def _values(hints: dict[str, Any], words: list[str]) -> dict[str, Any] | None:
    """Parameter values from the words, or None if typer has to parse them."""
    options: dict[str, tuple[str, Any, OptionInfo]] = {}
    places: list[tuple[str, Any]] = []
    for name, hint in hints.items():
        if name == "return":
            continue
        kind, info = (*get_args(hint), None, None)[:2]
        if isinstance(info, OptionInfo):
            options |= dict.fromkeys(option_names(info), (name, kind, info))
        elif isinstance(info, ArgumentInfo):
            places.append((name, kind))
        else:
            return None
    found: dict[str, Any] = {}
    given: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            given.append(word)
            continue
        name, kind, info = options.get(word, ("", None, None))
        value = None if info is None or name in found else _value(kind, info, rest)
        if value is None:
            return None
        found[name] = value
    if len(given) != len(places) or any(kind is not str for _, kind in places):
        return None
    return found | {name: word for (name, _), word in zip(places, given, strict=True)}


def option_names(info: OptionInfo) -> list[str]:
    """The option's names. In an ``Annotated`` option typer keeps the first name in ``default``."""
    first = [info.default] if isinstance(info.default, str) else []
    return [*first, *(info.param_decls or ())]


def _value(kind: Any, info: OptionInfo, rest: Any) -> bool | int | str | None:
    """The value of an option, read from the next word if the option takes one."""
    plain = _simple_type(kind)
    if plain is None or any(getattr(info, name, None) for name in _UNUSUAL):
        return None
    if plain is bool:
        return True
    word = next(rest, "-")
    if word.startswith("-"):
        return None
    if plain is str:
        return word
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        return None
    number = int(word)
    low, high = info.min, info.max
    return number if (low is None or number >= low) and (high is None or number <= high) else None


def _simple_type(kind: Any) -> type | None:
    """bool, int or str, also if optional; None for other types."""
    if get_origin(kind) is UnionType:
        kinds = [part for part in get_args(kind) if part is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind if kind in _SIMPLE else None
