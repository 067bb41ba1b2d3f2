"""Server-sent events, read from a stream of bytes however it was cut."""

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
    """The events of a stream; one that was cut off in the middle is not one."""
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
    # Only at line feeds: what str.splitlines takes for an end of line may well be part of a log's text.
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
