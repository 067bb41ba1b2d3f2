"""Server-sent events: framing, and a response that ends with its client, with the server, or with its source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.control.metrics import families, live
from fairlead.errors import FairleadError

KEEP_ALIVE = b": keep-alive\n\n"


def frame(data: bytes | str, *, event: str | None = None, id: str | None = None) -> bytes:
    """One event in the format of the HTML standard; data of several lines stays one event."""
    text = data.decode() if isinstance(data, bytes) else data
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {event}\n" if event is not None else "")
    body = "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"{head}{body}\n".encode()


class EventStream(Response):
    """Streams what its source yields, with a sign of life in silence. An error ends it with an ``error`` event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        *,
        stopping: asyncio.Event,
        keep_alive_s: float,
        check: Callable[[], Awaitable[object]],
        held: AbstractContextManager[None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"X-Accel-Buffering": "no"})
        self._source = source
        self._stopping = stopping
        self._keep_alive_s = keep_alive_s
        self._check = check  # raises when the client may not listen any more
        self._held = held  # for as long as the stream is open

    def init_headers(self, headers: object = None) -> None:
        super().init_headers(headers)  # type: ignore[arg-type]
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held, live.raised(families.STREAMS):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._pump(receive, send)
            except FairleadError as error:
                last = frame(msgspec.json.encode(error.problem(), enc_hook=str), event="error")
                await send({"type": "http.response.body", "body": last, "more_body": True})
            finally:
                await self._source.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, receive: Receive, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        ends = {asyncio.create_task(_gone(receive)), asyncio.create_task(self._stopping.wait())}
        following = _next(self._source)
        check_s = clock() + self._keep_alive_s
        try:
            while True:
                await asyncio.wait({following, *ends}, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
                if any(end.done() for end in ends):
                    return
                if clock() >= check_s:
                    await self._check()
                    check_s = clock() + self._keep_alive_s
                chunk: bytes | None = KEEP_ALIVE
                if following.done():
                    chunk = following.result()
                    if chunk is None:
                        return
                    following = _next(self._source)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            for task in (following, *ends):
                task.cancel()
            await asyncio.gather(following, *ends, return_exceptions=True)


def _next(source: AsyncGenerator[bytes, None]) -> asyncio.Task[bytes | None]:
    async def step() -> bytes | None:
        return await anext(source, None)

    return asyncio.create_task(step())


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
