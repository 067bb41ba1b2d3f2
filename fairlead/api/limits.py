"""How much a client may ask for: a token bucket per token, a cap on open streams, and the sizes of bodies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairlead.api.problems import TooFast

MEMORY = 10_000
"""So many buckets are kept before those that are full again, and so say nothing, are forgotten."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one token may ask of the API."""

    requests_per_s: float = 2000.0
    burst: int = 4000
    body_bytes: int = 1024 * 1024  # of JSON; code bundles have the platform's own limit
    streams: int = 64  # event and log streams open at once
    keep_alive_s: float = 15.0  # silence on a stream after which it gives a sign of life


@dataclass(slots=True)
class TokenBucket:
    """Fills steadily up to its size; each request takes one out."""

    per_s: float
    size: float
    level: float
    at_s: float

    def take(self, now_s: float) -> float:
        """Take one, and say 0; or say for how many seconds there is none."""
        self.fill(now_s)
        if self.level >= 1.0:
            self.level -= 1.0
            return 0.0
        return (1.0 - self.level) / self.per_s

    def fill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self.at_s)
        self.level = min(self.size, self.level + elapsed_s * self.per_s)
        self.at_s = now_s

    @property
    def full(self) -> bool:
        return self.level >= self.size


class RateLimiter:
    """One bucket per token, asked only after the token has proved itself: no stranger can use up another's rate."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._streams: Counter[str] = Counter()

    def admit(self, token: str) -> None:
        """Count one request, or raise :class:`TooFast`."""
        now_s = self._clock()
        bucket = self._buckets.get(token)
        if bucket is None:
            self._forget_full(now_s)
            size = float(self._limits.burst)
            bucket = self._buckets[token] = TokenBucket(self._limits.requests_per_s, size, size, now_s)
        wait_s = bucket.take(now_s)
        if wait_s > 0:
            raise TooFast(f"more than {self._limits.requests_per_s:g} requests per second", wait_s=wait_s)

    @contextmanager
    def stream(self, token: str) -> Iterator[None]:
        """Hold one of the token's streams, or raise :class:`TooFast`."""
        if self._streams[token] >= self._limits.streams:
            raise TooFast(f"{self._limits.streams} streams of this token are open already", wait_s=1.0)
        self._streams[token] += 1
        try:
            yield
        finally:
            self._streams[token] -= 1
            if not self._streams[token]:
                del self._streams[token]

    def _forget_full(self, now_s: float) -> None:
        if len(self._buckets) < MEMORY:
            return
        for bucket in self._buckets.values():
            bucket.fill(now_s)
        self._buckets = {token: bucket for token, bucket in self._buckets.items() if not bucket.full}
