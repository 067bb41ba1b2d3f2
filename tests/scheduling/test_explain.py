"""What people are told: why a job waits, what would help, whether it could ever run, and a dry run of it."""

from __future__ import annotations

import pytest
from hypothesis import given

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling import can_never_run, decide, dry_run, explain
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.state import ClusterState, Hold, JobState, Start, TenantState

from .clusters import by_job, clusters, few, job, nodes, state

POOL = [Node("c", {DEVICE: 2, "cpu": 2.0, "memory": 4e9}), Node("g", {DEVICE: 2, "memory": 8e9}, device_type="a100")]


@pytest.mark.parametrize(
    ("asked", "quota", "field", "text", "fix"),
    [
        (job("j", workers=(3, 8)), None, "workers.min", "3 is more than the 2 devices of type a100 that", "add nodes"),
        (job("j", workers=(3, 3), device_type="a100"), None, "workers.min", "2 devices of type a100", "drop resources"),
        (job("j", device_type="h100"), None, "resources.device", "no node has devices of type h100", "a100, cpu"),
        (job("j", demand={"memory": 9e9}), None, "resources.memory", "9.0GB per worker is more than", "at most 8.0GB"),
        (job("j", demand={"cpu": 4.0}), None, "resources.cpu", "4 cpu per worker", "at most 2 cpu"),
        (job("j", demand={"gpu": 1.0}), None, "resources.gpu", "no node has any gpu", "drop resources.gpu"),
        (job("j", workers=(3, 3), demand={"memory": 4e9}, device_type="cpu"), None, "workers.min",
         "the 1 worker that would fit", "less per worker"),
        (job("j", workers=(3, 4)), 2, "workers.min", "quota of 2 devices", "larger quota"),
    ],
)  # fmt: skip
def test_what_the_cluster_can_never_give_is_named_with_field_value_and_fix(
    asked: JobState, quota: int | None, field: str, text: str, fix: str
) -> None:
    verdict = can_never_run(asked, POOL, quota)
    assert verdict is not None
    values = {"workers.min": asked.min_workers, "resources.device": asked.device_type}
    assert verdict.field == field
    assert verdict.value == values.get(field, asked.demand.get(field.removeprefix("resources.")))
    assert text in verdict.text and fix in verdict.fix


def test_lost_nodes_count_as_they_may_return() -> None:
    lost = [Node(n.name, n.capacity, state=NodeState.LOST) for n in nodes(4)]
    assert can_never_run(job("j", workers=(4, 4)), lost) is None
    assert can_never_run(job("j", workers=(5, 5)), lost) is not None


def test_a_range_that_fits_at_its_minimum_is_possible() -> None:
    assert can_never_run(job("j", workers=(1, 100)), POOL) is None


@few
@given(clusters(healthy=True))
def test_what_is_called_impossible_never_starts_and_the_rest_could_on_an_empty_cluster(before: ClusterState) -> None:
    for one in before.jobs:
        if not one.seats:
            alone = ClusterState(before.now_s, before.nodes, [TenantState(one.tenant)], [one])
            starts = isinstance(by_job(decide(alone))[one.id], Start)
            assert starts == (can_never_run(one, before.nodes) is None)


def test_why_a_job_waits_is_answered_with_what_would_help() -> None:
    everywhere = tuple(f"node-{i}" for i in range(4))
    full = job("full", "b", (4, 4), seats=everywhere, speeds={4: 1.0}, remaining_samples=60.0, frozen=True)
    answer = explain(state([full, job("j", workers=(2, 2))]), "j")
    assert answer is not None and isinstance(answer.decision, Hold)
    assert answer.headline.startswith("waits: needs 2 devices, 0 free")
    assert answer.expected_start_s == 160.0
    assert any("2 devices more" in hint for hint in answer.would_help)
    assert any("lower workers.min" in hint for hint in answer.would_help)


def test_why_names_the_nodes_that_are_missing() -> None:
    pool = [*nodes(1), Node("gone", {DEVICE: 4}, state=NodeState.LOST)]
    answer = explain(state([job("j", workers=(2, 2))], nodes=pool), "j")
    assert answer is not None and "bring back gone" in answer.would_help


