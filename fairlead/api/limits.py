"""How much a client may ask for: buckets per token and per tenant, caps on open streams, and the sizes of bodies."""

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
    """What one token, and all tokens of a tenant together, may ask of the API."""

    requests_per_s: float = 2000.0
    burst: int = 4000
    body_bytes: int = 1024 * 1024  # of JSON; code bundles have the platform's own limit
    streams: int = 64  # event and log streams open at once
    tenant_requests_per_s: float = 4000.0  # of all its tokens together: making more of them gives no more
    tenant_burst: int = 8000
    tenant_streams: int = 256
    keep_alive_s: float = 15.0  # silence on a stream after which it gives a sign of life
    unread_s: float = 60.0  # a client that takes nothing of what it asked for is let go after so long
    failed_logins: int = 10  # of one address at once; then one in so many seconds
    failed_login_every_s: float = 6.0
    logins: int = 60  # good ones of one token at once; then one in so many seconds, as each is written to the store
    login_every_s: float = 1.0


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


class Buckets:
    """A bucket for each who asks; those that are full again say nothing, and are forgotten when there are too many."""

    def __init__(self, per_s: float, size: float, clock: Callable[[], float]) -> None:
        self._per_s, self._size, self._clock = per_s, size, clock
        self._buckets: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Take one out of this one's bucket, and say 0; or say for how many seconds there is none."""
        now_s = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget_full(now_s)
            bucket = self._buckets[key] = TokenBucket(self._per_s, self._size, self._size, now_s)
        return bucket.take(now_s)

    def give_back(self, key: str) -> None:
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.level = min(bucket.size, bucket.level + 1.0)

    def _forget_full(self, now_s: float) -> None:
        if len(self._buckets) < MEMORY:
            return
        for bucket in self._buckets.values():
            bucket.fill(now_s)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.full}


class LoginLimiter:
    """Who guesses tokens is slowed down; so is who logs in with a good one as no person would."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(1.0 / limits.failed_login_every_s, float(limits.failed_logins), clock)
        self._good = Buckets(1.0 / limits.login_every_s, float(limits.logins), clock)

    def attempt(self, address: str) -> None:
        """Count an attempt from this address as a failed one, or raise :class:`TooFast`."""
        wait_s = self._buckets.take(address)
        if wait_s > 0:
            raise TooFast("too many failed logins from this address", wait_s=wait_s, limit="logins")

    def succeeded(self, address: str, token: str) -> None:
        """The attempt was none of a guesser's: it counts against its token instead, or raises :class:`TooFast`."""
        self._buckets.give_back(address)
        wait_s = self._good.take(token)
        if wait_s > 0:
            raise TooFast("too many logins with this token", wait_s=wait_s, limit="logins")


class RateLimiter:
    """A bucket per token and one per tenant, asked only after the token has proved itself: no stranger can use up
    another's rate. Who belongs to no tenant has only its own."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._buckets = Buckets(limits.requests_per_s, float(limits.burst), clock)
        self._tenants = Buckets(limits.tenant_requests_per_s, float(limits.tenant_burst), clock)
        self._streams: Counter[tuple[str, str]] = Counter()

    def admit(self, token: str, tenant: str | None) -> None:
        """Count one request, or raise :class:`TooFast`."""
        wait_s, most, whose = self._buckets.take(token), self._limits.requests_per_s, "token"
        if wait_s <= 0 and tenant is not None:
            wait_s, most, whose = self._tenants.take(tenant), self._limits.tenant_requests_per_s, "tenant"
        if wait_s > 0:
            raise TooFast(f"more than {most:g} requests per second of this {whose}", wait_s=wait_s)

    @contextmanager
    def stream(self, token: str, tenant: str | None) -> Iterator[None]:
        """Hold one of the token's and its tenant's streams, or raise :class:`TooFast`."""
        limits = {("token", token): self._limits.streams}
        if tenant is not None:
            limits["tenant", tenant] = self._limits.tenant_streams
        for (whose, name), most in limits.items():
            if self._streams[whose, name] >= most:
                raise TooFast(f"{most} streams of this {whose} are open already", wait_s=1.0, limit="streams")
        self._streams.update(limits.keys())
        try:
            yield
        finally:
            for held in limits:
                self._streams[held] -= 1
                if not self._streams[held]:
                    del self._streams[held]
