"""The leader's connection to one node manager: requests with answers, and its events."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from fairlead import framing, unix_sockets, wire
from fairlead.errors import FairleadError, LostLeadership, Unavailable

_ANSWER_S = 15.0


class NodeGone(Unavailable):
    """The connection to the node is lost; NodeLost or NodeJoined follows among the events."""

    code = "node-gone"


class NodeRefused(FairleadError):
    """The node manager refuses a command; ``why`` is its machine code."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class NodeLink:
    """Requests with answers, and events in order; events are held back until a listener is set."""

    def __init__(self, epoch: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._epoch = epoch
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[wire.Reply]] = {}
        self._held_back: list[wire.Event] = []
        self._listener: Callable[[wire.Event], None] | None = None
        self._clock_offset_s: float | None = None  # this process's monotonic clock minus the node's
        self.last_message_s = time.monotonic()
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, path: Path, epoch: int) -> NodeLink:
        """Connect to the node manager behind this socket; raises ``OSError`` when there is none."""
        line = unix_sockets.connect(path, timeout_s=0.0)
        return cls(epoch, *await asyncio.open_unix_connection(sock=line))

    def listen(self, listener: Callable[[wire.Event], None]) -> None:
        """Pass all events to the listener, held back ones first."""
        self._listener = listener
        for event in self._held_back:
            listener(event)
        self._held_back.clear()

    async def request(self, body: wire.ToNode, timeout_s: float = _ANSWER_S) -> wire.Reply:
        """The node's answer; raises NodeRefused, LostLeadership, or NodeGone when the connection is lost."""
        if self.reading.done():
            raise NodeGone("the connection to the node is closed")
        number = next(self._numbers)
        answer: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            self._writer.write(framing.pack(wire.Request(number, self._epoch, body)))
            async with asyncio.timeout(timeout_s):
                reply = await answer
        except TimeoutError:
            raise NodeGone(f"the node did not answer within {timeout_s:g} s") from None
        finally:
            self._pending.pop(number, None)
        if reply.code == "stale-epoch":
            raise LostLeadership(reply.error or "another control plane leads")
        if reply.code is not None:
            raise NodeRefused(reply.error or reply.code, reply.code)
        return reply

    def post(self, body: wire.ToNode) -> None:
        """Send a command without waiting for the answer."""
        if not self.reading.done():
            self._writer.write(framing.pack(wire.Request(next(self._numbers), self._epoch, body)))

    def age_s(self, event: wire.Event) -> float | None:
        """Seconds since the event by the node's monotonic clock; None when an older node does not report it."""
        if self._clock_offset_s is None or not event.at_s:
            return None
        return max(0.0, time.monotonic() - self._clock_offset_s - event.at_s)

    def _compare_clocks(self, reply: wire.Reply) -> None:
        """Update the clock offset; the smallest one is best, since transit time only adds to it."""
        if reply.sent_s:
            ahead_s = time.monotonic() - reply.sent_s
            self._clock_offset_s = ahead_s if self._clock_offset_s is None else min(ahead_s, self._clock_offset_s)

    async def _read(self) -> None:
        unpacker = framing.Unpacker(wire.FromNode)
        try:
            while data := await self._reader.read(1 << 18):
                self.last_message_s = time.monotonic()
                for message in unpacker.feed(data):
                    self._handle_message(message)
        except (OSError, ValueError):
            pass  # the node's supervisor finds out whether it still lives
        finally:
            self._writer.close()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(NodeGone("the node is gone"))

    def _handle_message(self, message: wire.FromNode) -> None:
        if isinstance(message, wire.Event):
            if self._listener is None:
                self._held_back.append(message)
            else:
                self._listener(message)
            return
        self._compare_clocks(message)
        answer = self._pending.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        self.reading.cancel()
        await asyncio.wait([self.reading])  # awaiting it directly could not be told from our own cancellation
