"""Takes in what a worker says, no faster and no longer than its node manager can bear: the tenant has the other end.

What a worker says is kept by the node manager, outside of the worker's control group, and taken apart with the node
manager's own time, which all tenants of the node share. So a worker that says too much at once has to wait: its line is
not read for a while, and it stands still when that is full.
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
_MOST_BUSY, _BUSY_BURST_S = 0.1, 0.5  # of a core that one worker's words may cost the platform
_MOST_WORDS_PER_S = 2000
_LONGEST: Mapping[type, int] = {
    wire.Finished: 8 << 20,  # with manifests of the data sets that were loaded
    wire.Progress: 1 << 20, wire.Raised: 1 << 20, wire.Profiled: 512 << 10,
}  # fmt: skip
_LONGEST_OTHER = 64 << 10
_SHORT = 4 << 10  # as fast looked through as handed to somebody else

DEEPEST = 64
"""Levels of what a worker may put where any value goes: all who pass it on, store it and show it can do so."""

_decoder = framing.Decoder(wire.FromWorker)
_reader = ThreadPoolExecutor(1, "words")
"""Not the loop's own: a message of megabytes may be searched for thousands of forms of secrets. And one at a time: what
is small on the line may be large in memory."""


class WorkerStream:
    """Of one worker, from its first to its last."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._frames = framing.Frames(max(_LONGEST.values()))
        self._bytes = _Allowance(RATE_BYTES_PER_S, BURST_BYTES)
        self._busy = _Allowance(_MOST_BUSY, _BUSY_BURST_S)
        self._owed_s = 0.0
        self._said = (0, 0)  # in this second
        self._unthrottled = asyncio.Event()
        self.reading = False  # some of its words are being taken apart

    async def messages(self, data: bytes) -> AsyncIterator[wire.FromWorker]:
        """What it said, without its secrets; raises ValueError when it talks nonsense or too much."""
        wait_s = self._bytes.spend(len(data))
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
        size = len(packed) if told is message else len(msgspec.msgpack.encode(told))  # names take room, too
        if size > limit:
            raise ValueError(f"a message of {size} bytes is over the limit of {limit}")
        return told, time.thread_time() - begun_s

    def _count(self) -> None:
        """No worker may drown the platform in words."""
        second = int(time.monotonic())
        self._said = (second, self._said[1] + 1 if second == self._said[0] else 1)
        if self._said[1] > _MOST_WORDS_PER_S:
            raise ValueError(f"more than {_MOST_WORDS_PER_S} messages in a second")

    async def throttle(self) -> None:
        """Wait as long as what was heard has to cost; not when the worker has ended, and little is left."""
        if self._owed_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._owed_s):
                    await self._unthrottled.wait()

    def stop_throttling(self) -> None:
        """The worker has ended: what is still on its line is heard at once."""
        self._unthrottled.set()


def check_values(message: msgspec.Struct) -> None:
    """Raises ValueError unless all in it is plain: texts, numbers, lists and maps by text, at most so deep."""
    level: list[object] = [getattr(message, name) for name in message.__struct_fields__]
    for _ in range(DEEPEST):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise ValueError("a message with a name that is no text")
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, msgspec.Struct):
                below += (getattr(value, name) for name in value.__struct_fields__)
            elif not isinstance(value, str | int | float | None):
                raise ValueError(f"a message with {type(value).__name__}, which is no plain value")
        if not below:
            return
        level = below
    raise ValueError("a message that is nested too deep")


class _Allowance:
    """So much in a second, and so much at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst, self._left = per_s, burst, burst
        self._counted_s = time.monotonic()

    def spend(self, amount: float) -> float:
        """How many seconds it takes until this is paid for."""
        now_s = time.monotonic()
        earned = (now_s - self._counted_s) * self._per_s
        self._left = min(self._burst, self._left + earned) - amount
        self._counted_s = now_s
        return max(0.0, -self._left / self._per_s)
