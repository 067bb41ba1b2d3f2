"""A training that is preempted, killed and spread anew goes on exactly: what differs at the end is rounding alone."""

from __future__ import annotations

import pytest

from fairlead import wire
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

STEPS = {"layers": "both", "epochs": 32}  # 5 steps an epoch
SINGLE = SMALL.replace("nn.Linear(8, 3)).double()", "nn.Linear(8, 3))").replace("torch.float64", "torch.float32")
KINKED = SINGLE.replace("nn.Tanh()", "nn.ReLU()")
"""As people write it: in float32, with a function that turns rounding into other gradients."""


def preempted(gang: Gang) -> None:
    """All of its workers write a snapshot and end."""
    gang.leave(snapshot=True)
    gang.finish()


def began(gang: Gang, *names: str, shares: list[float] | None = None) -> None:
    """A generation of these workers, of which those that are not there yet are started."""
    fresh = [name for name in names if name not in gang.workers]
    gang.start(*fresh)
    gang.ready(*fresh)
    gang.join(*names, shares=shares)


def killed(gang: Gang, lost: str) -> None:
    """In the midst of a step, and the others say so."""
    gang.kill(lost)
    rest = [name for name in gang.members if name != lost]
    gang.until(lambda: all(gang.said(name, wire.Broken) for name in rest), "the survivors said Broken")


@pytest.mark.parametrize("layers", ["plain", "both"])
def test_three_two_one_and_two_workers_with_kills_and_preemptions_give_the_curve_of_one(
    make_gang: MakeGang, layers: str
) -> None:
    """Step by step, in float64: what is lost anywhere on the way would show in the fourth digit, not in the tenth."""
    params = STEPS | {"layers": layers}
    gang = make_gang(SMALL, params | {"slow": 0.01})
    began(gang, "a", "b", "c", shares=[0.5, 0.2, 0.3])
    gang.reach(12)
    killed(gang, "a")
    gang.join("c", "b")
    gang.reach(36)
    preempted(gang)
    began(gang, "d", "e")
    gang.reach(50)
    gang.leave()
    gang.join("e")  # one works, the other rests and knows less and less
    gang.reach(65)
    gang.leave()
    gang.join("d", "e", shares=[0.7, 0.3])
    gang.reach(80)
    preempted(gang)
    began(gang, "f", "g")
    gang.reach(94)
    killed(gang, "g")
    began(gang, "h", "f")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, params), 1), gang, 1e-9)


EVEN = [[0, 2, "replicas", [0.5, 0.5]]]
"""Shares that follow no clock: sums of floating-point numbers depend on how they are parted."""


@pytest.mark.parametrize("layers", ["plain", "both"])
def test_in_the_same_parts_the_result_is_the_same_bit_by_bit_whatever_happened(
    make_gang: MakeGang, layers: str
) -> None:
    """In float32 with a kink: one lost digit of weights, moments, statistics or data order would be seen."""
    params = STEPS | {"layers": layers}
    calm, gang = make_gang(KINKED, params), make_gang(KINKED, params | {"slow": 0.01})
    calm.course = gang.course = EVEN
    began(gang, "a", "b")
    gang.reach(12)
    killed(gang, "a")
    began(gang, "c", "b")  # the newcomer has the first rank
    gang.reach(36)
    preempted(gang)
    began(gang, "d", "e")
    gang.reach(60)
    killed(gang, "e")
    began(gang, "d", "f")
    gang.reach(84)
    preempted(gang)
    began(gang, "g", "h")
    gang.finish()
    began(calm, "a", "b")
    calm.finish()
    assert_same_result(calm, gang, 0.0)


def test_one_worker_that_is_killed_and_preempted_gives_the_same_bit_by_bit(make_gang: MakeGang) -> None:
    calm, gang = make_gang(KINKED, STEPS), make_gang(KINKED, STEPS | {"slow": 0.02})
    began(gang, "a")
    gang.until(lambda: bool(gang.workers["a"].heard(wire.Snapshot)), "a snapshot was written")
    gang.kill("a")
    gang.until(lambda: gang.workers["a"].code is not None, "it is gone")
    began(gang, "b")
    assert gang.workers["b"].last(wire.Joined).step > 0
    gang.reach(gang.workers["b"].last(wire.Joined).step + 20)
    preempted(gang)
    began(gang, "c")
    gang.finish()
    assert_same_result(train(calm, 1), gang, 0.0)