def test_why_names_the_quota() -> None:
    owner = [TenantState("a", quota=1)]
    answer = explain(state([job("run", seats=("node-0",)), job("j")], tenants=owner), "j")
    assert answer is not None and "raise its quota (now 1)" in answer.would_help


def test_why_names_the_limit_by_type_also_of_a_job_that_any_type_would_do_for() -> None:
    pool, run = [Node("n", {DEVICE: 8}, device_type="v100")], job("run", workers=(2, 2), seats=("n", "n"))
    lidded = [TenantState("a", most={"v100": 2.0})]
    answer = explain(state([run, job("j")], nodes=pool, tenants=lidded), "j")
    assert answer is not None and answer.reason is not None and answer.reason.code == "quota"
    assert "has reached its limit of v100 devices" in answer.headline
    assert answer.expected_start_s is None and not any("device more" in hint for hint in answer.would_help)


def test_devices_of_a_type_that_a_limit_keeps_from_it_are_not_called_free() -> None:
    """There are six of the one type, which it may not have, and none of the other, which it may."""
    pool = [Node("n", {DEVICE: 8}, device_type="v100"), Node("k", {DEVICE: 1}, device_type="k80")]
    busy = [job("run", workers=(2, 2), seats=("n", "n"), since_s=90.0), job("old", "b", seats=("k",), frozen=True)]
    lidded = [TenantState("a", most={"v100": 2.0}), TenantState("b")]
    answer = explain(state([*busy, job("j")], nodes=pool, tenants=lidded), "j")
    assert answer is not None and answer.reason is not None
    assert (answer.reason.code, answer.reason.facts["free"]) == ("no-room", 0)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"demand": {"memory": 30e9}}, "lower resources.memory (now 30.0GB per worker)"),
        ({"demand": {"cpu": 4.0}}, "lower resources.cpu (now 4 cpu per worker)"),
        ({"only": frozenset({"z"})}, "drop placement.only (now z)"),
    ],
)
def test_why_names_what_the_job_asks_for_when_devices_are_free(asked: dict[str, object], hint: str) -> None:
    pool = [Node("n", {DEVICE: 8, "memory": 64e9, "cpu": 8.0}),
            Node("m", {DEVICE: 1, "memory": 1e9, "cpu": 1.0}, topology=("z", "m"))]  # fmt: skip
    busy = [job("run", demand={"memory": 60e9, "cpu": 6.0}, seats=("n",)), job("far", seats=("m",), frozen=True)]
    answer = explain(state([*busy, job("j", **asked)], nodes=pool), "j")  # type: ignore[arg-type]
    assert answer is not None and isinstance(answer.decision, Hold)
    assert hint in answer.would_help
    assert not any("device more" in one for one in answer.would_help)


def test_why_of_jobs_that_run_settle_or_are_unknown() -> None:
    running = explain(state([job("j", seats=("node-1",))]), "j")
    frozen = explain(state([job("j", seats=("node-1",), frozen=True)]), "j")
    assert running is not None and running.headline == "runs with 1 worker on node-1"
    assert frozen is not None and "is changing its generation" in frozen.headline
    assert explain(state([]), "nobody") is None


def test_a_dry_run_says_where_a_job_would_start_without_changing_anything() -> None:
    before = state([job("run", seats=("node-0",))])
    decision = dry_run(before, job("new", "b"))
    assert isinstance(decision, Start) and decision.seats == ("node-1",)
    assert isinstance(dry_run(before, job("new", "b", (4, 4))), Hold)
    assert [one.id for one in before.jobs] == ["run"]


FOUR = ("node-0", "node-1", "node-2", "node-3")
HELD = [job("long", "b", (2, 2)), job("x", "b", seats=FOUR[:1], frozen=True, leaving=FOUR[:1]),
        job("y", "a", seats=FOUR[2:3], frozen=True)]  # fmt: skip
CPU = {"cpu": 1.0}


