"""A live round in words: a decision with its reason for each change, and a reason for each job that waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fairlead.scheduling.job_columns import JobColumns
from fairlead.scheduling.live_plan import LivePlan, live_plan
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.energy import sleep_decisions
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.market_targets import MENDED_S, TURN_S
from fairlead.scheduling.mentioned_jobs import MentionedJob
from fairlead.scheduling.phrases import devices, node_list, reason, with_resources, workers
from fairlead.scheduling.promise_budgets import remembered
from fairlead.scheduling.reasons import Reasons
from fairlead.scheduling.scaling import better_smaller, speed_on, useful
from fairlead.scheduling.settled_state import Seats, wanted_memory
from fairlead.scheduling.state import (
    ClusterState,
    Decision,
    Hold,
    JobState,
    Preempt,
    Reason,
    Reservation,
    Resize,
    Round,
    Start,
)
from fairlead.scheduling.waiting_reasons import hold_decisions


def live_round(state: ClusterState, dials: MarketConfig = DEFAULT_CONFIG) -> Round:
    """Who starts, grows, shrinks, moves, stops or waits now, and why.

    Devices that a decision frees are not given away in the same round: they are free only when their workers are gone.
    So every round can be carried out at once, in any order.
    """
    return round_with_reasons(live_plan(state, dials))


def round_with_reasons(plan: LivePlan) -> Round:
    """What was decided, with a reason for each change and for each job that waits."""
    jobs, changes = plan.situation.jobs, plan.done.changes
    running = {name: seats for name, seats in changes.items() if jobs[name].seats}
    made: list[Decision] = list(plan.repaired.values())
    made += [_changed(plan, jobs[name], seats) for name, seats in running.items()]
    made.sort(key=lambda decision: (not isinstance(decision, Preempt), decision.job))
    starts = [_started(plan, job, changes[job.id]) for job in plan.line if job.id in changes]
    decisions = (*made, *starts, *hold_decisions(plan))
    kept = _reservations(plan, decisions)
    final = {**plan.settled.seats, **{name: plan.targets.seats.get(name, ()) for name in plan.settled.asked}, **changes}
    nodes, idle = sleep_decisions(plan.situation.state, final, kept)
    entitlements, reasons = plan.situation.parts.by_tenant(), Reasons(plan, decisions)
    return Round(decisions, entitlements, _memory(plan) | idle, tuple(nodes), kept, reasons)


def _reservations(plan: LivePlan, decisions: tuple[Decision, ...]) -> tuple[Reservation, ...]:
    """Seats that are kept for jobs that wait, until when they are expected to have them."""
    expected = {one.job: one.expected_start_s for one in decisions if isinstance(one, Hold)}
    given = {name: plan.targets.seats.get(name, ()) for name in sorted(plan.done.awaits) if name in expected}
    own = tuple(Reservation(name, expected[name] or plan.situation.now_s, seats) for name, seats in given.items())
    return (*own, *(one for one in plan.targets.reservations if one.job in expected and one.job not in given))


def _memory(plan: LivePlan) -> dict[str, Any]:
    """For the next round: what everybody has now and what was given to whom."""
    jobs, parts = plan.situation.jobs, plan.situation.parts
    has = {name: float(len(seats)) for name, seats in plan.board.seats.items() if seats}
    worth = {name: size * _useful(plan, jobs[name]) for name, size in has.items()}
    sitting = JobColumns.lazily(jobs[name] for name in has)
    used, done = (parts.used(sitting, amounts) for amounts in (has, worth))
    given = wanted_memory(plan.situation, plan.settled, plan.targets.seats)
    turned = {tenant: one for tenant, one in plan.situation.state.memory.get("turned", {}).items()
              if 0.0 <= plan.situation.now_s - one[0] < TURN_S}  # fmt: skip
    turned |= {jobs[name].tenant: [plan.situation.now_s, name] for name in plan.targets.turns.values()
               if name in plan.done.changes and not jobs[name].seats}  # fmt: skip
    mended = {name: when_s for name, when_s in plan.situation.state.memory.get("mended", {}).items()
              if 0.0 <= plan.situation.now_s - when_s < MENDED_S}  # fmt: skip
    mended |= {name: plan.situation.now_s for name, one in plan.repaired.items() if isinstance(one, Resize)}
    mended |= {name: plan.situation.now_s for name, seats in plan.done.changes.items()
               if seats and (jobs[name].broken or jobs[name].interrupted_s is not None)}  # fmt: skip
    due = {tenant: plan.situation.entitled(tenant) for tenant in plan.situation.promised}
    bound = [job for job in jobs.values() if job.finish_by_s is not None]
    promised = remembered(bound, plan.situation.promised, due, has)
    found = (
        ("turned", turned),
        ("mended", mended),
        ("promised", promised if bound else {}),
        ("affordable", sorted(plan.situation.affordable)),
    )
    kept = {name: one for name, one in found if one}
    return {**plan.targets.memory, **parts.memory(used, done), **given, **kept}


def _useful(plan: LivePlan, job: JobState) -> float:
    """What each of its devices is worth to it, as in the market: a gang on slow ones is owed the difference."""
    if job.curve is None:
        return 1.0
    board, seats = plan.board, plan.board.seats[job.id]
    here = {board.nodes[name].device_type for name in seats if name in board.nodes}
    return useful(job, here, here.union(board.kinds(board.shape(job))), len(seats))


def _started(plan: LivePlan, job: JobState, seats: Seats) -> Start:
    within = plan.board.used.get(job.tenant, 0) <= plan.situation.entitled(job.tenant) + 1e-9
    if job.interrupted_s is not None:
        code, because = "interrupted", "it goes on before others start, as it was interrupted"
    elif plan.targets.turns.get(job.tenant) == job.id:
        code, because = "waited-long", "it waited longest"
    elif job.id in plan.settled.committed:
        code, because = "room-made", "room was made for it"
    elif within or len(plan.situation.parts.names) == 1:
        code, because = "entitled", _share(plan, job)
    else:
        code, because = "borrowed", _share(plan, job)
    return Start(job.id, seats, reason(code, f"starts with {workers(len(seats))} on {node_list(seats)}: {because}",
                                       size=len(seats)))  # fmt: skip


def _share(plan: LivePlan, job: JobState) -> str:
    used, own = plan.board.used.get(job.tenant, 0), plan.situation.entitled(job.tenant)
    return f"tenant {job.tenant} then uses {used} and is entitled to {own:.3g}"


def _changed(plan: LivePlan, job: JobState, seats: Seats) -> Resize | Preempt:
    """A running gang that stops, shrinks, grows or moves."""
    was, now = len(job.seats), len(seats)
    receivers = plan.receivers(job.id)
    if job.broken:
        return _mended(job, seats)
    if not seats:
        why = _gives(plan, job, was, receivers)
        return Preempt(job.id, _with_receiver(f"back to the queue with its snapshot: {why}", was, receivers))
    if now < was:
        return Resize(job.id, seats, _shrinks(plan, job, now, receivers))
    return Resize(job.id, seats, _grows(plan, job, seats) if now > was else _moves(plan, job, seats, receivers))


def _mended(job: JobState, seats: Seats) -> Resize | Preempt:
    """A gang that lost workers, once room was made for others, or could not be."""
    survivors = len(job.seats)
    if not seats:
        text = f"lost a worker; no room for {job.min_workers - survivors} more: back to the queue with its snapshot"
        return Preempt(job.id, reason("worker-lost", text, survivors=survivors))
    newcomers = tuple(sorted((Counter(seats) - Counter(job.seats)).elements()))
    text = f"lost a worker; {workers(len(newcomers))} replaced on {node_list(newcomers)}"
    return Resize(job.id, seats, reason("worker-lost", text, survivors=survivors, newcomers=len(newcomers)))


def _with_receiver(text: str, given: int, receivers: list[JobState]) -> Reason:
    if not receivers:
        return reason("gives-back", text, devices=given)
    return reason("make-room", text, to=MentionedJob(receivers[0].id, receivers[0].tenant), devices=given)


def _shrinks(plan: LivePlan, job: JobState, now: int, receivers: list[JobState]) -> Reason:
    was, best = len(job.seats), better_smaller(job, len(job.seats))
    if best is not None and now <= best:
        text = (
            f"was faster with {workers(best)} ({job.speeds[best]:.0f} samples/s) "
            f"than with {was} ({job.speeds[was]:.0f}): gives {was - now} back"
        )
        return reason("slower", text, size=now, was=was)
    why = _gives(plan, job, was - now, receivers)
    return _with_receiver(f"shrinks from {was} to {workers(now)}: {why}", was - now, receivers)


def _gives(plan: LivePlan, job: JobState, given: int, receivers: list[JobState]) -> str:
    """Whom it gives devices, and why that one comes first."""
    if not receivers:
        return f"gives {devices(given)} back"
    to = receivers[0]
    waiting = "waiting " if not to.seats else ""
    text = f"gives {devices(given)} to {waiting}{MentionedJob(to.id, to.tenant)}"
    if to.id in plan.targets.due and to.id not in plan.targets.turns.values():
        return f"{text}, whose promise would be broken otherwise"
    if to.tenant != job.tenant:
        kinds = [plan.board.nodes[seat].device_type for seat in plan.leaves(job.id) if seat in plan.board.nodes]
        sure = [kind for kind in kinds if (plan.situation.lacking(to.tenant, kind) or 0) > 0]
        if sure:
            return f"{text}, to which devices of type {sure[0]} are guaranteed"
        if plan.situation.used(to.tenant) < plan.situation.entitled(to.tenant) + plan.situation.owed(to.tenant):
            return f"{text}, which has fewer than {plan.situation.share_in_words(to.tenant)}"
        return text
    if to.priority > job.priority:
        return f"{text}, whose priority is {to.priority} (its own: {job.priority})"
    if plan.targets.turns.get(to.tenant) == to.id:
        waited_s = plan.situation.now_s - max(to.since_s, to.submitted_s)
        return f"{text}, whose turn it is: it has waited longest ({waited_s / 60:.0f} minutes)"
    return f"{text}, whose turn it is: it would take {plan.targets.stretch.get(to.id, 1.0):.1f} times as long as alone"


def _grows(plan: LivePlan, job: JobState, seats: Seats) -> Reason:
    was, now = len(job.seats), len(seats)
    text = f"grows from {was} to {now} workers: {devices(now - was)} to spare, {_share(plan, job)}"
    return reason("spare-devices", text, size=now, was=was)


def _moves(plan: LivePlan, job: JobState, seats: Seats, receivers: list[JobState]) -> Reason:
    board, size = plan.board, len(seats)
    before, after = board.kind(job.seats), board.kind(seats)
    if before != after:
        slow, fast = speed_on(job, before or "", size), speed_on(job, after or "", size)
        gain = fast / slow if slow > 0 else 1.0
        was_on = devices(size, before)
        text = f"moves to {devices(size, after)} on {node_list(seats)}: {gain:.1f} times as fast as on {was_on}"
        return reason("faster-devices", text, size=size, was=size, gain=gain)
    left, taken = (tuple((Counter(one) - Counter(other)).elements()) for one, other in
                   ((job.seats, seats), (seats, job.seats)))  # fmt: skip
    if not receivers:
        return reason(
            "moves", f"moves from {node_list(left)} to {node_list(taken)}, so that gangs sit closer together", size=size
        )
    to, cost_s = receivers[0], size * job.restart_cost_s
    wants = f"{devices(to.min_workers, to.device_type)}{with_resources(board.shape(to).need)}"
    text = (
        f"moves from {node_list(left)} to {node_list(taken)}: "
        f"waiting {MentionedJob(to.id, to.tenant)} needs {wants} and fits nowhere else; "
        f"a new generation costs {workers(size)} about {job.restart_cost_s:.1f} s"
    )
    return reason(
        "defragment", text, **{"for": MentionedJob(to.id, to.tenant)}, leaves=sorted(set(left)), cost_s=cost_s
    )
