"""Decodes a worker's messages with limits on rate, size and depth: tenant code is at the other end.

The node manager keeps messages outside of the worker's control group and decodes them with its own cpu time, which all
tenants of the node share. So a worker that sends too much is throttled: its channel is not read for a while, and it
blocks when the channel is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from fairlead import framing, wire
from fairlead.agent.node.secret_scrubber import Scrubber

RATE_BYTES_PER_S, BURST_BYTES = 1 << 20, 16 << 20
_MOST_BUSY, _BUSY_BURST_S = 0.1, 0.5  # cores that one worker's messages may cost, and seconds of burst
_MOST_WORDS_PER_S = 2000
_LONGEST: Mapping[type, int] = {
    wire.Finished: 8 << 20,  # includes manifests of the loaded data sets
    wire.Progress: 1 << 20, wire.Raised: 1 << 20, wire.Profiled: 512 << 10,
}  # fmt: skip
_LONGEST_OTHER = 64 << 10
_LEAST_BYTES = 1024  # counted for each receive, so that single bytes are not free of cost
_SHORT = 4 << 10  # decoded in the loop: handing it to a thread takes as long

DEEPEST = 64
"""Nesting of free-form values: all components that forward, store and show them can handle it."""

_decoder = framing.Decoder(wire.FromWorker)
_reader = ThreadPoolExecutor(1, "words")
"""Decodes long messages: megabytes may be searched for thousands of forms of secrets. One at a time: a message that is
small on the wire may be large in memory."""


class WorkerStream:
    """The messages of one worker."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._frames = framing.Frames(max(_LONGEST.values()))
        self._bytes = _Allowance(RATE_BYTES_PER_S, BURST_BYTES)
        self._busy = _Allowance(_MOST_BUSY, _BUSY_BURST_S)
        self._owed_s = 0.0
        self._said = (0, 0)  # second, and messages in it
        self._unthrottled = asyncio.Event()
        self.reading = False  # a long message is being decoded

    async def messages(self, data: bytes) -> AsyncIterator[wire.FromWorker]:
        """The messages in the data, without secrets; raises ValueError for invalid or too many messages."""
        wait_s = self._bytes.spend(max(len(data), _LEAST_BYTES))
        for packed in self._frames.feed(data):
            self._count()
            message, busy_s = await self._read(packed)
            wait_s = max(wait_s, self._busy.spend(busy_s))
            yield message
        self._owed_s = wait_s

    async def _read(self, packed: bytes) -> tuple[wire.FromWorker, float]:
        if len(packed) <= _SHORT:
            return self._decode(packed)
        self.reading = True
        try:
            return await asyncio.get_running_loop().run_in_executor(_reader, self._decode, packed)
        finally:
            self.reading = False

    def _decode(self, packed: bytes) -> tuple[wire.FromWorker, float]:
        begun_s = time.thread_time()
        message = _decoder.decode(packed)
        check_values(message)
        limit = _LONGEST.get(type(message), _LONGEST_OTHER)
        told = self._scrubber.message(message)
        # Masks may be longer than the secrets.
        size = len(packed) if told is message else len(msgspec.msgpack.encode(told))
        if size > limit:
            raise ValueError(f"a message of {size} bytes exceeds the limit of {limit}")
        return told, time.thread_time() - begun_s

    def _count(self) -> None:
        """Limit the number of messages per second."""
        second = int(time.monotonic())
        self._said = (second, self._said[1] + 1 if second == self._said[0] else 1)
        if self._said[1] > _MOST_WORDS_PER_S:
            raise ValueError(f"more than {_MOST_WORDS_PER_S} messages in a second")

    async def throttle(self) -> None:
        """Wait as long as the rate limits require; not after the worker has ended."""
        if self._owed_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._owed_s):
                    await self._unthrottled.wait()

    def stop_throttling(self) -> None:
        """The worker has ended: read the rest without waiting."""
        self._unthrottled.set()


def check_values(message: msgspec.Struct) -> None:
    """Raise ValueError unless the message holds only plain values (text, numbers, lists, maps), DEEPEST levels deep."""
    level: list[object] = [getattr(message, name) for name in message.__struct_fields__]
    for _ in range(DEEPEST):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise ValueError("a message with a key that is not text")
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, msgspec.Struct):
                below += (getattr(value, name) for name in value.__struct_fields__)
            elif not isinstance(value, str | int | float | None):
                raise ValueError(f"a message with {type(value).__name__}, which is not a plain value")
        if not below:
            return
        level = below
    raise ValueError("a message that is nested too deeply")


class _Allowance:
    """A token bucket: ``per_s`` on average, ``burst`` at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst, self._left = per_s, burst, burst
        self._counted_s = time.monotonic()

    def spend(self, amount: float) -> float:
        """Spend the amount; returns the seconds to wait until it is covered."""
        now_s = time.monotonic()
        earned = (now_s - self._counted_s) * self._per_s
        self._left = min(self._burst, self._left + earned) - amount
        self._counted_s = now_s
        return max(0.0, -self._left / self._per_s)
