"""Parses server-sent events from chunks of bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its kind, its data (decoded when it is JSON) and the id to resume after."""

    kind: str
    data: Any
    id: str | None = None


def parse(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The complete events of a stream; a truncated last event is dropped."""
    kind, identity = "message", None
    data: list[str] = []
    for line in _lines(pieces):
        if not line:
            if data or kind != "message":
                yield ServerEvent(kind, _decoded("\n".join(data)), identity)
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            identity = value


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    # Splits only at line feeds: other separators of str.splitlines may be part of a log line.
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", errors="replace")


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text or None
