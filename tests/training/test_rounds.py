"""Plans that take turns: every window of every one is told, and one that fails holds up nobody."""

from __future__ import annotations

from pathlib import Path

import torch

from fairlead.planning.plan import SINGLE, Plan
from fairlead.training import direct
from fairlead.training.measure import Place
from fairlead.training.rounds import Turns, take_turns
from tests.training.programs import SMALL


def test_plans_take_turns_and_one_that_cannot_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    two = Plan(data=2, sync="allreduce")
    bad = Plan(data=2, sync="local-sgd", period=2)
    single, together, refused = take_turns(
        Turns("train.py:training", [SINGLE, two, bad], rounds=2, window_s=0.01, folder=str(tmp_path))
    )
    assert single.error == together.error == "" and len(single.step_s) == len(together.step_s) == 2
    assert [len(ranks) for ranks in together.cpu_s] == [2, 2] and min(single.step_s) > 0
    for step_s, ranks in zip(together.step_s, together.cpu_s, strict=True):
        assert all(0 < cpu_s <= 4 * step_s + 0.01 for cpu_s in ranks), "of one step"
    assert "changes the maths" in refused.error and refused.step_s == []


def test_how_long_ranks_compute_is_told_and_shares_can_be_held(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    two = Plan(data=2, sync="allreduce", shares=(0.75, 0.25))
    asked = Turns(
        "train.py:training", [two, two], rounds=1, window_s=1.0, params={"samples": 48, "slow": 0.01}, held=[1],
        folder=str(tmp_path),
    )  # fmt: skip
    free, held = take_turns(asked)
    assert free.error == held.error == ""
    assert len(free.compute_s[0]) == 2 and min(free.compute_s[0]) >= 0.01 and sum(free.shares[0]) > 0.99
    assert held.shares[0] == [0.5, 0.5] or max(held.shares[0]) < 0.75


def test_a_worker_is_measured_while_another_trains_apart_from_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    asked = Turns(
        "train.py:training", [SINGLE, SINGLE], rounds=2, window_s=0.05, folder=str(tmp_path),
        params={"samples": 48, "slow": 0.01}, places=[Place(), Place()], accompanied=[1],
    )  # fmt: skip
    alone, beside = take_turns(asked)
    assert alone.error == beside.error == "" and len(alone.step_s) == len(beside.step_s) == 2


def test_small_sums_are_direct_and_come_to_the_same_bits_everywhere() -> None:
    mine, other = torch.randn(3, 5), torch.randn(3, 5)
    assert direct.suits(mine, 2) and not direct.suits(torch.ones(1 << 20), 2)
    assert not direct.suits(torch.ones(3, dtype=torch.int64), 2) and not direct.suits(mine.t(), 2)
    room, sent = direct.spread_out(mine, 2)
    assert room.shape == (2, 15) and torch.equal(sent[0], sent[1])
    room[0], room[1] = mine.flatten(), other.flatten()
    direct.add_up(room, mine)
    assert torch.equal(mine.flatten(), room[0] + room[1])