@pytest.mark.parametrize(
    ("gang", "others", "code", "text"),
    [
        (job("j", workers=(1, 4), seats=FOUR[:1], speeds={1: 100.0, 2: 80.0}), [], "measured-slower",
         "it was measured slower with 2 workers (80 samples/s) than with 1 (100)"),
        (job("j", workers=(1, 4), seats=FOUR[:1], speeds={1: 100.0}, remaining_samples=150.0), [], "no-payback",
         "would not pay back: one more worker would save about 0.7 s of the time left, and must save 2 times the"),
        (job("j", "q", workers=(1, 4), seats=FOUR[:2]), [], "quota", "tenant q uses 2 of its quota of 2 devices"),
        (job("j", workers=(1, 4), seats=FOUR[:1], elastic=False), [], "not-elastic", "keeps the size it started with"),
        (job("j", workers=(1, 8), seats=FOUR), [], "no-such-room", "no more than 4 workers of its kind fit"),
        (job("j", workers=(1, 4), seats=FOUR[1:]), [job("x", "b", seats=FOUR[:1])], "no-free-device", "no device is"),
        (job("j", workers=(1, 2), seats=FOUR[1:2]), HELD, "held-for-others", "1 device idle, but reserved for jobs"),
        (job("j", workers=(1, 2), seats=FOUR[1:2], since_s=98.0), HELD, "settling",
         "it changed size 2 s ago; next change in 58 s at the earliest"),
        (job("j", workers=(1, 2), seats=FOUR[1:2], since_s=40.0), HELD, "held-for-others", "ahead of it"),
    ],
)  # fmt: skip
def test_why_says_what_keeps_a_running_gang_from_growing(
    gang: JobState, others: list[JobState], code: str, text: str
) -> None:
    owners = [TenantState("a"), TenantState("b"), TenantState("q", quota=2)]
    answer = explain(state([gang, *others], tenants=owners), "j")
    assert answer is not None and answer.decision is None and answer.reason is not None
    assert answer.reason.code == code
    assert (
        answer.headline.startswith(f"runs with {len(gang.seats)} worker")
        and f"does not grow: {answer.reason.text}" in answer.headline
    )
    assert text in answer.headline
    assert bool(answer.would_help) == (code == "quota")


def test_why_says_that_the_idle_devices_do_not_fit() -> None:
    pool = [Node("full", {DEVICE: 2, "cpu": 2.0}), Node("idle", {DEVICE: 2, "cpu": 2.0})]
    hog = job("hog", "b", seats=("idle",), demand={"cpu": 2.0})
    answer = explain(state([job("j", workers=(1, 4), seats=("full", "full"), demand=CPU), hog], nodes=pool), "j")
    assert answer is not None and answer.reason is not None and answer.reason.code == "no-fitting-device"
    assert "1 device idle, but none fits: another worker needs 1 device with 1 cpu" in answer.headline


def test_a_gang_with_all_it_asked_for_needs_no_excuse() -> None:
    answer = explain(state([job("j", workers=(1, 2), seats=FOUR[:2])]), "j")
    assert (
        answer is not None and answer.headline == "runs with 2 workers on node-0 and node-1" and answer.reason is None
    )


@few
@given(clusters())
def test_every_gang_that_could_be_larger_and_stays_is_told_why(before: ClusterState) -> None:
    round_ = live_round(before)
    for one in before.jobs:
        answer = round_.reasons.get(one.id)
        assert answer is not None
        if one.seats and answer.decision is None and not one.frozen:
            assert (answer.reason is None) == (len(one.seats) >= one.max_workers)


def priority_suggested(*others: JobState) -> bool:
    full = job("full", "b", (4, 4), seats=FOUR, frozen=True)
    answer = explain(state([full, *others, job("j", workers=(2, 2), submitted_s=50.0)]), "j")
    assert answer is not None and isinstance(answer.decision, Hold)
    return any("higher priority" in hint for hint in answer.would_help)


def test_a_higher_priority_is_suggested_only_where_the_tenant_has_another_job_ahead() -> None:
    assert not priority_suggested()
    assert not priority_suggested(job("stranger", "c", submitted_s=0.0))
    assert not priority_suggested(job("later", "a", (2, 2), submitted_s=60.0))
    assert priority_suggested(job("sibling", "a", submitted_s=0.0))
