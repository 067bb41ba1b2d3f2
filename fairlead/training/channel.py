"""A worker's line to its node manager: messages out at once, messages in kept until they are asked for."""

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
"""Exit code of a worker whose node manager is gone; nobody is left to read it but a person with a debugger."""


def log(text: str) -> None:
    """One short line in the worker's log."""
    print(f"fairlead: {text}", flush=True)


class Channel:
    """Both directions of the stream. A thread reads, so that the end of the node manager is seen even in user code."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(True)
        self._stream = stream
        self._sending = threading.Lock()
        self._inbox: deque[wire.ToWorker] = deque()
        self._arrived = threading.Condition()
        self.overheard: Callable[[msgspec.Struct], None] | None = None  # is told what is said
        threading.Thread(target=self._read, name="fairlead-channel", daemon=True).start()

    def send(self, message: msgspec.Struct) -> None:
        with self._sending:
            try:
                self._stream.sendall(framing.pack(message))
            except OSError:
                _leave_orphaned()
        if self.overheard is not None:
            self.overheard(message)

    def close(self) -> None:
        """In a process that was forked and has nothing to say: so that the end of this worker is seen."""
        self._stream.close()

    def pending(self) -> bool:
        """Whether a message waits; cheap enough to ask at every step."""
        return bool(self._inbox)

    def peek(self) -> list[wire.ToWorker]:
        """The messages that wait, left where they are."""
        with self._arrived:
            return list(self._inbox)

    def take(self, timeout_s: float | None = None) -> wire.ToWorker | None:
        """The next message, or None when none came in time; without a timeout it waits for ever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrived:
            while not self._inbox:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._arrived.wait(left)
            return self._inbox.popleft()

    def put_back(self, message: wire.ToWorker) -> None:
        """Return a message to the front, for whoever asks next."""
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
                _leave_orphaned()
            if not data:
                _leave_orphaned()
            with self._arrived:
                self._inbox.extend(messages)
                self._arrived.notify_all()


def _leave_orphaned() -> None:
    """End at once: without a node manager nobody watches this worker, and another one may take its place."""
    sys.stderr.write("fairlead: the node manager is gone; this worker ends\n")
    os._exit(ORPHANED)
