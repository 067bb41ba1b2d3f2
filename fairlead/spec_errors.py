"""Turns validation errors of specs into messages with the field, the value and the fix."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fairlead import json_values
from fairlead.errors import InvalidSpec

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
SECRET_PATTERN = r"^[A-Z_][A-Z0-9_]{0,63}$"
PLACE_PATTERN = r"^[A-Za-z0-9][\w.:/-]{0,62}$"
DATA_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?(@[0-9a-f]{6,64})?$"

_UNION_PARTS = ("class_", "datetime", "timedelta", "[key]")  # path elements added by pydantic
_OWN_FIELD = re.compile(r"^([^\s:]+): (.+)$")
_MessageOf = Callable[[Any, Mapping[str, Any]], tuple[str, str]]  # value, context -> problem, fix


def invalid(error: ValidationError, kind: type[BaseModel], source: str | None = None) -> InvalidSpec:
    """The first validation error as an :class:`InvalidSpec`."""
    first = error.errors(include_url=False)[0]
    parts = [str(part)[: json_values.LONGEST_KEY] for part in first["loc"] if part not in _UNION_PARTS]
    value, context = first.get("input"), first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        message, fix = "unknown field", _nearest(parts[-1], _fields(kind, parts[:-1]))
    elif first["type"] == "missing":
        message, fix, value = "is required", f"add {'.'.join(parts)}: ...", None
    elif first["type"] in ("value_error", "assertion_error"):
        message, fix, parts, value = _split_own_message(str(context.get("error", first["msg"])), parts, value)
    elif first["type"] in ("model_type", "model_attributes_type"):
        message, fix = "is not a mapping of fields", f"use the fields {', '.join(_fields(kind, parts))}"
    elif first["type"] in _MESSAGES:
        message, fix = _MESSAGES[first["type"]](value, context)
    else:
        message, fix = str(first["msg"]), "see docs/jobs.md for the fields"
    if first["type"] != "extra_forbidden" and _plain(value):
        message = f"{_short(value)} {message}"
    field = ".".join(parts) or kind.__name__.removesuffix("Spec").lower()
    prefix = f"{source}: " if source else ""
    return InvalidSpec(message, field=f"{prefix}{field}", value=_sendable(value), fix=fix)


def _split_own_message(text: str, parts: list[str], value: Any) -> tuple[str, str, list[str], Any]:
    """Splits the message of our own validators, ``[field: ]problem; fix``."""
    named = _OWN_FIELD.match(text)
    if named is not None:
        parts, text, value = [*parts, named[1]], named[2], None
    message, _, fix = text.partition("; ")
    return message, fix or "see docs/jobs.md for the fields", parts, value


def _pattern(value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    pattern = context.get("pattern")
    if pattern == SECRET_PATTERN:
        return "is not the name of a secret", "use capital letters, digits and _, such as API_KEY"
    if pattern == DATA_PATTERN:
        return "is not a data set", "write its name, such as bank, or a version, such as bank@3f2a9c"
    if pattern == PLACE_PATTERN:
        return "is not the name of a place", "use a zone, rack, label or node that fairlead nodes --json shows"
    if pattern != NAME_PATTERN:
        return "is not the hash of a bundle", "remove it: submitting packs the folder and sets it"
    rule = "use 1 to 40 lower-case letters, digits and hyphens"
    proposed = re.sub(r"[^a-z0-9]+", "-", str(value).lower())[:40].strip("-")
    return "is not a name", f"{rule}, such as {proposed or 'my-job'}"


def _message(message: str, fix: str) -> _MessageOf:
    """A message and fix with the limits from pydantic's context filled in."""
    return lambda value, context: (message.format(**context), fix.format(**context))


def _text(value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    written = str(value).lower() if isinstance(value, bool) else value  # as written in YAML
    return "is not text", f'put it in quotes: "{written}"' if _plain(value) else "write text"


_MESSAGES: Mapping[str, _MessageOf] = {
    "string_pattern_mismatch": _pattern,
    "string_type": _text,
    "string_too_long": _message("is longer than {max_length} characters", "shorten it"),
    "too_long": _message("has more than {max_length} entries", "keep at most {max_length}"),
    "dict_type": _message("is not a mapping", "write one line per entry, like key: value"),
    "list_type": _message("is not a list", "write it in brackets, like [python, train.py]"),
    "enum": _message("is not one of {expected}", "use one of them"),
    "literal_error": _message("is not {expected}", "write {expected}"),
    "greater_than": _message("is too small", "use more than {gt:g}"),
    "greater_than_equal": _message("is too small", "use at least {ge:g}"),
    "less_than": _message("is too large", "use less than {lt:.15g}"),
    "less_than_equal": _message("is too large", "use at most {le:.15g}"),
    "int_parsing_size": _message("is too large", "write a smaller number"),
    "int_type": _message("is not a whole number", "write a whole number without quotes, such as 2"),
    "int_parsing": _message("is not a whole number", "write a whole number, such as 2"),
    "int_from_float": _message("is not a whole number", "write a whole number, such as 2"),
    "float_type": _message("is not a number", "write a number, such as 0.5"),
    "float_parsing": _message("is not a number", "write a number, such as 0.5"),
    "finite_number": _message("is not a finite number", "write a number, such as 0.5"),
    "invalid_key": _message("is not the name of a field", "write names of fields as text"),
} | {
    kind: _message("is neither a time nor a duration", "write it like 2h, 30m or 2030-01-31T12:00:00Z")
    for kind in (
        "datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid",
        "time_delta_type", "time_delta_parsing",
    )
}  # fmt: skip


def _nearest(name: str, fields: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"{guess}remove it, or use one of: {', '.join(fields)}"


def _plain(value: Any) -> bool:
    if isinstance(value, int):
        return value in json_values.INTEGERS  # Python refuses to print integers of 5,000 digits
    return isinstance(value, str | float)


def _short(value: Any) -> str:
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _sendable(value: Any) -> Any:
    """The value for a problem document; NaN and infinity become text, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if _plain(value) else None


def _fields(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        by_alias = {info.alias or name: info for name, info in kind.model_fields.items()}
        annotation = by_alias[part].annotation if part in by_alias else None
        inner = next((a for a in (annotation, *getattr(annotation, "__args__", ())) if _is_model(a)), None)
        if inner is None:
            break
        kind = inner
    return [info.alias or name for name, info in kind.model_fields.items()]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
