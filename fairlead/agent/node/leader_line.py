"""A node manager's connection to the leader: one at a time, of the newest epoch, with unacknowledged events resent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead import framing, wire
from fairlead.agent.node.outbox import Outbox

_BACKLOG_BYTES = 16 << 20  # unsent bytes after which a leader is disconnected; it gets all again on reconnect

log = logging.getLogger("fairlead.node")

Answer = Callable[[wire.Request], wire.Reply | asyncio.Future[wire.Reply]]


class LeaderLine:
    """Refuses older leaders, answers the current one and sends it all unacknowledged events."""

    def __init__(self, epoch: int, answer: Answer, outbox: Outbox, new_leader: Callable[[], None]) -> None:
        self.epoch = epoch
        self._answer = answer
        self._outbox = outbox
        self._new_leader = new_leader
        self._live: asyncio.StreamWriter | None = None
        self._most_unread = _BACKLOG_BYTES

    @property
    def connected(self) -> bool:
        return self._live is not None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        unpacker = framing.Unpacker(wire.Request)
        try:
            while data := await reader.read(1 << 16):
                for request in unpacker.feed(data):
                    self._handle_request(request, writer)
        except (ConnectionResetError, BrokenPipeError):
            pass
        except ValueError as error:
            log.error("invalid message on a control connection: %s", error)
        finally:
            if self._live is writer:
                self._live = None
            writer.close()

    def _handle_request(self, request: wire.Request, writer: asyncio.StreamWriter) -> None:
        if request.epoch < self.epoch:
            why = f"epoch {request.epoch} is over: {self.epoch} leads"
            writer.write(framing.pack(wire.Reply(request.id, error=why, code="stale-epoch")))
            return
        if request.epoch > self.epoch:
            self.epoch = request.epoch
            self._new_leader()
        fresh = self._live is not writer
        if fresh and self._live is not None:
            self._live.close()
        self._live = writer
        answer = self._answer(request)
        if isinstance(answer, wire.Reply):
            writer.write(framing.pack(answer))
        else:
            answer.add_done_callback(lambda done: self._reply_late(writer, request.id, done))
        if fresh:
            for event in self._outbox.pending():
                writer.write(framing.pack(event))
            # The backlog counts from here: disconnecting a leader for it would resend as much at each reconnect.
            self._most_unread = _BACKLOG_BYTES + writer.transport.get_write_buffer_size()

    def _reply_late(self, writer: asyncio.StreamWriter, number: int, done: asyncio.Future[wire.Reply]) -> None:
        error = done.exception()
        if error is not None:
            log.error("a request failed", exc_info=error)
        reply = done.result() if error is None else wire.Reply(number, error=str(error), code="failed")
        if not writer.is_closing():
            writer.write(framing.pack(reply))

    def push(self, event: wire.Event) -> None:
        """Send the event if a leader is connected; the outbox keeps it in any case."""
        live = self._live
        if live is None or live.is_closing():
            return
        live.write(framing.pack(event))
        if live.transport.get_write_buffer_size() > self._most_unread:
            log.warning("disconnecting the leader, which does not read")
            live.transport.abort()
            self._live = None

    async def flush(self) -> None:
        """Send what is buffered and close the connection."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
            try:
                async with asyncio.timeout(2.0):
                    await live.wait_closed()
            except (OSError, TimeoutError) as error:
                log.debug("the leader closed the connection first: %s", error)
