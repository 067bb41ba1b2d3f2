"""From records to the scheduler's state and back to workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster import DEVICE, Member, Node
from fairlead.control.reconcile.cluster_state import (
    batch_shares,
    cluster_state,
    job_state,
    max_workers_now,
    rank_environment,
    restart_cost_s,
)
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.control.reconcile.seats import FreeDevices
from fairlead.control.reconcile.worker_specs import tenant_uid
from fairlead.control.records import GenerationPhase, JobPhase
from fairlead.home import Home
from fairlead.scheduling import decide
from fairlead.scheduling.state import Start
from tests.control import made

NODES = [Node(f"node-{n}", {"cpu": 1.0, DEVICE: 2.0}) for n in range(3)]


def joined(node: str, device: int = 0, generation: int = 1) -> WorkerFact:
    return WorkerFact(node, "joined", generation, device)


def test_a_running_gang_holds_the_seats_of_its_living_workers() -> None:
    live = [made.generation(("w0", "node-0"), ("w1", "node-1"))]
    state = job_state(made.job(), live, {"w0": joined("node-0"), "w1": joined("node-1")}, cooling=False)
    assert state.seats == ("node-0", "node-1")
    assert not state.frozen
    assert not state.broken


def test_a_gang_whose_workers_have_finished_is_left_alone() -> None:
    """Else a command that has just ended would be started a second time."""
    live = [made.generation(("w0", "node-0"))]
    gone = {"w0": WorkerFact("node-0", "finished", 1, 0, exited=True)}
    state = job_state(made.job(training=False, elastic=False), live, gone, cooling=False)
    assert state.frozen and state.seats == ("node-0",), "until it is stored how its job ended"
    over = made.job(phase=JobPhase.STOPPING, then=JobPhase.SUCCEEDED, training=False, elastic=False)
    assert job_state(over, live, gone, cooling=False).seats == ()


def test_the_seat_of_a_rank_that_ended_before_the_others_is_promised_to_nobody() -> None:
    """Else somebody is to start there in every round, and cannot: the device is given back with all others."""
    live = {"mlp-abc234": [made.generation(("w0", "node-0"), ("w1", "node-1"))]}
    facts = {"w0": WorkerFact("node-0", "finished", 1, 0, exited=True), "w1": joined("node-1")}
    state = job_state(made.job(training=False, elastic=False), live["mlp-abc234"], facts, cooling=False)
    assert state.seats == ("node-0", "node-1")
    node = Node("node-0", {"cpu": 1.0, DEVICE: 1.0})
    assert FreeDevices([node], {"mlp-abc234": facts}, live).place(["node-0"], (), 0) is None


def test_between_two_generations_it_is_left_alone_with_all_it_holds() -> None:
    planned = made.generation(
        ("w0", "node-0"), ("w1", "node-2"), number=2, running_s=None, phase=GenerationPhase.PLANNED
    )
    live = [made.generation(("w0", "node-0")), planned]
    state = job_state(made.job(), live, {"w0": joined("node-0")}, cooling=False)
    assert state.frozen
    assert state.seats == ("node-0", "node-2")


def test_the_seats_that_a_gang_gives_up_are_told_apart_from_those_it_keeps() -> None:
    workers = {"w0": joined("node-0"), "w1": joined("node-1")}
    planned = made.generation(
        ("w0", "node-0"), ("w2", "node-2"), number=2, running_s=None, phase=GenerationPhase.PLANNED
    )
    live = [made.generation(("w0", "node-0"), ("w1", "node-1")), planned]
    state = job_state(made.job(), live, workers, cooling=False)
    assert (state.seats, state.leaving) == (("node-0", "node-1", "node-2"), ("node-1",))
    stopping = job_state(made.job(phase=JobPhase.STOPPING), live[:1], workers, cooling=False)
    assert stopping.leaving == stopping.seats == ("node-0", "node-1")
    assert job_state(made.job(), live[:1], workers, cooling=False).leaving == ()
    departed = job_state(made.job(), [planned], {**workers, "w2": joined("node-2")}, cooling=False)
    assert (departed.seats, departed.leaving) == (("node-0", "node-1", "node-2"), ("node-1",))


@pytest.mark.parametrize("phase", ["left", "joined"])
def test_a_device_is_planned_for_nobody_before_the_worker_that_ended_on_it_is_released(phase: str) -> None:
    nodes = [Node(f"node-{n}", {"cpu": 1.0, DEVICE: 1.0}) for n in range(2)]
    ended = {"w0": WorkerFact("node-0", phase, 1, 0, exited=True)}
    stopping = made.job(phase=JobPhase.STOPPING, then=JobPhase.QUEUED)
    waiting = made.job(id="other-abc234", phase=JobPhase.QUEUED, max_workers=1)
    facts, live = {stopping.id: ended}, {stopping.id: [made.generation(("w0", "node-0"))]}
    state = cluster_state(200.0, nodes, [made.tenant("vision")], {}, [stopping, waiting], live, facts, frozenset(), {})
    (start,) = [decision for decision in decide(state).decisions if isinstance(decision, Start)]
    assert (start.job, start.seats) == (waiting.id, ("node-1",))
    assert FreeDevices(nodes, facts, live).place(start.seats, (), 0) is not None


@pytest.mark.parametrize(
    ("cause", "generation", "interrupted_s"),
    [("node-lost", 3, 120.0), ("killed", 3, 120.0), ("raised", 3, None), ("node-lost", 2, None)],
)
def test_a_waiting_job_is_interrupted_if_its_last_generation_was_lost_through_no_fault_of_its_own(
    cause: str, generation: int, interrupted_s: float | None
) -> None:
    death = {"worker": "w0", "generation": generation, "cause": cause, "time_s": 120.0, "answered": True}
    waiting = made.job(phase=JobPhase.QUEUED, generation=3, deaths=(death,))
    assert job_state(waiting, (), {}, cooling=False).interrupted_s == interrupted_s
    assert job_state(made.job(phase=JobPhase.QUEUED), (), {}, cooling=False).interrupted_s is None
    peer = {**death, "worker": "w1", "cause": "lost-touch", "time_s": 121.0}
    both = made.job(phase=JobPhase.QUEUED, generation=3, deaths=(death, peer))
    assert job_state(both, (), {}, cooling=False).interrupted_s == interrupted_s


def test_a_broken_gang_asks_for_a_decision_with_its_survivors() -> None:
    live = [made.generation(("w0", "node-0"), ("w1", "node-1"), broken_s=120.0)]
    state = job_state(made.job(), live, {"w0": WorkerFact("node-0", "broken", 1)}, cooling=False)
    assert state.broken
    assert not state.frozen
    assert state.seats == ("node-0",)


def test_a_waiting_job_holds_nothing_and_knows_what_is_left_to_do() -> None:
    waiting = made.job(phase=JobPhase.QUEUED, step=10, total_steps=30, batch_size=64)
    state = job_state(waiting, [], {}, cooling=False)
    assert (state.seats, state.frozen, state.remaining_samples) == ((), False, 20 * 64)


def test_a_training_that_is_over_in_a_moment_does_not_grow() -> None:
    seen = made.job(min_workers=1, max_workers=4, step=5, samples_per_s=1000.0)
    assert max_workers_now(seen, None, 100_000.0, 1) == 4
    assert max_workers_now(seen, None, 2000.0, 1) == 1, "over in two seconds"
    assert max_workers_now(seen, None, 2000.0, 3) == 3, "nor is it disturbed"
    assert max_workers_now(replace(seen, step=0, samples_per_s=0.0), None, 2000.0, 0) == 4, "nothing is known yet"
    assert max_workers_now(replace(seen, training=False), None, 2000.0, 1) == 4, "nothing is seen of a command"


@pytest.mark.parametrize(
    ("training", "number", "cost_s"), [(True, 1, 1.0), (True, 2, 4.0), (False, 1, 4.0)], ids=["cold", "warm", "command"]
)
def test_what_a_restart_costs_is_what_the_last_one_took(training: bool, number: int, cost_s: float) -> None:
    """But the first start of a training is cold: later its survivors only meet again. A command always starts over."""
    live = [made.generation(("w0", "node-0"), number=number, created_s=100.0, running_s=104.0)]
    state = job_state(made.job(training=training), live, {"w0": joined("node-0", generation=number)}, cooling=False)
    assert (state.restart_cost_s, state.starts_over) == (cost_s, not training)


@pytest.mark.parametrize(("took_s", "cost_s"), [(0.01, 0.5), (0.5, 0.5), (0.6, 0.6), (299.0, 299.0), (4000.0, 300.0)])
def test_what_a_restart_costs_is_bounded(took_s: float, cost_s: float) -> None:
    newest = made.generation(("w0", "node-0"), number=2, created_s=100.0, running_s=100.0 + took_s)
    assert restart_cost_s(made.job(), newest) == pytest.approx(cost_s)


def test_survivors_keep_their_device_and_newcomers_get_free_ones() -> None:
    facts = {"mlp-abc234": {"w0": joined("node-0", 1)}, "other": {"w0": joined("node-0", 0)}}
    devices = FreeDevices(NODES, facts, {})
    placed = devices.place(["node-0", "node-1"], (Member("w0", 0, "node-0", 1),), next_worker=3)
    assert placed == ((Member("w0", 0, "node-0", 1), Member("w3", 1, "node-1", 0)), 4)


def test_a_seat_whose_device_is_not_free_yet_waits() -> None:
    facts = {"other": {"w0": joined("node-0", 0), "w1": WorkerFact("node-0", "left", 1, 1, exited=True)}}
    devices = FreeDevices(NODES, facts, {})
    assert devices.place(["node-0"], (), next_worker=0) is None
    assert devices.place(["node-1"], (), next_worker=0) is not None, "a refusal takes nothing"


def test_the_device_of_a_lost_worker_is_free_once_it_is_released() -> None:
    """A gang that may not shrink, on nodes that are full without it, could never be mended otherwise."""
    nodes = [Node(f"node-{n}", {"cpu": 1.0, DEVICE: 1.0}) for n in range(2)]
    broken = made.generation(("w0", "node-0"), ("w1", "node-1"), broken_s=150.0)
    facts = {"mlp-abc234": {"w0": joined("node-0")}}
    devices = FreeDevices(nodes, facts, {"mlp-abc234": [broken]})
    placed = devices.place(["node-0", "node-1"], (Member("w0", 0, "node-0", 0),), next_worker=2)
    assert placed is not None and placed[0][1] == Member("w2", 1, "node-1", 0)
    unreserved = replace(broken, broken_s=None)
    assert FreeDevices(nodes, facts, {"mlp-abc234": [unreserved]}).place(["node-1"], (), next_worker=2) is None


def test_two_decisions_of_one_round_never_get_the_same_device() -> None:
    devices = FreeDevices(NODES, {}, {})
    first, second = (devices.place(["node-0"], (), next_worker=0) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first[0][0].device != second[0][0].device
    assert devices.place(["node-0"], (), next_worker=0) is None


def test_fast_devices_get_more_of_the_batch() -> None:
    members = (Member("w0", 0, "fast", 0), Member("w1", 1, "slow", 0))
    nodes = {"fast": Node("fast", {}, speed=1.0), "slow": Node("slow", {}, speed=0.25)}
    assert batch_shares(members, nodes) == pytest.approx([0.8, 0.2])
    assert batch_shares(members[:1], nodes) == [], "alike: equal parts"


def test_commands_get_the_variables_that_torchrun_users_know() -> None:
    members = (Member("w0", 0, "a", 0), Member("w1", 1, "a", 1), Member("w2", 2, "b", 0))
    environment = rank_environment(members, Rendezvous("generation-1", 29500))
    assert environment["w1"] == {
        "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert (environment["w2"]["LOCAL_RANK"], environment["w2"]["GROUP_RANK"]) == ("0", "1")


def test_tenants_of_platforms_side_by_side_are_different_users() -> None:
    users = {tenant_uid(Home(Path(f"/srv/platform-{p}")), number) for p in range(5) for number in range(20)}
    assert len(users) == 100
    assert all(1_000_000 <= user < 2**31 for user in users)


def test_where_a_job_may_run_and_would_rather_run_reaches_the_scheduler() -> None:
    state = job_state(made.job(facts={"only": ["eu"], "near": ["rack-1"]}), (), {}, cooling=False)
    assert (state.only, state.near) == ({"eu"}, {"rack-1"})


def test_workers_of_a_gang_get_devices_of_one_numa_domain() -> None:
    node = Node("n", {DEVICE: 8.0}, numa=(4, 4))
    held = {"other": {f"w{at}": joined("n", at) for at in range(2)}}
    placed = FreeDevices([node], held, {}).place(("n", "n", "n"), (), 0)
    assert placed is not None
    assert [member.device for member in placed[0]] == [4, 5, 6]


def test_who_has_finished_gives_its_seat_away_once_it_is_stored_how_its_job_ended() -> None:
    live = [made.generation(("w0", "node-0"))]
    finished = {"w0": WorkerFact("node-0", "finished", 1, 0)}
    over = made.job(phase=JobPhase.STOPPING, then=JobPhase.SUCCEEDED)
    assert job_state(over, live, finished, cooling=False).seats == ()
    assert job_state(over, live, {"w0": joined("node-0")}, cooling=False).seats == ("node-0",), "it is still at work"
    for other in (made.job(), made.job(phase=JobPhase.STOPPING, then=JobPhase.QUEUED)):
        assert job_state(other, live, finished, cooling=False).seats == ("node-0",)


def test_the_device_of_one_that_has_finished_is_the_next_ones() -> None:
    node = Node("node-0", {"cpu": 1.0, DEVICE: 1.0})
    facts = {"mlp-abc234": {"w0": WorkerFact("node-0", "finished", 1, 0)}}
    live = {"mlp-abc234": [made.generation(("w0", "node-0"))]}
    assert FreeDevices([node], facts, live).place(["node-0"], (), 0) is None
    placed = FreeDevices([node], facts, live, over={"mlp-abc234"}).place(["node-0"], (), 0)
    assert placed is not None
    assert [(m.node, m.device) for m in placed[0]] == [("node-0", 0)]
