"""What one token may ask for: its rate and its open streams."""

from __future__ import annotations

import pytest

from fairlead.api.limits import MAX_BUCKETS, Limits, RateLimiter, TokenBucket
from fairlead.api.problems import TooFast


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_full_bucket_gives_its_whole_burst_and_then_says_how_long_to_wait() -> None:
    bucket = TokenBucket(per_s=10.0, size=5.0, level=5.0, at_s=0.0)
    assert [bucket.take(0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(0.0) == pytest.approx(0.1)


def test_a_bucket_fills_steadily_and_never_beyond_its_size() -> None:
    bucket = TokenBucket(per_s=10.0, size=5.0, level=0.0, at_s=0.0)
    assert bucket.take(0.05) == pytest.approx(0.05)
    assert bucket.take(0.1) == 0.0
    bucket.fill(1000.0)
    assert bucket.level == 5.0 and bucket.full


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(per_s=10.0, size=5.0, level=3.0, at_s=50.0)
    bucket.fill(10.0)
    assert bucket.level == 3.0


def test_over_a_long_time_a_token_gets_its_rate_and_one_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(Limits(requests_per_s=20.0, burst=7), clock)
    admitted = 0
    for _ in range(1000):  # ten seconds, a hundred requests each
        clock.now_s += 0.01
        try:
            limiter.admit("a", None)
            admitted += 1
        except TooFast:
            continue
    assert admitted == pytest.approx(20 * 10 + 7, abs=1)


def test_one_token_s_haste_costs_another_nothing() -> None:
    limiter = RateLimiter(Limits(requests_per_s=1.0, burst=2), Clock())
    limiter.admit("hasty", None)
    limiter.admit("hasty", None)
    with pytest.raises(TooFast) as caught:
        limiter.admit("hasty", None)
    assert caught.value.wait_s == pytest.approx(1.0) and caught.value.status == 429
    limiter.admit("calm", None)


def test_buckets_of_tokens_that_rest_are_forgotten() -> None:
    clock = Clock()
    limiter = RateLimiter(Limits(requests_per_s=1.0, burst=2), clock)
    for number in range(MAX_BUCKETS):
        limiter.admit(f"t{number}", None)
    clock.now_s += 10.0
    limiter.admit("busy", None)
    assert len(limiter._buckets) == 1


def test_forgetting_frees_nobody_from_the_limit() -> None:
    clock = Clock()
    limiter = RateLimiter(Limits(requests_per_s=0.001, burst=1), clock)
    for number in range(MAX_BUCKETS + 1):
        limiter.admit(f"t{number}", None)
    with pytest.raises(TooFast):
        limiter.admit("t0", None)


def test_streams_are_counted_while_they_are_open() -> None:
    limiter = RateLimiter(Limits(streams=2))
    a, b = ("a", None), ("b", None)
    with limiter.stream(*a), limiter.stream(*a), limiter.stream(*b), pytest.raises(TooFast), limiter.stream(*a):
        pass
    with limiter.stream("a", None), limiter.stream("a", None):
        pass
    assert not limiter._streams


def test_the_default_rate_lies_above_the_throughput_that_is_asked_of_the_platform() -> None:
    assert Limits().requests_per_s >= 400 and Limits().burst >= 1000


def test_many_tokens_give_a_tenant_no_more_than_its_rate() -> None:
    limiter = RateLimiter(Limits(requests_per_s=1.0, burst=2, tenant_requests_per_s=1.0, tenant_burst=5), Clock())
    for number in range(5):
        limiter.admit(f"t{number}", "alpha")
    with pytest.raises(TooFast, match="with this tenant"):
        limiter.admit("t6", "alpha")
    limiter.admit("t7", "beta")
    limiter.admit("t8", None)


def test_a_tenant_s_tokens_together_hold_no_more_than_its_streams() -> None:
    limiter = RateLimiter(Limits(streams=2, tenant_streams=3))
    with limiter.stream("a", "alpha"), limiter.stream("b", "alpha"), limiter.stream("c", "alpha"):
        with pytest.raises(TooFast, match="this tenant already has 3 open streams"), limiter.stream("d", "alpha"):
            pass
        with limiter.stream("d", "beta"), limiter.stream("e", None):
            pass
    assert not limiter._streams
