"""What a class loses beside another is learned from its own speeds: alone against beside, over whole windows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead import wire
from fairlead.control.plans.interference import WINDOW_S, GangPlacement, InterferenceWatch

VICTIM = GangPlacement("v-1", "victim", 1, frozenset({"n"}), 1, since_s=-10.0)
LOUD = GangPlacement("l-1", "loud", 1, frozenset({"n"}), 1)


class Played:
    """A node on which gangs come and go, and steps are taken at given speeds."""

    def __init__(self) -> None:
        self.company, self.now_s, self.step = InterferenceWatch(), 100.0, 0.0

    def run(
        self, speed: float, *others: GangPlacement, for_s: float = 3 * WINDOW_S, gang: GangPlacement = VICTIM
    ) -> dict[tuple[str, str], float]:
        told: dict[tuple[str, str], float] = {}
        ends_s = self.now_s + for_s
        while self.now_s < ends_s:
            gangs = [gang, *others]
            self.company.set_placements(gangs, {one.job for one in gangs})
            self.company.record_progress(gang.job, wire.Progress(gang.generation, int(self.step), 10_000))
            told |= self.company.close_windows(self.now_s)
            self.now_s += 1.0
            self.step += speed
        return told


def test_what_is_lost_beside_another_is_found_and_what_is_not_lost_is_not() -> None:
    played = Played()
    assert played.run(10.0) == {}, "alone there is nothing to learn but the speed"
    assert played.run(5.0, LOUD)["victim", "loud"] == pytest.approx(0.5, abs=0.05)
    assert played.run(10.0, replace(LOUD, kind="calm"))["victim", "calm"] == pytest.approx(0.0, abs=0.05)
    assert played.company.table.keys() == {("victim", "loud"), ("victim", "calm")}


def test_nothing_is_learned_of_a_gang_that_was_never_alone_or_hardly_steps() -> None:
    played = Played()
    assert played.run(5.0, LOUD) == {}
    assert played.run(0.1) == {} and played.run(0.05, LOUD, for_s=WINDOW_S) == {}


def test_a_window_begins_anew_with_the_company_and_with_the_generation() -> None:
    played = Played()
    played.run(10.0)
    assert played.run(1.0, LOUD, for_s=WINDOW_S / 2) == {}, "too short to be believed"
    assert played.run(10.0, for_s=WINDOW_S / 2) == {}
    again = replace(VICTIM, generation=2, size=2)
    assert played.run(1.0, LOUD, gang=again) == {}, "alone it was never seen at this size"


def test_who_sits_on_other_nodes_is_no_neighbour() -> None:
    played = Played()
    played.run(10.0)
    assert played.run(5.0, replace(LOUD, nodes=frozenset({"m"}))) == {}


def test_a_job_that_is_gone_is_forgotten_but_not_what_was_learned() -> None:
    played = Played()
    played.run(10.0)
    played.run(5.0, LOUD)
    played.company.set_placements([], set())
    assert played.company.table["victim", "loud"] == pytest.approx(0.5, abs=0.05)
    assert played.run(2.0, LOUD) == {}, "its namesake has to be seen alone first"
