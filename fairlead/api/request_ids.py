"""The id of a request, from the client or new; it is in the answer, in problems and in every log line."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar

HEADER = b"x-request-id"
_VALID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current request."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's X-Request-Id if it is valid, else a new id."""
    given = [value for name, value in headers if name == HEADER]
    return given[0].decode() if len(given) == 1 and _VALID.fullmatch(given[0]) else uuid.uuid4().hex
