"""Sends messages to a worker without ever disturbing the reading of what the worker sent.

asyncio's transports close at once when a write fails, and discard what they have not read. But a worker that has just
exited leaves its last messages unread (Finished among them), and every write to it fails.
"""

from __future__ import annotations

import asyncio
import socket

MOST_BYTES = 1 << 20
"""Kept for a worker that does not read; with more waiting, the worker gets nothing further."""


class ChannelWriter:
    """Writes without blocking, keeps what does not fit yet, and drops everything once the worker is gone."""

    def __init__(self, channel: socket.socket) -> None:
        """The channel is non-blocking and stays its owner's to close, after this."""
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._waiting = self._closed = False  # waiting: for room in the socket's buffer

    def write(self, data: bytes) -> None:
        """Send now, or as soon as the worker reads."""
        if not self._closed:
            self._unsent += data
            if not self._waiting:
                self._send()
            if len(self._unsent) > MOST_BYTES:
                self.close()

    def _send(self) -> None:
        try:
            sent = self._channel.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the worker has closed its end
            self.close()
            return
        del self._unsent[:sent]
        if self._unsent and not self._waiting:
            self._loop.add_writer(self._channel, self._send)
        elif self._waiting and not self._unsent:
            self._loop.remove_writer(self._channel)
        self._waiting = bool(self._unsent)

    def close(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._channel)
        self._closed, self._waiting = True, False
        self._unsent.clear()
