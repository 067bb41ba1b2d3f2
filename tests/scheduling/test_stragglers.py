"""A worker that stays far too slow moves to another node: one at a time, with a reason, and only to a better one."""

from __future__ import annotations

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.state import Resize
from tests.scheduling.clusters import by_job, job, nodes, state


def test_it_is_replaced_on_another_node_and_the_others_stay() -> None:
    moved = by_job(decide(state([job("j", workers=(2, 2), seats=("node-0", "node-1"), slow=("node-1",))])))["j"]
    assert isinstance(moved, Resize) and moved.reason.code == "straggler"
    assert moved.seats == ("node-0", "node-2") and "node-1" in moved.reason.text and "node-2" in moved.reason.text
    assert moved.reason.facts == {"leaves": "node-1", "takes": "node-2"}


def test_one_at_a_time_and_not_to_a_node_that_is_slow_as_well() -> None:
    seats = ("node-0", "node-1", "node-2")
    moved = by_job(decide(state([job("j", workers=(3, 3), seats=seats, slow=("node-2", "node-1"))])))["j"]
    assert isinstance(moved, Resize) and moved.seats == ("node-0", "node-1", "node-3")


def test_where_nothing_better_is_free_it_stays() -> None:
    other = job("x", "b", (2, 2), seats=("node-2", "node-3"))
    assert "j" not in by_job(
        decide(state([job("j", workers=(2, 2), seats=("node-0", "node-1"), slow=("node-1",)), other]))
    )
    pool = [*nodes(2), Node("slower", {DEVICE: 2}, speed=0.3)]
    only = job("j", workers=(2, 2), seats=("node-0", "node-1"), slow=("node-1",))
    assert "j" not in by_job(decide(state([only], nodes=pool)))


def test_a_gang_between_two_generations_and_a_command_are_left_alone() -> None:
    for changes in ({"frozen": True}, {"starts_over": True}):
        one = job("j", workers=(2, 2), seats=("node-0", "node-1"), slow=("node-1",), **changes)
        assert "j" not in by_job(decide(state([one])))
