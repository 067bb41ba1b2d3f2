"""Unequal workers: shares follow the measured speed, whoever is late is named, and the result stays the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import wire
from fairlead.planning.plan import Plan
from fairlead.training.parallel.batch_balance import (
    MIN_SECONDS,
    MIN_STEPS,
    Balance,
    RankShare,
    Window,
    shares_by_speed,
)
from fairlead.training.parallel.slow_ranks import slow_ranks, stragglers
from tests.training.conftest import MakeGang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

UNEQUAL = SMALL.replace(
    "if self.training and torch.is_grad_enabled(): time.sleep(self.seconds)",
    "if self.training and torch.is_grad_enabled(): time.sleep(self.seconds * len(x) * int(os.environ['SLOWNESS']))",
).replace("import time\n", "import os, time\n", 1)


def run(balance: Balance, seconds_per_sample: list[float], batch: int, fixed_s: float = 0.0) -> Window:
    """Let workers of these speeds take steps until a window is complete."""
    while True:
        counts = [round(batch * balance.share(rank)) for rank in range(len(seconds_per_sample))]
        times = [fixed_s + count * each for count, each in zip(counts, seconds_per_sample, strict=True)]
        window = balance.record_step(times)
        if window is not None:
            return window


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 0.008), min_size=2, max_size=6), st.integers(60, 300), st.floats(0.0, 0.01))
def test_shares_come_to_equal_times_whatever_the_speeds(speeds: list[float], batch: int, fixed_s: float) -> None:
    balance = Balance([1.0] * len(speeds), batch)
    for _ in range(30):
        window = run(balance, speeds, batch, fixed_s)
    one_sample = max(speeds) / (sum(window.compute_s) / len(speeds))
    assert window.spread <= 0.051 + 2 * one_sample
    assert sum(balance.shares) == pytest.approx(1.0)


def test_two_to_one_workers_reach_nearly_all_of_what_is_possible() -> None:
    balance = Balance([1, 1], 96)
    for _ in range(3):
        window = run(balance, [0.001, 0.002], 96)
    assert window.spread <= 0.07
    assert 96 * 0.001 / max(window.compute_s) >= 0.95 * 1.5  # against the fast one alone


def test_equal_workers_keep_their_shares_in_spite_of_noise() -> None:
    balance = Balance([1, 1, 1], 30)
    for step in range(10 * MIN_STEPS):
        balance.record_step([0.1 + 0.05 * (step % 7 == rank) for rank in range(3)])
    assert balance.shares == (1 / 3,) * 3 and balance.last is not None and balance.last.stragglers == ()


def test_where_the_result_depends_on_the_shares_they_stay() -> None:
    balance = Balance([1, 1], 64, follows=False)
    assert run(balance, [0.01, 0.03], 64).stragglers == (1,)
    assert balance.shares == (0.5, 0.5)


def test_stages_differ_by_design_and_who_falls_behind_its_own_beginning_is_late() -> None:
    balance = Balance([1.0], 64, follows=False, seats=[RankShare(0, 0), RankShare(0, 1)])
    assert run(balance, [0.01, 0.03], 64).stragglers == () and balance.slow_s == (0.0, 0.0)
    assert run(balance, [0.01, 0.09], 64).stragglers == (1,)
    assert balance.slow_s[0] == 0.0 and balance.slow_s[1] > 1.0 and balance.share(1) == 1.0


def test_ranks_of_one_stage_are_compared_with_each_other_from_the_beginning() -> None:
    seats = [RankShare(replica, stage) for stage in range(2) for replica in range(2)]
    balance = Balance([0.5, 0.5], 64, follows=False, seats=seats)
    assert run(balance, [0.01, 0.01, 0.02, 0.06], 64).stragglers == (3,)
    assert balance.slow_s[:3] == (0.0, 0.0, 0.0) and balance.slow_s[3] > 1.0


def test_who_has_no_samples_is_no_straggler_and_gets_none() -> None:
    window = Window((0.1, 0.0, 0.1), (10, 0, 20), ())
    assert window.spread == 0.0
    assert shares_by_speed([window.speed(rank) for rank in range(3)], 30) == pytest.approx((1 / 3, 0, 2 / 3))


@pytest.mark.parametrize(
    ("times", "late"),
    [([1.0, 1.02], ()), ([1.0, 1.5], (1,)), ([1.0, 1.1, 0.9, 1.05, 3.0], (4,)), ([1.0], ()), ([1, 1, 2, 2], (2, 3))],
)
def test_stragglers_are_those_far_behind_the_others(times: list[float], late: tuple[int, ...]) -> None:
    assert stragglers(times, [4] * len(times)) == late


def test_who_stays_slow_is_counted_even_with_a_share_that_suits_it_and_forgotten_when_it_is_fast_again() -> None:
    balance = Balance([1, 1, 1], 60)
    for _ in range(3):
        window = run(balance, [0.01, 0.01, 0.04], 60)
    assert window.stragglers == () and balance.shares[2] < 0.2  # it has its share
    assert balance.slow_s[:2] == (0.0, 0.0) and balance.slow_s[2] > 1.0
    run(balance, [0.01, 0.01, 0.01], 60)
    assert balance.slow_s == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("speeds", "expected", "slow"),
    [
        ([1, 1, 0.4], [1, 1, 1], (2,)), ([1, 0.4], [1, 1], (1,)), ([1, 0.4], [1, 0.5], ()), ([1, 0.6], [1, 1], ()),
        ([1, 0.0], [1, 1], ()), ([2, 1, 0.2], [1, 0.5, 0.5], (2,)), ([1], [1], ()),
    ],
)  # fmt: skip
def test_slow_is_measured_by_what_the_device_was_said_to_do(
    speeds: list[float], expected: list[float], slow: tuple[int, ...]
) -> None:
    assert slow_ranks(speeds, expected) == slow


@pytest.mark.parametrize(
    ("plan", "layers"),  # without batch norm, in whose sums a pass waits, ddp waits only within the backward pass
    [(None, "both"), (Plan(data=2, sync="allreduce", buckets=True), "dropout")],
    ids=["replicas", "ddp"],
)
def test_a_slower_worker_is_given_less_while_running_and_the_curve_stays(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch, plan: Plan | None, layers: str
) -> None:
    params = {"layers": layers, "epochs": 3, "samples": 480, "batch_size": 24}
    gang = make_gang(UNEQUAL, params | {"slow": 0.001})
    for name, slowness in (("w0", "1"), ("w1", "3")):
        monkeypatch.setenv("SLOWNESS", slowness)
        gang.start(name)
    gang.ready("w0", "w1")
    gang.join("w0", "w1", plan=plan)
    gang.finish()
    told = [worker.last(wire.Progress) for worker in gang.workers.values()]
    assert told[0].share > 0.6 and 0 < told[1].share < 0.4
    assert any(progress.straggler for progress in gang.workers["w1"].heard(wire.Progress))
    assert told[0].compute_s > 0 and told[0].spread > 0
    assert "shares follow the measured speed" in gang.log("w0") and "this worker is a straggler" in gang.log("w1")
    assert_same_result(train(make_gang(SMALL, params), 1), gang)


BUSY = """
import os, time
import torch
from torch import nn
import fairlead

