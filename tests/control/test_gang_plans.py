"""Plans of the platform's gangs: profiles checked, hardware described, plans reviewed, curves drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fairlead import wire
from fairlead.cluster import Member, Node
from fairlead.control.observability.job_metrics import JobCounts
from fairlead.control.observability.live_metrics import REGISTRY
from fairlead.control.plans import model_profiles
from fairlead.control.plans.gang_hardware import Machine, gang_hardware
from fairlead.control.plans.gang_plans import Plans
from fairlead.control.plans.model_profiles import (
    MOST_LAYERS,
    ban_plan,
    check_profile,
    model_fact,
    model_key,
    store_profile,
)
from fairlead.control.plans.plan_questions import ChosenPlan
from fairlead.control.plans.planner_process import InlinePlanner
from fairlead.control.plans.replanning import ENOUGH_S, LONG_S, LearnedModel, measured_step_s, review, unpredicted_plan
from fairlead.control.plans.speed_curves import CalibratedCurve, in_worker_units
from fairlead.control.reconcile.cluster_state import all_members_train, cluster_state
from fairlead.control.reconcile.gang_state_machine import (
    GangView,
    MarkRunning,
    StopWorkers,
    TellJoin,
    WorkerFact,
    next_action,
)
from fairlead.control.reconcile.next_generation import with_plan
from fairlead.control.reconcile.worker_events import record_failure
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, KnownModel
from fairlead.control.store import events, generations, jobs, known_models
from fairlead.errors import Refused
from fairlead.planning.cost import estimate
from fairlead.planning.plan import Plan
from fairlead.planning.plan_choice import replica_plan
from fairlead.planning.profiles import Calibration, ModelProfile, model_from, to_plain
from fairlead.planning.topology import Topology
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import Resize
from fairlead.specs import parse_job
from tests.control import made
from tests.control.stores import Clock, Opened, a_job, run, submit
from tests.planning import made as planning

TIMED = Calibration(device="cpu", fixed_s=1e-4, sample_s=2e-6, optimizer_s=1e-4)
TINY = planning.model(3, batch=64, flops=1e4, parameters=2_000, calibration=TIMED)
HEAVY = planning.model(6, batch=64, calibration=Calibration(device="cpu", fixed_s=0.0, sample_s=0.05, optimizer_s=1e-3))


def nodes(count: int = 2, cpu: float = 1.0, kind: str = "cpu") -> list[Node]:
    room = {"cpu": cpu, "memory": 8e9, "device": 1.0}
    return [Node(f"node-{at}", room, kind, 1.0, ("here", f"node-{at}")) for at in range(count)]


def known_model(profile: ModelProfile | None, **changes: Any) -> KnownModel:
    plain_values = None if profile is None else to_plain(profile)
    return replace(KnownModel("vision", "key", plain_values, "", {}, {}, 0.0), **changes)


# ---------------------------------------------------------------- what workers say


def test_a_profile_comes_through_as_it_was_sent() -> None:
    assert check_profile(wire.Profiled(to_plain(TINY))) == TINY
    assert check_profile(wire.Profiled(why_not="it draws")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": []},
        {"layers": [to_plain(TINY)["layers"][0]] * (MOST_LAYERS + 1)},
        {"layers": [{"name": "x" * (model_profiles.MOST_BYTES + 1)}]},
        {"layers": [{"name": "a", "flops": math.inf}]},
        {"layers": [{"name": "a", "flops": math.nan}]},
        {"layers": [{"name": "a", "parameters": -1}]},
        {"layers": [{"name": 7}]},
        {"layers": "many"},
        {"batch_size": 0},
        {"tensor_limit": 0},
        {"calibration": {"device": "cpu", "fixed_s": -1.0, "sample_s": 1.0, "optimizer_s": 1.0}},
    ],
)
def test_a_profile_that_no_honest_worker_would_send_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"profile|number"):
        check_profile(wire.Profiled(to_plain(TINY) | wrong))


def test_the_same_code_and_parameters_are_the_same_model() -> None:
    spec = {"name": "a", "run": "t.py:f", "code": "sha256:" + "a" * 64, "params": {"x": 1, "y": 2}}
    first, again = parse_job(spec), parse_job(spec | {"name": "b", "params": {"y": 2, "x": 1}, "workers": 4})
    assert model_fact(first) == model_fact(again) != model_fact(parse_job(spec | {"params": {"x": 2, "y": 2}}))
    assert model_fact(parse_job({"name": "a", "command": ["true"]})) == {}
    assert model_key(made.job(facts=model_fact(first))) == model_fact(first)["model"]
    assert model_key(made.job()) == "mlp-abc234"


def test_what_is_known_of_a_model_outlasts_its_job(db: Opened, clock: Clock) -> None:
    job = submit(db, a_job("vision"))
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 5.0)
    db.write(known_models.update, "vision", model_key(job), seen={"dp": 2.0})
    db.write(store_profile, job, wire.Profiled(to_plain(HEAVY)), 6.0)  # said again, it changes nothing
    known = db.read(known_models.get, "vision", model_key(job))
    assert known is not None
    assert (model_from(known.profile or {}), known.seen) == (TINY, {"dp": 2.0})
    assert db.read(known_models.get, "text", model_key(job)) is None  # another tenant's is another model
    assert db.read(known_models.keys) == {("vision", model_key(job))}


def test_only_so_many_models_of_a_tenant_are_kept(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_models, "MAX_MODELS", 3)
    for at in range(6):
        db.write(known_models.put, known_model(TINY, key=f"m{at}", created_s=float(at)))
    db.write(known_models.put, known_model(TINY, tenant="text", key="m0"))
    assert db.read(known_models.keys) == {("vision", "m3"), ("vision", "m4"), ("vision", "m5"), ("text", "m0")}


def test_a_plan_that_a_gang_failed_under_is_banned_and_plain_replicas_never_are(db: Opened) -> None:
    job = submit(db, a_job("vision"))
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 5.0)
    told = unpredicted_plan(Plan(data=2, sync="allreduce", sharded=True), "", "planner")
    first = made.generation(("w0", "n"), ("w1", "n"), job=job.id, plan=told)
    db.write(generations.insert, first)
    assert db.write(ban_plan, job, "it broke") == "fsdp2"
    known = db.read(known_models.get, "vision", model_key(job))
    assert known is not None
    assert known.banned == {"fsdp": "it broke"}
    for other in (unpredicted_plan(replica_plan(2), "", "planner"), {**told, "chosen": "asked"}, None):
        db.write(generations.update, job.id, 1, plan=other)
        assert db.write(ban_plan, job, "it broke") is None


# ---------------------------------------------------------------- reviewing


def running(plan: Any = None, **changes: Any) -> Generation:
    values: dict[str, Any] = {"running_s": 0.0, "first_step": 1, "plan": plan} | changes
    return made.generation(("w0", "node-0"), ("w1", "node-1"), **values)


def looked_at(job: Job, generation: Generation, model: ModelProfile, now_s: float, **seen: float) -> Any:
    ground = gang_hardware(nodes(), {}, Machine())
    assert ground is not None
    return review(job, generation, LearnedModel(model, seen, {}), ground, now_s, sure=True, restart_s=1.0)


def trained(steps: int, total: int = 100_000) -> Job:
    return made.job(step=steps, total_steps=total, batch_size=64)


def test_a_gang_that_began_unknown_is_given_its_prediction_afterwards() -> None:
    found = looked_at(trained(1), running(), TINY, 1.0)
    assert found.plan["id"] == "dp2"
    assert found.plan["step_s"] > 0
    assert (found.seen, found.better) == (None, None)
    again = looked_at(trained(1), running(found.plan), TINY, 1.0)
    assert again.plan is None  # nothing new


def test_a_small_model_on_two_workers_is_better_off_on_one() -> None:
    found = looked_at(trained(10_000, total=10_000_000), running(), TINY, 20.0)
    assert found.step_s == pytest.approx(0.002)
    assert set(found.seen) == {"dp"}
    assert found.better.plan.workers_used == 1


def test_what_works_is_left_alone_when_little_is_left_to_do() -> None:
    assert looked_at(trained(10_000, total=10_100), running(), TINY, 20.0).better is None


def test_a_heavy_model_stays_on_both() -> None:
    assert looked_at(trained(50), running(), HEAVY, 100.0).better is None


def test_it_is_measured_again_only_after_twice_the_time() -> None:
    first = looked_at(trained(1000), running(), HEAVY, 20.0)
    assert first.plan["measured_after_s"] == 20.0
    assert looked_at(trained(1500), running(first.plan), HEAVY, 30.0).plan is None
    assert looked_at(trained(2000), running(first.plan), HEAVY, 41.0).plan["measured_after_s"] == 41.0


def test_a_prediction_that_is_far_off_for_long_is_told_once() -> None:
    early = looked_at(trained(1000), running(), HEAVY, LONG_S - 1)
    late = looked_at(trained(1000), running(), HEAVY, LONG_S)
    assert early.disagrees is None
    assert late.disagrees == pytest.approx(late.step_s / late.plan["step_s"])
    assert looked_at(trained(9000), running({**late.plan, "doubted": True}), HEAVY, 500.0).disagrees is None


@pytest.mark.parametrize("changes", [{"phase": GenerationPhase.JOINING}, {"broken_s": 3.0}, {"first_step": None}])
def test_a_gang_that_does_not_train_teaches_nothing(changes: dict[str, Any]) -> None:
    assert measured_step_s(trained(500), running(**changes), 100.0) is None
    assert measured_step_s(trained(500), running(), ENOUGH_S - 1) is None
    assert measured_step_s(trained(3), running(), 100.0) is None


# ---------------------------------------------------------------- those who rest


def test_a_gang_runs_when_all_that_its_plan_uses_have_joined() -> None:
    generation = running(unpredicted_plan(Plan(members=(0,)), "", "planner"), phase=GenerationPhase.JOINING)
    assert [member.worker for member in generation.at_work] == ["w0"]
    allow_idle = WorkerFact("node-1", "ready", device=0)

    def view(first: WorkerFact, told: frozenset[str] = frozenset()) -> GangView:
        job, here = made.job(phase=JobPhase.STARTING), frozenset({"node-0", "node-1"})
        return GangView(job, [generation], {"w0": first, "w1": allow_idle}, told, 10.0, here)

    assert isinstance(next_action(view(WorkerFact("node-0", "ready"))), TellJoin)
    assert next_action(view(WorkerFact("node-0", "ready"), frozenset({"join:1"}))) is None
    joined = WorkerFact("node-0", "joined", generation=1)
    assert isinstance(next_action(view(joined)), MarkRunning)
    assert all_members_train(replace(generation, phase=GenerationPhase.RUNNING), {"w0": joined, "w1": allow_idle})


# ---------------------------------------------------------------- all of it on a store


def placed(db: Opened, profile: ModelProfile | None, **changes: Any) -> tuple[Plans, Job]:
    job = submit(db, a_job("vision"))
    if profile is not None:
        db.write(store_profile, job, wire.Profiled(to_plain(profile)), 0.0)
    values = {"phase": JobPhase.RUNNING, "generation": 1, "step": 10_000, "total_steps": 10_000_000}
    values |= {"batch_size": 64, "demand": {}}
    values |= changes
    db.write(jobs.update, job.id, **values)
    job = replace(job, **values)
    db.write(generations.insert, running(job=job.id, created_s=0.0))
    there = {node.name: node for node in nodes()}
    return Plans(db.store, lambda: there, lambda: 20.0, planner=InlinePlanner()), job


JOINED = {name: WorkerFact(f"node-{name[1]}", "joined", generation=1) for name in ("w0", "w1")}


def test_a_running_gang_gets_a_new_generation_for_a_better_plan_on_the_workers_that_it_uses(db: Opened) -> None:
    plans, job = placed(db, TINY)
    assert run(plans.review(lambda name: JOINED, [job.id])) == {job.id}
    first, second = db.read(generations.of_job, job.id)
    assert (second.phase, second.reason_code) == (GenerationPhase.PLANNED, "better-plan")
    assert second.members == first.members[:1] and len(first.members) == 2, "who has nothing to do goes"
    assert first.plan is not None
    assert first.plan["measured_step_s"] == pytest.approx(0.002)
    after = db.read(jobs.get, job.id)
    assert after is not None
    assert after.generation == 2
    assert [event.kind for event in db.read(events.after, 0, 10)][-1] == "job-replanned"
    assert second.plan is not None
    assert (second.plan["id"], second.plan["workers_used"], second.plan["plan"]) == ("single", 1, None)
    assert run(plans.review(lambda name: JOINED, [job.id])) == set()  # not twice within a moment


def test_a_gang_that_is_being_changed_is_left_alone(db: Opened) -> None:
    plans, job = placed(db, TINY)
    leaving = {**JOINED, "w1": replace(JOINED["w1"], phase="left")}
    assert run(plans.review(lambda name: leaving, [job.id])) == set()


def test_a_model_that_nobody_knows_runs_as_whole_copies_and_is_looked_at(db: Opened) -> None:
    plans, job = placed(db, None)
    (generation,) = db.read(generations.of_job, job.id)
    meeting = run(plans.complete_generation(job, generation))
    assert meeting.plan is not None
    assert (meeting.plan["id"], meeting.plan["plan"], meeting.plan["chosen"]) == ("dp2", None, "default")
    assert "nothing is known" in str(meeting.plan["reason"])
    assert run(plans.profiling_worker(job, generation)) == "w0"
    assert run(plans.profiling_worker(replace(job, max_workers=1), generation)) == ""
    db.write(store_profile, job, wire.Profiled(why_not="it draws"), 0.0)
    plans.forget(job.id)
    meeting = run(plans.complete_generation(job, generation))
    assert meeting.plan is not None
    assert "it draws" in str(meeting.plan["reason"])
    assert run(plans.profiling_worker(job, generation)) == "w0"  # another time it may be possible
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 1.0)
    plans.forget(job.id)
    assert run(plans.profiling_worker(job, generation)) == ""  # once is enough


def test_a_planner_that_could_not_look_is_an_alarm_for_who_runs_the_platform(db: Opened) -> None:
    _, job = placed(db, None)
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 0.0)
    assert "planner-blind" not in {event.kind for event in db.read(events.after, 0, 50)}
    other = submit(db, a_job("vision"))
    db.write(store_profile, other, wire.Profiled(why_not="it draws"), 1.0)
    (told,) = [event for event in db.read(events.after, 0, 50) if event.kind == "planner-blind"]
    assert told.job == other.id and "it draws" in told.text
    before = REGISTRY.get_sample_value("fairlead_planner_blind_jobs_total", {"tenant": "vision"}) or 0.0
    JobCounts().take(told, None)
    assert REGISTRY.get_sample_value("fairlead_planner_blind_jobs_total", {"tenant": "vision"}) == before + 1


@pytest.mark.parametrize("wanted", ["tp", "pp"])
def test_a_plan_asked_for_by_name_that_cannot_run_is_refused_and_nothing_runs_in_its_place(
    db: Opened, wanted: str
) -> None:
    plans, job = placed(db, None)
    (generation,) = db.read(generations.of_job, job.id)
    asked = replace(job, facts={"plan": wanted})
    db.write(store_profile, job, wire.Profiled(why_not="it draws"), 0.0)
    plans.forget(job.id)
    with pytest.raises(Refused, match=f"{wanted} .* it draws"):
        run(plans.complete_generation(asked, generation))
    whole = planning.model(1, limits=("one piece of code",), copies_only=True)
    db.write(store_profile, job, wire.Profiled(to_plain(whole)), 1.0)
    plans.forget(job.id)
    with pytest.raises(Refused, match=r"one piece of code.* leave plan out"):
        run(plans.complete_generation(asked, generation))
    alone = replace(generation, members=generation.members[:1])
    assert run(plans.complete_generation(asked, alone)).plan  # an elastic gang that is one worker for now
    assert run(plans.complete_generation(job, generation)).plan


SMALL, LARGE = wire.Glance(3e-4, 1e-6, 1000.0), wire.Glance(1e-3, 1e-3, 1000.0)


@pytest.mark.parametrize(("seen", "wanted"), [(SMALL, "single"), (LARGE, "dp2")])
def test_the_first_passes_of_an_unknown_model_say_whether_copies_pay(
    db: Opened, seen: wire.Glance, wanted: str
) -> None:
    plans, job = placed(db, None)
    (generation,) = db.read(generations.of_job, job.id)
    plans.record_report(job.id, wire.Ready(samples=6400, epochs=1, batch_size=64, parameters=10_000, glance=seen))
    meeting = run(plans.complete_generation(job, generation))
    assert meeting.plan is not None
    assert (meeting.plan["id"], meeting.plan["chosen"]) == (wanted, "planner")
    assert "first passes" in str(meeting.plan["reason"])
    assert len(meeting.members) == meeting.plan["workers_used"], "what would lie idle is given back"
    asked = run(plans.complete_generation(replace(job, facts={"plan": "dp"}), generation))
    assert asked.plan is not None
    assert asked.plan["id"] == "dp2"


def test_a_resting_worker_does_not_hold_up_the_end() -> None:
    generation = replace(running(), plan={"id": "single", "workers_used": 1})
    allow_idle, done = WorkerFact("node-1", "ready"), WorkerFact("node-0", "finished", generation=1, exited=True)
    job = made.job(phase=JobPhase.STOPPING, outcome="finished", then=JobPhase.SUCCEEDED, since_s=10.0)
    here = frozenset({"node-0", "node-1"})
    ends = next_action(GangView(job, [generation], {"w0": done, "w1": allow_idle}, frozenset(), 10.0, here))
    assert isinstance(ends, StopWorkers)
    both = replace(generation, plan=None)
    late = WorkerFact("node-1", "joined", generation=1)
    assert next_action(GangView(job, [both], {"w0": done, "w1": late}, frozenset(), 10.0, here)) is None


def test_what_the_author_asked_for_is_run(db: Opened) -> None:
    plans, job = placed(db, HEAVY)
    (generation,) = db.read(generations.of_job, job.id)
    meeting = run(plans.complete_generation(replace(job, facts={"plan": "fsdp"}), generation))
    assert meeting.plan is not None
    assert (meeting.plan["id"], meeting.plan["chosen"]) == ("fsdp2", "asked")
    assert isinstance(meeting.plan["plan"], dict)
    assert run(plans.complete_generation(replace(job, training=False), generation)) == generation


def test_what_the_code_asks_for_when_it_is_loaded_is_run_although_a_plan_was_there_before(db: Opened) -> None:
    plans, job = placed(db, TINY)
    (generation,) = db.read(generations.of_job, job.id)
    early = run(plans.complete_generation(replace(job, min_workers=2), replace(generation, plan=None)))
    assert early.plan is not None and (early.plan["id"], early.plan["chosen"]) == ("single", "planner")
    assert run(plans.complete_generation(job, early)) == early
    asked = run(plans.complete_generation(replace(job, facts={"plan": "dp"}, min_workers=2), early))
    assert asked.plan is not None and (asked.plan["id"], asked.plan["chosen"]) == ("dp2", "asked")


def test_ranks_follow_the_plan_and_who_rests_comes_last() -> None:
    drawn = made.generation(("w0", "n"), ("w1", "n"), ("w2", "n"), plan=None)
    used = {"workers_used": 2}
    three, one = made.job(min_workers=3, max_workers=3), made.job(min_workers=1, max_workers=3)
    held = with_plan(drawn, three, ChosenPlan(used, (2, 0)), {})
    assert [(m.worker, m.rank) for m in held.members] == [("w2", 0), ("w0", 1), ("w1", 2)]
    assert [m.worker for m in held.at_work] == ["w2", "w0"] and not held.enough, "a gang of three asked for three"
    fewer = with_plan(drawn, one, ChosenPlan(used, (2, 0)), {})
    assert [m.worker for m in fewer.members] == ["w2", "w0"] and fewer.enough


def test_the_next_round_has_the_curves_of_known_models(db: Opened) -> None:
    plans, job = placed(db, HEAVY)
    assert plans.curve(job) is None
    run(plans.refresh([job]))
    pace = plans.curve(job)
    assert pace is not None
    ground = gang_hardware(nodes()[:1], job.demand, Machine())
    assert ground is not None
    alone = estimate(HEAVY, Topology(ground), replica_plan(1)).samples_per_s
    assert pace.unit == pytest.approx(alone, rel=0.05)


# ---------------------------------------------------------------- what follows from it elsewhere


def decided(pace: CalibratedCurve | None, now_s: float = 1000.0) -> list[Any]:
    job = made.job(
        id="j", step=1000, total_steps=1_000_000, batch_size=64, max_workers=2, speeds={1: 64.0}, submitted_s=0.0
    )
    alone = replace(running(job="j"), members=(Member("w0", 0, "node-0", 0),), created_s=0.0)
    facts = {"j": {"w0": WorkerFact("node-0", "joined", generation=1)}}
    state = cluster_state(
        now_s, nodes(), [made.tenant("vision")], {}, [job], {"j": [alone]}, facts, frozenset(), {},
        curves=lambda job: pace,
    )  # fmt: skip
    return [decision for decision in decide(state).decisions if isinstance(decision, Resize)]


def test_a_gang_grows_where_its_plan_says_that_it_helps_and_nowhere_else() -> None:
    helps = in_worker_units(SpeedCurve((1, 2), {"cpu": ((64.0, 120.0), (64.0, 120.0))}))
    useless = in_worker_units(SpeedCurve((1, 2), {"cpu": ((64.0, 64.0), (64.0, 64.0))}))
    (grown,) = decided(helps)
    assert len(grown.seats) == 2
    assert decided(useless) == []


def test_a_gang_that_fails_under_the_planners_plan_starts_over_without_it_at_no_cost(db: Opened) -> None:
    job = submit(db, a_job("vision", phase=JobPhase.RUNNING))
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 5.0)
    told = unpredicted_plan(Plan(data=2, sync="allreduce", sharded=True), "", "planner")
    db.write(generations.insert, made.generation(("w0", "n"), ("w1", "n"), job=job.id, plan=told))
    db.write(lambda connection: record_failure(connection, job, "w0", "it broke", permanent=True, now_s=6.0))
    after = db.read(jobs.get, job.id)
    assert after is not None
    assert (after.phase, after.then, after.outcome) == (JobPhase.STOPPING, JobPhase.QUEUED, "plan-failed")
    assert (after.failures, after.message) == (0, None)
    assert [event.kind for event in db.read(events.after, 0, 10)][-1] == "plan-failed"
    db.write(generations.update, job.id, 1, plan=unpredicted_plan(replica_plan(2), "", "default"))
    db.write(lambda connection: record_failure(connection, job, "w0", "it broke", permanent=True, now_s=7.0))
    after = db.read(jobs.get, job.id)
    assert after is not None
    assert (after.then, after.failures) == (JobPhase.FAILED, 1)
