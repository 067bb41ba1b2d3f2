"""The id of a request: the client's own or a new one, in the answer, in problems and in every line of the log."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar

HEADER = b"x-request-id"
_GOOD = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request under way."""


def id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that the client gave (X-Request-Id), if it can be one, else a new one."""
    given = [value for name, value in headers if name == HEADER]
    return given[0].decode() if len(given) == 1 and _GOOD.fullmatch(given[0]) else uuid.uuid4().hex
