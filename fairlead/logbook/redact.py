"""Redacts credentials in log lines: tokens, passwords in URLs, cookies, and values of sensitive names."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

HIDDEN = "***"
_NAMES = frozenset(
    {"authorization", "ciphertext", "cookie", "credential", "credentials", "env", "environment", "password", "secret",
     "secrets", "set-cookie", "token", "value"}
)  # fmt: skip
_TOKEN = re.compile(r"\bfl_([A-Za-z0-9]{1,32})_[A-Za-z0-9]{4,}")
_BEARER = re.compile(r"\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+@", re.IGNORECASE)
_COOKIE = re.compile(r"(\b(?:__Host-)?fairlead(?:_\d+)?=)[^\s;,\"']+")


def redact_text(line: str) -> str:
    """The text with tokens, passwords and cookies masked; a token's id stays, to identify it."""
    if "fl_" in line:
        line = _TOKEN.sub(rf"fl_\1_{HIDDEN}", line)
    if "://" in line:
        line = _PASSWORD.sub(rf"\1{HIDDEN}@", line)
    if "fairlead" in line:
        line = _COOKIE.sub(rf"\1{HIDDEN}", line)
    return _BEARER.sub(rf"\1\2{HIDDEN}", line)


def redact(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact a log line; the last structlog processor before it is written."""
    return {key: _value(key, value) for key, value in line.items()}


def _value(key: str, value: Any) -> Any:
    if key.lower() in _NAMES and value is not None:
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): _value(str(name), part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value("", part) for part in value]
    return redact_text(str(value))
