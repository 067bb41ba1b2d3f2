"""Decides the next action for a gang from stored rows and worker facts, without I/O: one mechanism for every
generation.

Starting, growing, shrinking, moving, recovering, preempting and ending all go through :func:`next_action`. It is
level-triggered: called again after a crash with the same facts, it returns the same action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.control.reconcile.gang_actions import (
    Abandon,
    Action,
    BeginJoin,
    BeginStop,
    Conclude,
    MarkBroken,
    MarkRunning,
    ReleaseWorkers,
    Start,
    StopWorkers,
    TellJoin,
    TellLeave,
    WakeNodes,
)
from fairlead.control.records import ENDED, Generation, GenerationPhase, Job, JobPhase

AFTERMATH_S = 2.0  # how long the verdict on a command's exit waits: its cause may be a lost node, reported later
OUT_OF_GENERATION = frozenset({"ready", "left", "broken"})  # alive, not training: may join the next generation
STOP_GRACE_S = 3.0
NOTICE_S = 2.0  # how long peers of a lost worker may take to notice the loss before the next generation begins
LEAVE_GRACE_S = 20.0  # how long a preempted gang may take to finish its step and take a snapshot


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """What is known of one worker: its place and its phase."""

    node: str
    phase: str  # asked (its node may not know), starting, ready, joined, left, broken, finished, gone
    generation: int = 0
    device: int = 0
    exited: bool = False  # its process has ended; the phase is the last one it reached
    slow_s: float = 0.0  # how long it has been far slower than expected of its node
    ended_by: str | None = None  # the signal, exit code or silence that ended its process, if known
    cause: str | None = None  # a recovery.Cause of its end; None: it was lost with its node
    lost_s: float | None = None  # when its node saw it end, or got its report that a peer is gone
    finished_s: float | None = None  # when it reported that it had finished

    @property
    def alive(self) -> bool:
        return not self.exited

    @property
    def holds_device(self) -> bool:
        """True while its device is its own; a finished worker is about to exit and hands it to the next one."""
        return self.alive and self.phase != "finished"

    @property
    def lost(self) -> bool:
        return self.exited and self.phase != "finished"


@dataclass(frozen=True, slots=True)
class GangView:
    """Everything that the next action for one job depends on."""

    job: Job
    generations: Sequence[Generation]  # not ended, oldest first: at most a former and a newest
    workers: Mapping[str, WorkerFact]
    commands_sent: frozenset[str]  # that this leader has sent to the gang: "leave:3", "join:4", "stop"
    now_s: float
    reachable: frozenset[str]  # nodes on which workers can be started now
    asleep: frozenset[str] = frozenset()  # nodes that have to be woken first
    ended: Generation | None = None  # ended according to the store, although workers still take part in it


def find_contradiction(view: GangView) -> str | None:
    """Describes a state that must never be: two generations of one gang training at once, or two workers on one device.

    Checked after every step in tests (``FAIRLEAD_VALIDATE``); None when all is well.
    """
    training = _joined_generations(view)
    if len(training) > 1:
        return f"{view.job.id}: generations {sorted(training)} train at the same time"
    if len(view.generations) > 2:
        return f"{view.job.id}: more than a former and a newest generation: {[g.number for g in view.generations]}"
    seats = [(fact.node, fact.device) for fact in view.workers.values() if fact.alive]
    if len(seats) != len(set(seats)):
        return f"{view.job.id}: two workers on one device: {sorted(seats)}"
    return None


def describe_loss(lost: Sequence[str], workers: Mapping[str, WorkerFact]) -> tuple[list[str], str]:
    """Which workers of a broken generation are really gone, and a phrase that says so; their peers only noticed and
    live."""
    dead = [worker for worker in lost if worker not in workers or workers[worker].lost]
    ends = {worker: workers[worker].ended_by for worker in dead if worker in workers}
    named = [f"{worker} ({ends[worker]})" if ends.get(worker) else worker for worker in dead]
    return dead, f"lost {', '.join(named)}" if dead else f"broke: {', '.join(lost)} lost touch with a peer"


def time_of_loss_s(lost: Sequence[str], workers: Mapping[str, WorkerFact], planned_s: float, now_s: float) -> float:
    """When a generation broke: at the first sign on any node, ignoring reports from before it was planned."""
    facts = [workers[worker] for worker in lost if worker in workers]
    signs = [fact.lost_s for fact in facts if fact.lost_s is not None and (fact.exited or fact.lost_s >= planned_s)]
    return min([now_s, *signs])


def next_action(view: GangView) -> Action | None:
    """The next action for this gang, or None while it can only wait."""
    job = view.job
    if job.phase in ENDED or job.phase is JobPhase.QUEUED:
        return _release_leftovers(view, forget_memory=job.phase in ENDED)
    if job.phase is JobPhase.STOPPING:
        return _stop(view)
    if not view.generations:
        return BeginStop(JobPhase.QUEUED, "abandoned")  # nothing else would ever move it on
    if any(not generation.members for generation in view.generations):
        return None  # a damaged row: the quarantine fails the job, and nobody ends its workers before
    newest = view.generations[-1]
    former = view.generations[-2] if len(view.generations) > 1 else None
    if newest.phase is GenerationPhase.PLANNED and newest.broken_s is not None:
        return _recover(view, newest)
    if newest.phase is GenerationPhase.PLANNED:
        return _bring_up(view, newest, former)
    return _join(view, newest) if newest.phase is GenerationPhase.JOINING else _watch(view, newest)


def next_change_s(view: GangView) -> float | None:
    """When time alone could change the answer of :func:`next_action`; None: only an event can.

    Every wait in this module is named here. A time at which nothing changes costs one look.
    """
    moments = [each.broken_s + NOTICE_S for each in view.generations if each.broken_s is not None]
    moments += [float(death["time_s"]) + AFTERMATH_S for death in view.job.deaths if not death["answered"]]
    if view.job.phase is JobPhase.STOPPING:
        moments += [view.job.since_s + STOP_GRACE_S, view.job.since_s + LEAVE_GRACE_S]
    return min((moment for moment in moments if moment > view.now_s), default=None)


def _release_leftovers(view: GangView, *, forget_memory: bool) -> Action | None:
    """Release all workers of a job that is not running."""
    return ReleaseWorkers(tuple(sorted(view.workers)), forget_memory) if view.workers else None


def _stop(view: GangView) -> Action | None:
    job = view.job
    # If the node never got the start of a worker, nothing will ever report its end. A release ends it if it exists.
    alive = tuple(sorted(w for w, fact in view.workers.items() if fact.alive and fact.phase != "asked"))
    if alive:
        waited_s = view.now_s - job.since_s
        newest = view.generations[-1] if view.generations else None
        training = any(view.workers[worker].phase == "joined" for worker in alive)
        if newest is not None and training:
            newest = next(
                (g for g in (*view.generations, view.ended) if g and g.number in _joined_generations(view)), newest
            )
        graceful = job.outcome == "preempted" and newest is not None and training
        if graceful and newest is not None and f"leave:{newest.number}" not in view.commands_sent:
            return TellLeave(newest, exits=alive, snapshot=True)
        if graceful and waited_s < LEAVE_GRACE_S:
            return None
        at_work = set() if newest is None else {member.worker for member in newest.at_work}
        finishing = job.outcome == "finished" and not at_work.isdisjoint(alive)  # idle members do not end by themselves
        patience_s = STOP_GRACE_S if finishing else 0.0
        if waited_s < patience_s or "stop" in view.commands_sent:
            return None
        return StopWorkers(alive, 0.0 if job.outcome == "worker-lost" else STOP_GRACE_S)
    if (
        job.then is JobPhase.QUEUED
        and not job.training
        and view.generations
        and _has_finished(view, view.generations[-1])
    ):
        return _succeed(view, view.generations[-1])  # a command that finished before the stop reached it
    then = job.then or JobPhase.FAILED
    if view.workers:
        return ReleaseWorkers(tuple(sorted(view.workers)), forget_memory=then in ENDED)
    return Conclude(then, job.outcome or "failed")


def _bring_up(view: GangView, newest: Generation, former: Generation | None) -> Action | None:
    facts = view.workers
    sleeping = tuple(sorted({member.node for member in newest.members} & view.asleep))
    if sleeping:
        return None if f"wake:{newest.number}" in view.commands_sent else WakeNodes(newest, sleeping)
    dead = tuple(m.worker for m in newest.members if m.worker in facts and facts[m.worker].lost)
    astray = [m for m in newest.members if m.worker in dead or m.node not in view.reachable]
    if astray:
        why = f"worker {astray[0].worker} on {astray[0].node} was lost before the generation began"
        if former is not None:
            return Abandon(newest, why)
        return _mark_broken(view, newest, dead) if dead else BeginStop(JobPhase.QUEUED, "worker-lost", why)
    if former is not None and any(fact.phase == "finished" for fact in facts.values()):
        return Abandon(newest, "the former generation finished first")
    if former is None and _has_finished(view, newest):
        return _succeed(view, newest)  # a command that finished before all members were up
    if any(member.worker not in facts or facts[member.worker].phase == "asked" for member in newest.members):
        return Start(newest)
    if former is None and _runs_alone(view.job):
        return BeginJoin(newest, former)  # its node delivers the call as soon as the worker is up
    members = {member.worker for member in newest.members}
    if gone := tuple(sorted(worker for worker, fact in facts.items() if fact.lost and worker not in members)):
        return ReleaseWorkers(gone)  # frees the device now, however long this gang takes to go on
    if any(facts[worker].phase == "starting" for worker in members):
        return None
    if former is not None:
        if view.ended is not None and _is_whole(view, view.ended):
            return _tell_leave(view, view.ended, newest)
        there = {m.worker: facts[m.worker] for m in former.members if m.worker in facts}
        joined = [worker for worker, fact in there.items() if fact.alive and fact.phase == "joined"]
        if joined and (former.broken_s is None or _is_whole(view, former)):
            return _tell_leave(view, former, newest)
        if joined and former.broken_s is not None and view.now_s - former.broken_s < NOTICE_S:
            return None  # they will notice by themselves that a peer is gone
        if joined:
            return BeginJoin(newest, former)  # the former generation cannot make a step without its lost member
    if all(facts[member.worker].phase in OUT_OF_GENERATION | {"finished"} for member in newest.members):
        return BeginJoin(newest, former)
    return None


def _tell_leave(view: GangView, acting: Generation, newest: Generation) -> Action | None:
    """Tell the members of a whole generation to leave it; None once they were told."""
    if f"leave:{acting.number}" in view.commands_sent:
        return None
    staying = {member.worker for member in newest.members}
    exits = tuple(member.worker for member in acting.members if member.worker not in staying)
    return TellLeave(acting, exits=exits, snapshot=False)


def _join(view: GangView, newest: Generation) -> Action | None:
    intact = newest.broken_s is None and not _lost_members(view, newest)
    if intact and view.ended is not None and _is_whole(view, view.ended):
        return _tell_leave(view, view.ended, newest)  # it was resumed while no control plane led
    departed = _release_departed(view, newest)
    if departed:
        return departed
    lost = _lost_members(view, newest)
    if lost and newest.broken_s is None:
        return _mark_broken(view, newest, lost)
    if newest.broken_s is not None:
        return _recover(view, newest)
    if not view.job.training and _has_finished(view, newest):
        return _succeed(view, newest)
    phases = {_phase_in(view, member.worker, newest.number) for member in newest.at_work}
    if phases <= {"joined", "finished"}:
        return MarkRunning(newest)
    if f"join:{newest.number}" in view.commands_sent:
        return None
    elsewhere = _joined_generations(view) - {newest.number}
    if elsewhere and view.ended is None:
        return None  # a worker reported it just now: the next look shows which generation that is
    return TellJoin(newest, breaks=max(elsewhere, default=0))


def _watch(view: GangView, newest: Generation) -> Action | None:
    departed = _release_departed(view, newest)
    if departed:
        return departed
    if _has_finished(view, newest):
        return _succeed(view, newest)
    lost = _lost_members(view, newest)
    if lost and newest.broken_s is None:
        return _mark_broken(view, newest, lost)
    if newest.broken_s is not None:
        return _recover(view, newest)
    return None


def _mark_broken(view: GangView, newest: Generation, lost: tuple[str, ...]) -> Action | None:
    """The generation lost workers; the verdict waits until it is known what they died of.

    When a node dies, commands on other nodes exit at once because their peer is gone, and the node's loss is reported
    later.
    """
    told = {death["worker"]: death for death in view.job.deaths if not death["answered"]}
    away = {m.node for m in newest.members if m.worker in lost}
    living = {m.node for m in newest.members if m.worker not in lost} - away
    exits = [told[worker] for worker in lost if worker in told and told[worker]["cause"] in ("exited", "crashed")]
    young = any(0 <= view.now_s - death["time_s"] < AFTERMATH_S for death in exits)
    if not view.job.training and living and len(exits) == len(lost) and young:
        return None
    return MarkBroken(newest, lost)


def _has_new_deaths(job: Job, newest: Generation, gone: tuple[str, ...]) -> bool:
    """True if more is known now of why the generation broke: another death, or the node that peers lost touch with."""
    own = {str(death["worker"]): death["cause"] for death in job.deaths if death["generation"] == newest.number}
    return not job.unanswered.isdisjoint(gone) or ("lost-touch" in own.values() and not own.keys() >= set(gone))


def _recover(view: GangView, newest: Generation) -> Action | None:
    """A broken gang waits for the next round; with no survivor it starts over from its snapshot."""
    facts = {member.worker: view.workers.get(member.worker) for member in newest.members}
    gone = tuple(worker for worker, fact in facts.items() if fact is not None and fact.lost)
    if _has_new_deaths(view.job, newest, gone):
        return MarkBroken(newest, gone)
    exited = tuple(m.worker for m in newest.members if m.worker in view.workers and not view.workers[m.worker].alive)
    if exited:
        return ReleaseWorkers(exited)
    survivors = [m for m in newest.members if m.worker in view.workers and view.workers[m.worker].alive]
    if survivors and view.job.training:
        return None
    return BeginStop(JobPhase.QUEUED, "worker-lost")


def _release_departed(view: GangView, newest: Generation) -> Action | None:
    """Release workers that are not part of the newest generation."""
    staying = {member.worker for member in newest.members}
    if view.ended is not None and _is_whole(view, view.ended):
        staying |= {member.worker for member in view.ended.at_work}  # still training: they must leave first
    others = tuple(sorted(worker for worker in view.workers if worker not in staying))
    return ReleaseWorkers(others) if others else None


def _has_finished(view: GangView, newest: Generation) -> bool:
    """True if rank 0 of a Training has finished, or every rank of a command."""
    ranked = sorted(newest.members, key=lambda member: member.rank)
    speakers = ranked[:1] if view.job.training else ranked
    facts = [view.workers.get(member.worker) for member in speakers]
    return bool(facts) and all(fact is not None and fact.phase == "finished" for fact in facts)


def _succeed(view: GangView, newest: Generation) -> BeginStop | Conclude:
    """The job ended when its last worker reported so, however late the control plane looks.

    With no process left to wait for, the end is stored at once; its devices are given back afterwards.
    """
    facts = [view.workers[member.worker] for member in newest.members if member.worker in view.workers]
    at_s = max((fact.finished_s for fact in facts if fact.finished_s is not None), default=view.now_s)
    if any(fact.alive for fact in view.workers.values()):
        return BeginStop(JobPhase.SUCCEEDED, "finished", at_s=at_s)
    return Conclude(JobPhase.SUCCEEDED, "finished", at_s)


def _lost_members(view: GangView, newest: Generation) -> tuple[str, ...]:
    def gone(worker: str) -> bool:
        fact = view.workers.get(worker)
        if fact is None or fact.lost:
            return True
        # It left for a next generation that was abandoned, and would wait for ever without a new one.
        return fact.phase in ("broken", "left") and fact.generation == newest.number

    return tuple(member.worker for member in newest.members if gone(member.worker))


def _runs_alone(job: Job) -> bool:
    """True if its worker may begin as soon as it is up: a stage that is a plain function has no peers and no state."""
    return job.training and not job.facts.get("stage", {}).get("trains", True)


def _joined_generations(view: GangView) -> set[int]:
    """The generations that living workers have joined."""
    return {fact.generation for fact in view.workers.values() if fact.alive and fact.phase == "joined"}


def _is_whole(view: GangView, generation: Generation) -> bool:
    """True if no rank of the generation is lost: all take part in it, or are about to report so."""
    facts = [view.workers.get(member.worker) for member in generation.at_work]
    return all(
        fact is not None and fact.alive and fact.phase in ("joined", "left") and fact.generation == generation.number
        for fact in facts
    )


def _phase_in(view: GangView, worker: str, generation: int) -> str:
    """The phase of a worker with respect to this generation."""
    fact = view.workers.get(worker)
    if fact is None or fact.lost:
        return "gone"
    if fact.phase == "finished" and not view.job.training:
        return fact.phase  # a command may end before the call to join reaches it
    return fact.phase if fact.generation == generation else "elsewhere"
