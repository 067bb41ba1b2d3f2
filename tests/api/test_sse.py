"""Server-sent events: their framing, and when a stream ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from fairlead.api.sse import KEEP_ALIVE, BoundedStream, EventStream, JsonStream, frame
from fairlead.errors import Unauthenticated


@pytest.mark.parametrize(
    ("data", "event", "id", "wire"),
    [
        ("x", None, None, b"data: x\n\n"),
        (b'{"a":1}', "line", "7", b'id: 7\nevent: line\ndata: {"a":1}\n\n'),
        ("one\ntwo", None, None, b"data: one\ndata: two\n\n"),
        ("one\r\ntwo\rthree", None, None, b"data: one\ndata: two\ndata: three\n\n"),
        ("", "end", None, b"event: end\ndata: \n\n"),
        ("é", None, None, "data: é\n\n".encode()),
    ],
)
def test_a_frame_is_one_event_whatever_its_data(data: str, event: str | None, id: str | None, wire: bytes) -> None:
    assert frame(data, event=event, id=id) == wire


class Client:
    """The other end of a stream, as an ASGI server hands it to the application."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.got = asyncio.Condition()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        async with self.got:
            self.sent.append(dict(message))
            self.got.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.got:
            await self.got.wait_for(condition)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        return self.sent[-1].get("more_body") is False


class Source:
    """Yields some chunks, then is silent until it is closed."""

    def __init__(self, *chunks: bytes, ends: bool = False, fails: Exception | None = None) -> None:
        self.chunks, self.ends, self.fails = chunks, ends, fails
        self.closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for chunk in self.chunks:
                yield chunk
            if self.fails is not None:
                raise self.fails
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def _good() -> None:
    return None


def _stream(
    source: Source,
    stopping: asyncio.Event,
    keep_alive_s: float = 60.0,
    check: Callable[[], Awaitable[object]] = _good,
) -> EventStream:
    return EventStream(
        source(), stopping=stopping, keep_alive_s=keep_alive_s, check=check, held=contextlib.nullcontext()
    )


def _run(stream: Callable[[Client, asyncio.Event], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await stream(Client(), asyncio.Event())

    asyncio.run(main())


async def _open(response: BoundedStream, client: Client) -> asyncio.Task[None]:
    return asyncio.create_task(response({"type": "http"}, client.receive, client.send))


def test_a_stream_ends_when_its_source_does() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        source = Source(b"a", b"b", ends=True)
        await (await _open(_stream(source, stopping), client))
        assert client.body == b"ab" and client.complete and source.closed
        headers = dict(client.sent[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream") and b"content-length" not in headers

    _run(check)


def test_a_stream_ends_when_its_client_goes_even_in_silence() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        source = Source(b"a")
        task = await _open(_stream(source, stopping), client)
        await client.until(lambda: client.body == b"a")
        client.gone.set()
        await task
        assert source.closed

    _run(check)


def test_a_stream_ends_when_the_server_stops() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        source = Source(b"a")
        task = await _open(_stream(source, stopping), client)
        await client.until(lambda: client.body == b"a")
        stopping.set()
        await task
        assert source.closed and client.complete

    _run(check)


def test_a_silent_stream_gives_signs_of_life() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        task = await _open(_stream(Source(b"a"), stopping, keep_alive_s=0.01), client)
        await client.until(lambda: client.body.count(KEEP_ALIVE) >= 3)
        stopping.set()
        await task
        assert client.body.startswith(b"a" + KEEP_ALIVE)

    _run(check)


def test_a_stream_ends_soon_after_its_token_is_revoked() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        async def revoked() -> None:
            raise Unauthenticated("the token was revoked")

        source = Source(b"a")
        await (await _open(_stream(source, stopping, keep_alive_s=0.01, check=revoked), client))
        assert b"event: error\n" in client.body and b"the token was revoked" in client.body and source.closed

    _run(check)


def test_a_busy_stream_is_checked_too() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        async def endless() -> AsyncGenerator[bytes, None]:
            while True:
                await asyncio.sleep(0)
                yield b"x"

        async def revoked() -> None:
            raise Unauthenticated("the token was revoked")

        response = EventStream(
            endless(), stopping=stopping, keep_alive_s=0.05, check=revoked, held=contextlib.nullcontext()
        )
        await (await _open(response, client))
        assert b"event: error\n" in client.body

    _run(check)


def test_a_known_error_on_the_way_is_told_and_ends_the_stream() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        source = Source(b"a", fails=Unauthenticated("not any more"))
        await (await _open(_stream(source, stopping), client))
        assert client.body.startswith(b"a") and b"not any more" in client.body and client.complete

    _run(check)


class Stuck(Client):
    """A client that takes nothing after the first pieces."""

    async def send(self, message: Any) -> None:
        if len(self.sent) == 3:  # the head, and two pieces
            await asyncio.Event().wait()
        await super().send(message)


def test_of_what_a_client_does_not_read_one_piece_is_made_and_then_it_is_let_go() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        made: list[bytes] = []

        async def endless() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    made.append(b"x" * 10)
                    yield made[-1]
            finally:
                made.append(b"closed")

        stuck = Stuck()
        for kind in (EventStream, JsonStream):
            made.clear()
            stuck.sent.clear()
            response = kind(
                endless(), stopping=stopping, keep_alive_s=0.01, check=_good, unread_s=0.05,
                held=contextlib.nullcontext(),
            )  # fmt: skip
            with pytest.raises(ClientDisconnect):
                await response({"type": "http"}, stuck.receive, stuck.send)
            assert made == [b"x" * 10] * 3 + [b"closed"], "pieces were made that nobody takes"

    _run(check)


def test_half_a_document_is_cut_off_and_never_looks_whole() -> None:
    async def check(client: Client, stopping: asyncio.Event) -> None:
        source = Source(b"[1", fails=Unauthenticated("not any more"))
        response = JsonStream(
            source(), stopping=stopping, keep_alive_s=60.0, check=_good, held=contextlib.nullcontext()
        )
        with pytest.raises(ClientDisconnect):
            await (await _open(response, client))
        assert client.body == b"[1" and not client.complete and source.closed

    _run(check)