class Slow(nn.Module):
    def forward(self, x):
        until = time.thread_time() + 0.002 * int(os.environ["SLOWNESS"])
        while time.thread_time() < until: pass
        return torch.tanh(x)

def training():
    x = torch.randn(240, 8)
    model = nn.Sequential(nn.Linear(8, 8), Slow(), nn.Linear(8, 8), Slow(), nn.Linear(8, 2))
    return fairlead.Training(model=model, data=(x, (x.sum(1) > 0).long()), loss=nn.CrossEntropyLoss(), batch_size=8,
                             epochs=2, optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
"""


@pytest.mark.parametrize(
    "plan",
    [Plan(data=2, sync="allreduce", sharded=True), Plan(tensor=2, splits=(("0", "column"), ("2", "row")))],
    ids=["fsdp", "tensor"],
)
def test_who_is_late_where_ranks_wait_within_the_pass_is_named(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    gang = make_gang(BUSY, {})
    for name, slowness in (("w0", "1"), ("w1", "30")):
        monkeypatch.setenv("SLOWNESS", slowness)
        gang.start(name)
    gang.ready("w0", "w1")
    gang.join("w0", "w1", plan=plan, silence_s=150.0)  # on a busy machine it takes a while until both have loaded all
    gang.finish()
    assert any(progress.straggler for progress in gang.workers["w1"].heard(wire.Progress))
    assert not any(progress.straggler for progress in gang.workers["w0"].heard(wire.Progress))
    assert gang.workers["w1"].last(wire.Progress).slow_s > 0 == gang.workers["w0"].last(wire.Progress).slow_s
    assert "this worker is a straggler" in gang.log("w1") and "this worker is a straggler" not in gang.log("w0")


def test_shares_follow_half_of_what_was_new_and_change_only_beyond_the_tolerance() -> None:
    balance = Balance((1.0, 1.0), 100)
    window = None
    while window is None:
        window = balance.record_step((0.1, 0.3))
    assert window.counts == (50, 50) and window.compute_s == (0.1, 0.3)
    assert window.spread == pytest.approx(1.0) and window.speed(0) == pytest.approx(500)
    assert balance.shares == pytest.approx((0.75, 0.25)) and balance.last is window
    window = None
    while window is None:
        window = balance.record_step((0.15, 0.05))  # as fast as each other by now: 500 samples a second
    assert window.counts == (75, 25)
    speeds = ((500 + 500) / 2, (50 / 0.3 + 500) / 2)
    assert balance.shares == pytest.approx((speeds[0] / sum(speeds), speeds[1] / sum(speeds)))
    before, window = balance.shares, None
    while window is None:
        window = balance.record_step((0.1, 0.1001))
    assert balance.shares == before, "so little is noise"


def test_a_window_is_as_many_steps_as_are_needed_and_as_long_as_is_needed() -> None:
    for step_s, steps in ((10.0, MIN_STEPS), (MIN_SECONDS / 100, 100)):
        balance = Balance((1.0, 1.0), 10)
        taken = 1
        while balance.record_step((step_s * 1.0001, step_s / 2)) is None:
            taken += 1
        assert taken == max(steps, MIN_STEPS)
    odd = Balance((1.0, 1.0), 10)
    windows = [odd.record_step((100.0 if at == 0 else 1.0, 1.0)) for at in range(MIN_STEPS)]
    assert windows[-1] is not None and windows[-1].compute_s == (1.0, 1.0), "one bad step does not count"


def test_who_had_samples_keeps_one_to_be_measured_again() -> None:
    assert shares_by_speed((1000.0, 0.001), 10) == pytest.approx((1 / 1.1, 0.1 / 1.1))
    assert shares_by_speed((3.0, 0.0, 1.0), 100) == pytest.approx((0.75, 0.0, 0.25))
    assert shares_by_speed((3.0, 1.0), 1) == pytest.approx((0.75, 0.25))
