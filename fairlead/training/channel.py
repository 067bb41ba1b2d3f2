"""A worker's connection to its node manager: sends at once, queues what arrives until it is read."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from fairlead import framing, local_wire, wire

ORPHANED = 3
"""Exit code of a worker that has lost its node manager; only a person with a debugger can see it."""


def log(text: str) -> None:
    """One short line in the worker's log."""
    print(f"fairlead: {text}", flush=True)


class Channel:
    """Both directions of the stream. A reading thread ends the worker when the node manager is gone."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(True)
        self._stream = stream
        self._sending = threading.Lock()
        self._inbox: deque[wire.ToWorker] = deque()
        self._arrived = threading.Condition()
        self.on_send: Callable[[msgspec.Struct], None] | None = None  # called with every message sent
        threading.Thread(target=self._read, name="fairlead-channel", daemon=True).start()

    def send(self, message: msgspec.Struct) -> None:
        with self._sending:
            try:
                self._stream.sendall(framing.pack(message))
            except OSError:
                _exit_orphaned()
        if self.on_send is not None:
            self.on_send(message)

    def close(self) -> None:
        """Close this copy of the stream, in a forked process: an open one would hide the end of the worker."""
        self._stream.close()

    def pending(self) -> bool:
        """Whether a message waits; cheap enough to call at every step."""
        return bool(self._inbox)

    def peek(self) -> list[wire.ToWorker]:
        """The waiting messages, left in the queue."""
        with self._arrived:
            return list(self._inbox)

    def take(self, timeout_s: float | None = None) -> wire.ToWorker | None:
        """The next message, or None if none came in time. Without a timeout it waits for ever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrived:
            while not self._inbox:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._arrived.wait(left)
            return self._inbox.popleft()

    def put_back(self, message: wire.ToWorker) -> None:
        """Return a message to the front of the queue."""
        with self._arrived:
            self._inbox.appendleft(message)
            self._arrived.notify_all()

    def _read(self) -> None:
        unpacker = framing.Unpacker(local_wire.ToWorker)
        while True:
            try:
                data = self._stream.recv(1 << 16)
                messages = unpacker.feed(data)
            except (OSError, ValueError, msgspec.DecodeError):
                _exit_orphaned()
            if not data:
                _exit_orphaned()
            with self._arrived:
                self._inbox.extend(messages)
                self._arrived.notify_all()


def _exit_orphaned() -> None:
    """Exit at once: without a node manager nobody watches this worker, and another one may take its place."""
    sys.stderr.write("fairlead: the node manager is gone; this worker ends\n")
    os._exit(ORPHANED)
