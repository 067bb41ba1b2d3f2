"""Server-sent events and streamed answers that hold one chunk in memory at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.control.observability import live_metrics, metric_families
from fairlead.errors import FairleadError

KEEP_ALIVE = b": keep-alive\n\n"


def frame(data: bytes | str, *, event: str | None = None, id: str | None = None) -> bytes:
    """One server-sent event (HTML standard); data with several lines stays one event."""
    text = data.decode() if isinstance(data, bytes) else data
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {event}\n" if event is not None else "")
    body = "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"{head}{body}\n".encode()


class BoundedStream(Response):
    """Sends the chunks of its source one by one; the next is produced when the last is sent.

    It ends with its source, its client or the server, when the client's access is revoked, and when the client reads
    nothing for ``unread_s``. So it never holds more than one chunk.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        *,
        stopping: asyncio.Event,
        keep_alive_s: float,
        check: Callable[[], Awaitable[object]],
        held: AbstractContextManager[None],
        unread_s: float = 60.0,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"X-Accel-Buffering": "no"})
        self._source = source
        self._stopping = stopping
        self._keep_alive_s = keep_alive_s
        self._check = check  # raises when the client's access is revoked
        self._held = held  # held while the stream is open
        self._unread_s = unread_s
        self._sent_s = 0.0
        self._sending = False

    def init_headers(self, headers: object = None) -> None:
        super().init_headers(headers)  # type: ignore[arg-type]
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held, live_metrics.gauge_incremented(metric_families.STREAMS):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._supervise(receive, send)
            except FairleadError as error:
                await self._failed(error, send)
            finally:
                await self._source.aclose()
            if not self._sending:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _failed(self, error: FairleadError, send: Send) -> None:
        """Abort the connection: a truncated document must not look complete."""
        raise ClientDisconnect from error

    async def _silent(self, send: Send) -> None:
        """Called after a period without data."""

    async def _supervise(self, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        ends = {asyncio.create_task(_gone(receive)), asyncio.create_task(self._stopping.wait())}
        clock = asyncio.get_running_loop().time
        self._sent_s = clock()
        try:
            while True:
                await asyncio.wait({writing, *ends}, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
                    return
                if any(end.done() for end in ends):
                    return
                await self._check()
                silent_s = clock() - self._sent_s
                if self._sending and silent_s >= self._unread_s:
                    raise ClientDisconnect
                if not self._sending and silent_s >= 0.9 * self._keep_alive_s:
                    await self._silent(send)
        finally:
            for task in (writing, *ends):
                task.cancel()
            await asyncio.gather(writing, *ends, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        async for chunk in self._source:
            self._sending = True
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            del chunk  # frees it while waiting for the next
            self._sending, self._sent_s = False, clock()
            await asyncio.sleep(0)  # lets other tasks run if the source never waits


class EventStream(BoundedStream):
    """A stream of server-sent events with keep-alives. An error ends it with an ``error`` event."""

    media_type = "text/event-stream"

    async def _failed(self, error: FairleadError, send: Send) -> None:
        last = frame(msgspec.json.encode(error.problem(), enc_hook=str), event="error")
        if not self._sending:
            await send({"type": "http.response.body", "body": last, "more_body": True})

    async def _silent(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


class JsonStream(BoundedStream):
    """A streamed JSON document that is never in memory as a whole."""

    media_type = "application/json"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
