"""Limits on clients: rates per token and tenant, open streams, body sizes, logins."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairlead.api.problems import TooFast

MAX_BUCKETS = 10_000
"""Number of buckets above which full ones, which hold no information, are dropped."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one token, and of all tokens of a tenant together."""

    requests_per_s: float = 2000.0
    burst: int = 4000
    body_bytes: int = 1024 * 1024  # of JSON; code bundles have the platform's own limit
    streams: int = 64  # event and log streams open at once
    tenant_requests_per_s: float = 4000.0  # of all its tokens together, so more tokens give no higher rate
    tenant_burst: int = 8000
    tenant_streams: int = 256
    keep_alive_s: float = 15.0  # silence on a stream after which a keep-alive is sent
    unread_s: float = 60.0  # a client that reads nothing for this long is disconnected
    failed_logins: int = 10  # burst per address; then one per failed_login_every_s
    failed_login_every_s: float = 6.0
    logins: int = (
        60  # successful logins per token at once; then one per login_every_s, because each writes to the store
    )
    login_every_s: float = 1.0


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: fills at a steady rate up to its size; each request takes one."""

    per_s: float
    size: float
    level: float
    at_s: float

    def take(self, now_s: float) -> float:
        """Take one and return 0, or return the seconds until one is available."""
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
    """One token bucket per key; full ones are dropped when there are too many."""

    def __init__(self, per_s: float, size: float, clock: Callable[[], float]) -> None:
        self._per_s, self._size, self._clock = per_s, size, clock
        self._buckets: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Take one from the key's bucket and return 0, or return the seconds until one is available."""
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
        if len(self._buckets) < MAX_BUCKETS:
            return
        for bucket in self._buckets.values():
            bucket.fill(now_s)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.full}


class LoginLimiter:
    """Slows down guessing of tokens per address, and excessive logins per valid token."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(1.0 / limits.failed_login_every_s, float(limits.failed_logins), clock)
        self._successful = Buckets(1.0 / limits.login_every_s, float(limits.logins), clock)

    def attempt(self, address: str) -> None:
        """Count an attempt from this address as a failed one, or raise :class:`TooFast`."""
        wait_s = self._buckets.take(address)
        if wait_s > 0:
            raise TooFast("too many failed logins from this address", wait_s=wait_s, limit="logins")

    def succeeded(self, address: str, token: str) -> None:
        """Count a successful login against its token instead of its address, or raise :class:`TooFast`."""
        self._buckets.give_back(address)
        wait_s = self._successful.take(token)
        if wait_s > 0:
            raise TooFast("too many logins with this token", wait_s=wait_s, limit="logins")


class RateLimiter:
    """Request rates and open streams per token and per tenant.

    Applied after authentication, so that nobody can use up the rate of another. Tokens without a tenant have only
    their own limit.
    """

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
            raise TooFast(f"more than {most:g} requests per second with this {whose}", wait_s=wait_s)

    @contextmanager
    def stream(self, token: str, tenant: str | None) -> Iterator[None]:
        """Hold one of the token's and its tenant's streams, or raise :class:`TooFast`."""
        limits = {("token", token): self._limits.streams}
        if tenant is not None:
            limits["tenant", tenant] = self._limits.tenant_streams
        for (whose, name), most in limits.items():
            if self._streams[whose, name] >= most:
                raise TooFast(f"this {whose} already has {most} open streams", wait_s=1.0, limit="streams")
        self._streams.update(limits.keys())
        try:
            yield
        finally:
            for held in limits:
                self._streams[held] -= 1
                if not self._streams[held]:
                    del self._streams[held]
