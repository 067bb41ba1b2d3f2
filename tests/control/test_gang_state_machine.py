"""The generation mechanism against a small model of workers and crashes: whatever happens, it stays in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster import Member
from fairlead.control.reconcile import gang_state_machine
from fairlead.control.reconcile.gang_state_machine import (
    GangView,
    WorkerFact,
    find_contradiction,
    next_action,
    next_change_s,
)
from fairlead.control.reconcile.gang_tasks import affects_others
from fairlead.control.records import ENDED, Generation, GenerationPhase, Job, JobPhase

NODES = ("node-0", "node-1", "node-2", "node-3")


def a_job(**changes: object) -> Job:
    job = Job(
        id="job-1", tenant="vision", name="job", phase=JobPhase.QUEUED, submitted_s=0.0, submitted_by="t",
        min_workers=1, max_workers=4, demand={}, device_type=None, priority=0, elastic=True, training=True, retries=0,
    )  # fmt: skip
    return replace(job, **changes)  # type: ignore[arg-type]


@dataclass
class Model:
    """A store and a backend small enough to hold in the head; carries out what next_action asks."""

    job: Job = field(default_factory=a_job)
    generations: list[Generation] = field(default_factory=list)
    workers: dict[str, WorkerFact] = field(default_factory=dict)  # as the control plane knows them
    told: set[str] = field(default_factory=set)
    now_s: float = 0.0
    joins: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    staying: set[int] = field(default_factory=set)  # generations that all left to go on elsewhere, nobody to end
    unheard: dict[str, int] = field(default_factory=dict)  # take part in this generation again; nobody knows it yet
    breaks: int = 0  # as told with the last call

    def view(self) -> GangView:
        live = [g for g in self.generations if g.phase is not GenerationPhase.ENDED]
        odd = self.training() - {g.number for g in live}
        ended = next((g for g in reversed(self.generations) if g.number in odd), None)
        return GangView(
            self.job, live, dict(self.workers), frozenset(self.told), self.now_s, frozenset(NODES), ended=ended
        )  # fmt: skip

    def training(self) -> set[int]:
        return {fact.generation for fact in self.workers.values() if fact.alive and fact.phase == "joined"}

    def live(self) -> list[Generation]:
        return list(self.view().generations)

    def plan(self, size: int) -> None:
        """What a round would decide: a new generation of this size, survivors first."""
        live = self.live()
        newest = live[-1] if live else None
        settled = newest is None or newest.phase is GenerationPhase.RUNNING or newest.broken_s is not None
        if self.job.phase in (JobPhase.STOPPING, *ENDED) or not settled or len(live) > 1:
            return
        if self.job.phase is JobPhase.QUEUED and self.workers:
            return
        alive = {worker for worker, fact in self.workers.items() if fact.alive}
        staying = [m for m in newest.members if m.worker in alive] if newest else []
        members = [Member(m.worker, rank, m.node, m.device) for rank, m in enumerate(staying[:size])]
        taken = {fact.node for fact in self.workers.values()}
        free = [node for node in NODES if node not in taken]
        next_worker = self.job.next_worker
        while len(members) < size and free:
            members.append(Member(f"w{next_worker}", len(members), free.pop(0), 0))
            next_worker += 1
        same = (
            newest is not None
            and newest.broken_s is None
            and {m.worker for m in members} == {m.worker for m in newest.members}
        )
        if not members or same:
            return
        number = self.job.generation + 1
        fresh = Generation("job-1", number, GenerationPhase.PLANNED, tuple(members), "test", "test", self.now_s)
        self.generations.append(fresh)
        phase = JobPhase.STARTING if self.job.phase is JobPhase.QUEUED else self.job.phase
        self.job = replace(self.job, generation=number, next_worker=next_worker, phase=phase)

    def change(self, generation: Generation, **changes: object) -> None:
        at = next(i for i, g in enumerate(self.generations) if g.number == generation.number)
        self.generations[at] = replace(self.generations[at], **changes)  # type: ignore[arg-type]

    def carry_out(self, action: gang_state_machine.Action) -> None:
        match action:
            case gang_state_machine.Start(generation):
                for m in generation.members:
                    if m.worker not in self.workers or self.workers[m.worker].phase == "asked":
                        self.workers[m.worker] = WorkerFact(m.node, "starting", device=m.device)
            case gang_state_machine.TellLeave(generation, _, snapshot):
                self.told -= {mark for mark in self.told if mark.startswith("join:")}
                self.told.add(f"leave:{generation.number}")
                (self.staying.discard if snapshot else self.staying.add)(generation.number)
            case gang_state_machine.BeginJoin(generation, former):
                training = [f for f in self.workers.values() if f.alive and f.phase == "joined"]
                assert not training or (former and former.broken_s is not None), "the former one still trains"
                if former:
                    self.change(former, phase=GenerationPhase.ENDED, ended_s=self.now_s)
                self.change(generation, phase=GenerationPhase.JOINING)
            case gang_state_machine.TellJoin(generation, breaks):
                whole = {number for number in self.training() if self.is_whole(number)}
                assert all(number <= generation.number for number in whole) and not whole - {generation.number}
                self.breaks = breaks
                self.told.add(f"join:{generation.number}")
                self.joins.append((generation.number, frozenset(m.worker for m in generation.members)))
            case gang_state_machine.MarkRunning(generation):
                self.change(generation, phase=GenerationPhase.RUNNING, running_s=self.now_s)
                self.job = replace(self.job, phase=JobPhase.RUNNING)
            case gang_state_machine.MarkBroken(generation, _):
                self.change(generation, broken_s=self.now_s)
            case gang_state_machine.Abandon(generation, _):
                self.change(generation, phase=GenerationPhase.ENDED, ended_s=self.now_s)
            case gang_state_machine.BeginStop(then, outcome, _):
                self.job = replace(self.job, phase=JobPhase.STOPPING, then=then, outcome=outcome, since_s=self.now_s)
            case gang_state_machine.StopWorkers(workers, _):
                self.told.add("stop")
                for worker in workers:
                    if self.workers[worker].phase != "asked":  # a node says nothing of a worker that it never heard of
                        self.workers[worker] = replace(self.workers[worker], exited=True)
            case gang_state_machine.ReleaseWorkers(workers, _):
                for worker in workers:
                    gone = self.workers.pop(worker, None)
                    assert gone is None or not self.trains_whole(gone) or self.job.phase in (JobPhase.QUEUED, *ENDED)
                    self.unheard.pop(worker, None)
            case gang_state_machine.Conclude(then, _):
                assert not [f for f in self.workers.values() if f.alive], "concluded while a worker lives"
                for generation in self.live():
                    self.change(generation, phase=GenerationPhase.ENDED, ended_s=self.now_s)
                self.job = replace(self.job, phase=then, then=None, outcome=None, since_s=self.now_s)
                self.told.clear()

    def settle(self) -> None:
        """Carry out until there is nothing left to do but wait."""
        for _ in range(200):
            assert find_contradiction(self.view()) is None
            action = next_action(self.view())
            if action is None:
                return
            self.carry_out(action)
        raise AssertionError(f"never settles: {next_action(self.view())}")

    def workers_react(self) -> None:
        """Every living worker does what it was told, and says so."""
        newest = self.generations[-1] if self.generations else None
        self.hear(len(self.unheard))
        for worker, fact in list(self.workers.items()):
            if not fact.alive:
                continue
            if fact.phase == "starting":
                self.workers[worker] = replace(fact, phase="ready")
            elif fact.phase == "joined" and f"leave:{fact.generation}" in self.told:
                gone = self.job.phase is JobPhase.STOPPING
                self.workers[worker] = replace(fact, phase="left", exited=gone)
            elif newest and f"join:{newest.number}" in self.told and self.follows(fact):
                whole = all(m.worker in self.workers and self.workers[m.worker].alive for m in newest.members)
                called = whole and worker in {m.worker for m in newest.members}
                if called and newest.phase is GenerationPhase.JOINING:
                    self.workers[worker] = replace(fact, phase="joined", generation=newest.number)

    def follows(self, fact: WorkerFact) -> bool:
        """Whether a worker that is called joins: one that takes part in another generation refuses."""
        return fact.phase in gang_state_machine.OUT_OF_GENERATION or (
            fact.phase == "joined" and fact.generation <= self.breaks
        )

    def trains_whole(self, gone: WorkerFact) -> bool:
        """Whether a living worker was taken away from peers that train with it."""
        peers = [(fact.phase, fact.generation) for fact in self.workers.values() if fact.alive]
        return gone.alive and gone.phase == "joined" and ("joined", gone.generation) in peers

    def is_whole(self, number: int) -> bool:
        members = next(g for g in self.generations if g.number == number).at_work
        facts = [self.workers.get(member.worker) for member in members]
        return all(fact is not None and fact.alive and fact.generation == number and fact.phase == "joined"
                   for fact in facts)  # fmt: skip

    def resume(self, heard: int) -> None:
        """Nobody called the workers that left a generation: they take part in it again, and so many have said so."""
        for generation in reversed(self.generations):
            there = [m.worker for m in generation.at_work if self.idle_since(generation.number, m.worker)]
            if generation.number in self.staying and len(there) == len(generation.at_work):
                self.unheard |= dict.fromkeys(there, generation.number)
                self.hear(heard)
                return

    def idle_since(self, number: int, worker: str) -> bool:
        fact = self.workers.get(worker)
        left = fact is not None and fact.alive and (fact.phase, fact.generation) == ("left", number)
        return left and worker not in self.unheard

    def hear(self, many: int) -> None:
        for worker in sorted(self.unheard)[:many]:
            number = self.unheard.pop(worker)
            fact = self.workers.get(worker)
            if fact is not None and fact.alive:
                self.workers[worker] = replace(fact, phase="joined", generation=number)
                later = {mark for mark in self.told if mark.startswith("join:") and int(mark[5:]) > number}
                self.told -= {f"leave:{number}"} | later

    def kill(self, index: int) -> None:
        """A worker dies; its peers of the same generation notice."""
        self.hear(len(self.unheard))
        alive = sorted(worker for worker, fact in self.workers.items() if fact.alive)
        if not alive:
            return
        victim = alive[index % len(alive)]
        lost = self.workers[victim]
        self.workers[victim] = replace(lost, exited=True)
        for worker, fact in self.workers.items():
            if fact.alive and fact.phase == "joined" and fact.generation == lost.generation:
                self.workers[worker] = replace(fact, phase="broken")

    def finish(self) -> None:
        live = self.live()  # one that was abandoned does not keep the former one from its end
        newest = live[-1] if live else None
        if newest is None or newest.phase is not GenerationPhase.RUNNING or newest.broken_s is not None:
            return
        for worker, fact in self.workers.items():
            if fact.alive and fact.phase == "joined":
                self.workers[worker] = replace(fact, phase="finished", exited=True)


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.integers(1, 4)),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.just("react"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("partly"), st.integers(1, 3)),
        st.tuples(st.just("preempt"), st.just(0)),
        st.tuples(st.just("resume"), st.integers(0, 3)),
    ),
    max_size=40,
)


def happen(model: Model, kind: str, number: int) -> None:
    model.now_s += 1.0
    match kind:
        case "plan":
            model.plan(number)
        case "kill":
            model.kill(number)
        case "react":
            model.workers_react()
        case "resume":
            model.resume(number)
        case "crash":
            model.told.clear()  # a new control plane knows only what is stored and what the nodes report
        case "partly":
            for _ in range(number):  # a crash may come after any single action
                action = next_action(model.view())
                if action is not None:
                    model.carry_out(action)
            model.told.clear()
            return
        case "preempt" if model.job.phase is JobPhase.RUNNING:
            stop = gang_state_machine.BeginStop(JobPhase.QUEUED, "preempted")
            model.carry_out(stop)
    model.settle()


@given(happenings)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_no_two_generations_train_at_once_and_the_job_ends(script: list[tuple[str, int]]) -> None:
    play(Model(), script, most=4)


@given(happenings)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_a_stage_that_is_called_before_it_is_there_ends_well(script: list[tuple[str, int]]) -> None:
    play(Model(a_stage()), script, most=1)


@given(happenings, st.floats(0.0, 60.0))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_when_there_is_nothing_to_do_nothing_is_to_be_done_until_the_time_that_was_named(
    script: list[tuple[str, int]], later_s: float
) -> None:
    """So that nobody has to look at a gang that nothing happens to."""
    model = Model()
    for kind, number in script:
        happen(model, kind, number)
        view = model.view()
        if next_action(view) is not None:
            continue
        named_s = next_change_s(view)
        moments = [view.now_s + later_s] + [view.now_s + each for each in (0.1, 1.9, 2.1, 2.9, 3.1, 19.9, 20.1, 1e4)]
        for moment_s in moments:
            if named_s is None or moment_s < named_s:
                assert next_action(replace(view, now_s=moment_s)) is None


changes = st.lists(
    st.one_of(
        st.tuples(st.just("react"), st.just(0)),
        st.tuples(st.just("react"), st.just(0)),
        st.tuples(st.just("resume"), st.integers(0, 3)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("partly"), st.integers(1, 2)),
        st.tuples(st.just("plan"), st.integers(2, 4)),
        st.tuples(st.sampled_from(["kill", "preempt"]), st.integers(0, 3)),
    ),
    min_size=4,
    max_size=24,
)


@given(st.integers(1, 3), changes)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_gang_that_resumes_by_itself_amid_changes_is_called_away_in_order(
    size: int, script: list[tuple[str, int]]
) -> None:
    model = Model()
    run_to(model, size)
    model.plan(size + 1)
    for _ in range(2):
        model.workers_react()
        model.settle()
    play(model, script, most=4)


def a_stage() -> Job:
    return a_job(max_workers=1, elastic=False, facts={"stage": {"pipeline": "p", "name": "s", "trains": False}})


def play(model: Model, script: list[tuple[str, int]], most: int) -> None:
    for kind, number in script:
        happen(model, kind, min(number, most) if kind == "plan" else number)
        assert find_contradiction(model.view()) is None
    for _ in range(60):  # from here on nothing goes wrong any more
        model.now_s += 30.0
        if model.job.phase is JobPhase.QUEUED or any(g.broken_s is not None for g in model.live()):
            model.plan(min(2, most))
        model.settle()
        model.workers_react()
        model.settle()
        model.finish()
        model.settle()
        if model.job.phase in ENDED:
            break
    assert model.job.phase is JobPhase.SUCCEEDED
    assert model.workers == {}


def run_to(model: Model, size: int) -> None:
    model.plan(size)
    for _ in range(6):
        model.settle()
        model.workers_react()
    model.settle()


def test_growing_keeps_the_survivors_and_their_order() -> None:
    model = Model()
    run_to(model, 1)
    run_to(model, 3)
    newest = model.generations[-1]
    assert newest.phase is GenerationPhase.RUNNING
    assert [m.worker for m in newest.members] == ["w0", "w1", "w2"]
    assert model.joins == [(1, frozenset({"w0"})), (2, frozenset({"w0", "w1", "w2"}))]


def resumed_at(stop: type[gang_state_machine.Action]) -> Model:
    """One of one worker is to become one of two; the control plane dies after this action and the gang resumes."""
    model = Model()
    run_to(model, 1)
    model.plan(2)
    model.settle()
    while True:
        if next_action(model.view()) is None:
            model.workers_react()
        action = next_action(model.view())
        assert action is not None
        model.carry_out(action)
        if isinstance(action, stop):
            break
    if stop is gang_state_machine.TellLeave:
        model.workers_react()
    model.told.clear()
    model.resume(1)
    assert model.workers["w0"].phase == "joined" and model.workers["w0"].generation == 1
    return model


def test_a_generation_that_was_resumed_before_the_next_was_called_is_told_to_leave_again() -> None:
    model = resumed_at(gang_state_machine.TellLeave)
    assert next_action(model.view()) == gang_state_machine.TellLeave(model.generations[0], (), snapshot=False)
    run_to(model, 2)
    assert model.generations[-1].phase is GenerationPhase.RUNNING and model.joins[-1][0] == 2


def test_one_that_was_resumed_when_the_next_was_called_already_is_told_to_leave_before_anybody_joins() -> None:
    model = resumed_at(gang_state_machine.BeginJoin)
    assert model.generations[0].phase is GenerationPhase.ENDED
    assert next_action(model.view()) == gang_state_machine.TellLeave(model.generations[0], (), snapshot=False)
    model.settle()
    assert model.joins == [(1, frozenset({"w0"}))], "nobody is called while it trains"
    model.workers_react()
    model.settle()
    assert model.joins[-1] == (2, frozenset({"w0", "w1"}))
    run_to(model, 2)
    assert model.generations[-1].phase is GenerationPhase.RUNNING


def test_a_call_that_was_refused_is_made_again() -> None:
    model = resumed_at(gang_state_machine.TellJoin)
    model.told.add("join:2")
    run_to(model, 2)
    assert [number for number, _ in model.joins] == [1, 2, 2]
    assert model.generations[-1].phase is GenerationPhase.RUNNING


def test_one_that_was_resumed_is_preempted_in_its_own_name() -> None:
    model = resumed_at(gang_state_machine.BeginJoin)
    model.carry_out(gang_state_machine.BeginStop(JobPhase.QUEUED, "preempted"))
    action = next_action(model.view())
    assert isinstance(action, gang_state_machine.TellLeave) and action.generation.number == 1 and action.snapshot


def test_one_that_was_resumed_is_called_away_in_order_though_the_next_one_broke_before_it_began() -> None:
    model = resumed_at(gang_state_machine.BeginJoin)
    model.workers["w1"] = replace(model.workers["w1"], exited=True)
    model.settle()
    assert model.generations[-1].broken_s is not None and model.workers["w0"].generation == 1
    fresh = (*model.generations[0].members, Member("w2", 1, "node-2", 0))
    model.generations.append(Generation("job-1", 3, GenerationPhase.PLANNED, fresh, "test", "test", model.now_s))
    model.workers["w2"] = WorkerFact("node-2", "ready")
    model.now_s += gang_state_machine.NOTICE_S + 1.0
    assert next_action(model.view()) == gang_state_machine.TellLeave(model.generations[0], (), snapshot=False)


def test_one_that_was_resumed_and_lost_a_member_need_not_leave_first() -> None:
    model = Model()
    run_to(model, 2)
    first = model.generations[0]
    model.change(first, phase=GenerationPhase.ENDED, ended_s=0.0)
    three = [*first.members, Member("w2", 2, "node-2", 0)]
    model.generations.append(Generation("job-1", 2, GenerationPhase.JOINING, tuple(three), "test", "test", 0.0))
    model.workers["w1"] = replace(model.workers["w1"], phase="broken")
    model.workers["w2"] = WorkerFact("node-2", "ready")
    assert next_action(model.view()) == gang_state_machine.TellJoin(model.generations[-1], breaks=1)


def test_newcomers_are_ready_before_the_former_generation_is_told_to_leave() -> None:
    model = Model()
    run_to(model, 1)
    model.plan(2)
    model.settle()
    assert model.workers["w1"].phase == "starting"
    assert "leave:1" not in model.told
    model.workers_react()
    model.settle()
    assert "leave:1" in model.told


def test_a_gang_that_lost_everybody_goes_back_into_the_queue() -> None:
    model = Model()
    run_to(model, 2)
    model.kill(0)
    model.kill(0)
    model.settle()
    assert model.job.phase is JobPhase.QUEUED
    assert model.workers == {}


def test_a_command_is_never_mended_it_starts_over() -> None:
    model = Model(job=a_job(training=False, elastic=False))
    run_to(model, 2)
    model.kill(1)
    model.settle()
    assert model.job.phase is JobPhase.QUEUED


def test_workers_of_an_ended_job_are_released() -> None:
    model = Model(job=a_job(phase=JobPhase.CANCELLED), workers={"w0": WorkerFact("node-0", "joined", 1)})
    assert next_action(model.view()) == gang_state_machine.ReleaseWorkers(("w0",), forget_memory=True)


def test_only_who_is_gone_is_called_lost_not_the_peers_who_noticed() -> None:
    workers = {
        "w0": WorkerFact("n0", "broken", 1),
        "w1": WorkerFact("n1", "joined", 1, exited=True),
        "w2": WorkerFact("n2", "broken", 1),
    }
    assert gang_state_machine.describe_loss(("w0", "w1", "w2"), workers) == (["w1"], "lost w1")
    assert gang_state_machine.describe_loss(("w3",), workers) == (["w3"], "lost w3")
    workers["w1"] = replace(workers["w1"], ended_by="SIGSEGV")
    assert gang_state_machine.describe_loss(("w0", "w1", "w3"), workers) == (["w1", "w3"], "lost w1 (SIGSEGV), w3")
    assert gang_state_machine.describe_loss(("w0", "w2"), workers) == ([], "broke: w0, w2 lost touch with a peer")


def a_command_of(size: int) -> Model:
    model = Model(job=a_job(training=False, elastic=False, min_workers=size))
    model.plan(size)
    model.settle()
    return model


def test_a_command_that_ends_before_it_was_awaited_has_succeeded() -> None:
    model = a_command_of(1)
    model.workers["w0"] = replace(model.workers["w0"], phase="finished", generation=1, exited=True)
    model.settle()
    assert model.job.phase is JobPhase.SUCCEEDED
    assert not model.workers


def test_a_command_that_ends_before_it_hears_the_call_has_succeeded() -> None:
    model = a_command_of(1)
    model.workers["w0"] = replace(model.workers["w0"], phase="ready")
    for _ in range(2):  # its generation joins, and it is called
        action = next_action(model.view())
        assert isinstance(action, gang_state_machine.BeginJoin | gang_state_machine.TellJoin)
        model.carry_out(action)
    model.workers["w0"] = replace(model.workers["w0"], phase="finished", generation=0, exited=True)
    model.settle()
    assert model.job.phase is JobPhase.SUCCEEDED


def test_a_rank_of_a_command_may_end_before_the_others_are_ready() -> None:
    model = a_command_of(2)
    model.workers["w1"] = replace(model.workers["w1"], phase="finished", generation=1, exited=True)
    model.settle()
    assert model.job.phase is JobPhase.STARTING
    model.workers_react()  # w0 is ready
    model.settle()
    model.workers["w0"] = replace(model.workers["w0"], phase="joined", generation=1)
    model.settle()
    assert model.job.phase is JobPhase.RUNNING
    model.workers["w0"] = replace(model.workers["w0"], phase="finished", exited=True)
    model.settle()
    assert model.job.phase is JobPhase.SUCCEEDED


@pytest.mark.parametrize(("ends", "then"), [
    (("finished", "finished"), JobPhase.SUCCEEDED), (("finished", "left"), JobPhase.QUEUED),
    (("left", "left"), JobPhase.QUEUED),
])  # fmt: skip
def test_a_command_whose_ranks_all_ended_well_while_they_were_told_to_leave_has_succeeded(
    ends: tuple[str, ...], then: JobPhase
) -> None:
    model = a_command_of(2)
    model.workers = {name: replace(fact, phase="joined", generation=1) for name, fact in model.workers.items()}
    model.settle()
    model.carry_out(gang_state_machine.BeginStop(JobPhase.QUEUED, "preempted"))
    model.settle()
    assert "leave:1" in model.told
    for (name, fact), end in zip(list(model.workers.items()), ends, strict=True):
        model.workers[name] = replace(fact, phase=end, exited=True)
    model.settle()
    assert model.job.phase is then and not model.workers


def test_a_rank_of_a_command_that_ends_before_it_hears_the_call_keeps_no_other_from_running() -> None:
    model = a_command_of(2)
    model.workers_react()
    model.settle()
    model.workers["w0"] = replace(model.workers["w0"], phase="joined", generation=1)
    model.workers["w1"] = replace(model.workers["w1"], phase="finished", generation=0, exited=True)
    model.settle()
    assert model.job.phase is JobPhase.RUNNING


def test_a_job_on_its_way_without_a_generation_goes_back_into_the_queue() -> None:
    model = Model(job=a_job(phase=JobPhase.STARTING))
    model.settle()
    assert model.job.phase is JobPhase.QUEUED


def test_a_generation_on_nodes_that_sleep_wakes_them_once_and_waits() -> None:
    model = Model()
    model.plan(2)
    asleep = replace(model.view(), reachable=frozenset(NODES) - {"node-0"}, asleep=frozenset({"node-0"}))
    woken = next_action(asleep)
    assert isinstance(woken, gang_state_machine.WakeNodes) and woken.nodes == ("node-0",)
    assert next_action(replace(asleep, commands_sent=frozenset({"wake:1"}))) is None, "told once, it waits"
    assert isinstance(next_action(model.view()), gang_state_machine.Start), "awake, it goes on"
    lost = replace(asleep, asleep=frozenset(), commands_sent=frozenset({"wake:1"}))
    assert isinstance(next_action(lost), gang_state_machine.BeginStop), (
        "what cannot be woken is lost: it is planned anew"
    )


def test_a_stage_that_meets_nobody_is_called_while_it_comes_up() -> None:
    model = Model(a_stage())
    model.plan(1)
    model.settle()
    assert model.workers["w0"].phase == "starting"
    assert model.joins == [(1, frozenset({"w0"}))]
    assert model.generations[-1].phase is GenerationPhase.JOINING, "stored before it was called"


def test_an_order_to_start_that_a_node_may_not_have_heard_is_given_again() -> None:
    model = Model()
    model.plan(2)
    model.workers = {"w0": WorkerFact("node-0", "ready"), "w1": WorkerFact("node-1", "asked")}
    assert isinstance(next_action(model.view()), gang_state_machine.Start)
    model.workers["w1"] = WorkerFact("node-1", "starting")
    assert next_action(model.view()) is None, "it comes up"


def test_coming_up_asks_for_no_round_and_giving_back_does() -> None:
    model = Model()
    model.plan(1)
    generation, job = model.generations[-1], model.job
    known = {"w0": WorkerFact("node-0", "starting")}
    assert not affects_others(gang_state_machine.Start(generation), job, known)
    assert affects_others(gang_state_machine.Start(generation), job, {}), (
        "seats on which nothing could start may go to others"
    )
    assert not affects_others(gang_state_machine.TellJoin(generation), job, known)
    assert affects_others(gang_state_machine.MarkRunning(generation), job, known)
    assert not affects_others(
        gang_state_machine.MarkRunning(generation), a_job(training=False), known
    ), "it never changes"
    assert affects_others(gang_state_machine.ReleaseWorkers(("w0",)), job, {})


def test_the_end_of_a_gang_asks_for_one_round() -> None:
    ends = a_job(phase=JobPhase.STOPPING, then=JobPhase.SUCCEEDED)
    finished = {"w0": WorkerFact("node-0", "finished")}
    stop = gang_state_machine.BeginStop(JobPhase.SUCCEEDED, "finished")
    assert affects_others(stop, a_job(), finished), (
        "its seat goes to whoever is next while it lingers"
    )
    assert not affects_others(stop, a_job(), {"w0": WorkerFact("node-0", "joined")}), (
        "it still holds its device"
    )
    assert not affects_others(gang_state_machine.ReleaseWorkers(("w0",)), ends, {}), (
        "its conclusion follows"
    )
    assert affects_others(gang_state_machine.Conclude(JobPhase.FAILED, "failed"), ends, {})
    assert not affects_others(
        gang_state_machine.Conclude(JobPhase.SUCCEEDED, "finished", 1.0), a_job(), finished
    )
    assert affects_others(
        gang_state_machine.ReleaseWorkers(("w0",)), a_job(phase=JobPhase.SUCCEEDED), {}
    )


def test_who_left_and_is_gone_gives_its_device_back_though_the_next_generation_never_begins() -> None:
    """A worker that lies about where it is keeps its own gang from going on, and nobody from a device."""
    seats = (Member("w0", 0, "node-0", 0),)
    former = Generation("job-1", 1, GenerationPhase.RUNNING, seats, "", "", 0.0, running_s=1.0)
    newest = Generation("job-1", 2, GenerationPhase.PLANNED, (Member("w1", 0, "node-1", 0),), "", "", 2.0)
    model = Model(a_job(phase=JobPhase.RUNNING, generation=2), [former, newest])
    model.workers = {"w0": WorkerFact("node-0", "left", 1, exited=True), "w1": WorkerFact("node-1", "joined", 91)}
    assert next_action(model.view()) == gang_state_machine.ReleaseWorkers(("w0",))
    del model.workers["w0"]
    assert next_action(model.view()) is None


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("phase", [GenerationPhase.PLANNED, GenerationPhase.JOINING, GenerationPhase.RUNNING])
def test_a_generation_that_cannot_be_read_neither_finishes_nor_loses_its_workers(
    phase: GenerationPhase, training: bool
) -> None:
    job = a_job(phase=JobPhase.RUNNING, generation=1, training=training)
    unreadable = Generation(job.id, 1, phase, (), "test", "test", 0.0)
    trains = {"w0": WorkerFact("node-0", "joined", 1)}
    for workers in ({}, trains):
        assert next_action(GangView(job, [unreadable], workers, frozenset(), 0.0, frozenset(NODES))) is None
