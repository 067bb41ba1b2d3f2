"""Turns a live plan into a round: a decision with its reason for each change, and a reason for each waiting job."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fairlead.scheduling.job_columns import JobColumns
from fairlead.scheduling.live_plan import LivePlan, live_plan
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.energy import sleep_decisions
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.market_targets import LONGEST_WAIT_S, REPAIR_GRACE_S
from fairlead.scheduling.mentioned_jobs import MentionedJob, mentioned
from fairlead.scheduling.phrases import devices, node_list, reason, with_resources, workers
from fairlead.scheduling.promise_budgets import savings_memory
from fairlead.scheduling.reasons import Reasons
from fairlead.scheduling.scaling import better_smaller, device_usefulness, speed_on
from fairlead.scheduling.settled_state import Seats, commitments_memory
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


def live_round(state: ClusterState, config: MarketConfig = DEFAULT_CONFIG) -> Round:
    """Decides which jobs start, grow, shrink, move, stop or wait now, and why.

    A round does not give away the devices that its own decisions free: they are free once their workers are gone. So
    all decisions of a round can be carried out at the same time, in any order.
    """
    return round_with_reasons(live_plan(state, config))


def round_with_reasons(plan: LivePlan) -> Round:
    """The decisions of this plan, with a reason for each change and for each waiting job."""
    jobs, changes = plan.situation.jobs, plan.feasible.changes
    running = {name: seats for name, seats in changes.items() if jobs[name].seats}
    made: list[Decision] = list(plan.repaired.values())
    made += [_change(plan, jobs[name], seats) for name, seats in running.items()]
    made.sort(key=lambda decision: (not isinstance(decision, Preempt), decision.job))
    starts = [_start(plan, job, changes[job.id]) for job in plan.queue_at_start if job.id in changes]
    decisions = (*made, *starts, *hold_decisions(plan))
    kept = _reservations(plan, decisions)
    final = {
        **plan.settled.seats,
        **{name: plan.targets.seats.get(name, ()) for name in plan.settled.bidders},
        **changes,
    }
    nodes, idle = sleep_decisions(plan.situation.state, final, kept)
    entitlements, reasons = plan.situation.shares.by_tenant(), Reasons(plan, decisions)
    return Round(decisions, entitlements, _next_memory(plan) | idle, tuple(nodes), kept, reasons)


def _reservations(plan: LivePlan, decisions: tuple[Decision, ...]) -> tuple[Reservation, ...]:
    """Seats kept for waiting jobs, with the time at which each job is expected to get them."""
    expected = {one.job: one.expected_start_s for one in decisions if isinstance(one, Hold)}
    given = {name: plan.targets.seats.get(name, ()) for name in sorted(plan.feasible.awaits) if name in expected}
    own = tuple(Reservation(name, expected[name] or plan.situation.now_s, seats) for name, seats in given.items())
    return (*own, *(one for one in plan.targets.reservations if one.job in expected and one.job not in given))


def _next_memory(plan: LivePlan) -> dict[str, Any]:
    """What the next round needs to know: what everybody holds now, and which seats were promised to which job."""
    jobs, shares = plan.situation.jobs, plan.situation.shares
    has = {name: float(len(seats)) for name, seats in plan.seating.seats.items() if seats}
    worth = {name: size * _usefulness(plan, jobs[name]) for name, size in has.items()}
    sitting = JobColumns.lazily(jobs[name] for name in has)
    used, done = (shares.used(sitting, amounts) for amounts in (has, worth))
    given = commitments_memory(plan.situation, plan.settled, plan.targets.seats)
    turned = {tenant: one for tenant, one in plan.situation.state.memory.get("turned", {}).items()
              if 0.0 <= plan.situation.now_s - one[0] < LONGEST_WAIT_S}  # fmt: skip
    turned |= {jobs[name].tenant: [plan.situation.now_s, name] for name in plan.targets.turns.values()
               if name in plan.feasible.changes and not jobs[name].seats}  # fmt: skip
    mended = {name: when_s for name, when_s in plan.situation.state.memory.get("mended", {}).items()
              if 0.0 <= plan.situation.now_s - when_s < REPAIR_GRACE_S}  # fmt: skip
    mended |= {name: plan.situation.now_s for name, one in plan.repaired.items() if isinstance(one, Resize)}
    mended |= {name: plan.situation.now_s for name, seats in plan.feasible.changes.items()
               if seats and (jobs[name].broken or jobs[name].interrupted_s is not None)}  # fmt: skip
    due = {tenant: plan.situation.entitled(tenant) for tenant in plan.situation.promised}
    bound = [job for job in jobs.values() if job.finish_by_s is not None]
    promised = savings_memory(bound, plan.situation.promised, due, has)
    found = (
        ("turned", turned),
        ("mended", mended),
        ("promised", promised if bound else {}),
        ("affordable", sorted(plan.situation.affordable_jobs)),
        ("room_from", _room_from(plan)),
    )
    kept = {name: one for name, one in found if one}
    return {**plan.targets.memory, **shares.memory(used, done), **given, **kept}


def _room_from(plan: LivePlan) -> dict[str, list[list[str]]]:
    """By waiting job, the jobs that make room for it: named once it starts, when they have left already."""
    waiting = {job.id for job in plan.queue}
    found: dict[str, list[list[str]]] = {
        name: givers for name, givers in plan.situation.state.memory.get("room_from", {}).items()
        if name in waiting and name in plan.settled.committed
    }  # fmt: skip
    for name in plan.feasible.awaits:
        if name in waiting and (givers := plan.jobs_making_room(name)):
            known = found.get(name, [])
            found[name] = [*known, *(one for each in givers if (one := [each.job, each.tenant]) not in known)]
    return found


def _usefulness(plan: LivePlan, job: JobState) -> float:
    """What one of its devices is worth to the job, 0 to 1: a gang on slow devices is owed the difference."""
    if job.curve is None:
        return 1.0
    seating, seats = plan.seating, plan.seating.seats[job.id]
    here = {seating.nodes[name].device_type for name in seats if name in seating.nodes}
    return device_usefulness(job, here, here.union(seating.kinds(seating.shape(job))), len(seats))


def _start(plan: LivePlan, job: JobState, seats: Seats) -> Start:
    within = plan.seating.used.get(job.tenant, 0) <= plan.situation.entitled(job.tenant) + 1e-9
    if job.interrupted_s is not None:
        code, because = "interrupted", "interrupted jobs restart before others start"
    elif plan.targets.turns.get(job.tenant) == job.id:
        code, because = "waited-long", f"it waited longest of tenant {job.tenant}"
    elif job.id in plan.settled.committed:
        code, because = "room-made", _room_text(plan, job)
    elif within or len(plan.situation.shares.names) == 1:
        code, because = "entitled", _share_use_text(plan, job)
    else:
        code, because = "borrowed", _share_use_text(plan, job)
    return Start(job.id, seats, reason(code, f"starts with {workers(len(seats))} on {node_list(seats)}: {because}",
                                       size=len(seats)))  # fmt: skip


def _room_text(plan: LivePlan, job: JobState) -> str:
    """Which jobs gave up the seats on which this one starts, as far as earlier rounds remember."""
    givers = [MentionedJob(*one) for one in plan.situation.state.memory.get("room_from", {}).get(job.id, ())]
    return f"{mentioned(givers)} made room for it" if givers else "these devices were reserved for it"


def _share_use_text(plan: LivePlan, job: JobState) -> str:
    used, own = plan.seating.used.get(job.tenant, 0), plan.situation.entitled(job.tenant)
    return f"tenant {job.tenant} then uses {used} and is entitled to {own:.3g}"


def _change(plan: LivePlan, job: JobState, seats: Seats) -> Resize | Preempt:
    """The decision about a running gang that stops, shrinks, grows or moves."""
    was, now = len(job.seats), len(seats)
    receivers = plan.receivers(job.id)
    if job.broken:
        return _repaired_gang(job, seats)
    if not seats:
        why = _giving_text(plan, job, was, receivers)
        return Preempt(job.id, _with_receiver(f"back to the queue with its snapshot: {why}", was, receivers))
    if now < was:
        return Resize(job.id, seats, _shrink_reason(plan, job, now, receivers))
    return Resize(
        job.id, seats, _grow_reason(plan, job, seats) if now > was else _move_reason(plan, job, seats, receivers)
    )


def _repaired_gang(job: JobState, seats: Seats) -> Resize | Preempt:
    """The decision about a gang that lost workers, once the market found room for new ones or found none."""
    survivors = len(job.seats)
    if not seats:
        missing = workers(job.min_workers - survivors)
        text = f"lost a worker; no room for {missing} more: back to the queue with its snapshot"
        return Preempt(job.id, reason("worker-lost", text, survivors=survivors))
    newcomers = tuple(sorted((Counter(seats) - Counter(job.seats)).elements()))
    text = f"lost a worker; {workers(len(newcomers))} replaced on {node_list(newcomers)}"
    return Resize(job.id, seats, reason("worker-lost", text, survivors=survivors, newcomers=len(newcomers)))


def _with_receiver(text: str, given: int, receivers: list[JobState]) -> Reason:
    if not receivers:
        return reason("gives-back", text, devices=given)
    return reason("make-room", text, to=MentionedJob(receivers[0].id, receivers[0].tenant), devices=given)


def _shrink_reason(plan: LivePlan, job: JobState, now: int, receivers: list[JobState]) -> Reason:
    was, best = len(job.seats), better_smaller(job, len(job.seats))
    if best is not None and now <= best:
        text = (
            f"was faster with {workers(best)} ({job.speeds[best]:.0f} samples/s) "
            f"than with {was} ({job.speeds[was]:.0f}): gives {was - now} back"
        )
        return reason("slower", text, size=now, was=was)
    why = _giving_text(plan, job, was - now, receivers)
    return _with_receiver(f"shrinks from {was} to {workers(now)}: {why}", was - now, receivers)


def _giving_text(plan: LivePlan, job: JobState, given: int, receivers: list[JobState]) -> str:
    """Which job gets the devices, and why that job comes first."""
    if not receivers:
        return f"gives {devices(given)} back"
    to = receivers[0]
    waiting = "waiting " if not to.seats else ""
    text = f"gives {devices(given)} to {waiting}{MentionedJob(to.id, to.tenant)}"
    if to.id in plan.targets.due and to.id not in plan.targets.turns.values():
        return f"{text}, which would miss its promise without them"
    if to.tenant != job.tenant:
        kinds = [
            plan.seating.nodes[seat].device_type for seat in plan.seats_given_up(job.id) if seat in plan.seating.nodes
        ]
        sure = [kind for kind in kinds if (plan.situation.guarantee_left(to.tenant, kind) or 0) > 0]
        if sure:
            return f"{text}, whose tenant is guaranteed devices of type {sure[0]}"
        used = plan.situation.used(to.tenant)
        if used < plan.situation.entitled(to.tenant) + plan.situation.owed(to.tenant):
            return f"{text}, whose tenant uses {used} of {plan.situation.share_text(to.tenant)}"
        return text
    if to.priority > job.priority:
        return f"{text}, whose priority is {to.priority} (its own: {job.priority})"
    if plan.targets.turns.get(to.tenant) == to.id:
        waited_s = plan.situation.now_s - max(to.since_s, to.submitted_s)
        return f"{text}, which has waited longest of tenant {to.tenant} ({waited_s / 60:.0f} minutes)"
    stretch = plan.targets.stretch.get(to.id, 1.0)
    return f"{text}, which bids more for them: with its waiting it takes {stretch:.1f} times as long as alone"


def _grow_reason(plan: LivePlan, job: JobState, seats: Seats) -> Reason:
    was, now = len(job.seats), len(seats)
    text = f"grows from {was} to {now} workers: {devices(now - was)} to spare; {_share_use_text(plan, job)}"
    return reason("spare-devices", text, size=now, was=was)


def _move_reason(plan: LivePlan, job: JobState, seats: Seats, receivers: list[JobState]) -> Reason:
    seating, size = plan.seating, len(seats)
    before, after = seating.kind(job.seats), seating.kind(seats)
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
            "moves",
            f"moves from {node_list(left)} to {node_list(taken)} so that its workers are closer together",
            size=size,
        )
    to, cost_s = receivers[0], size * job.restart_cost_s
    wants = f"{devices(to.min_workers, to.device_type)}{with_resources(seating.shape(to).need)}"
    text = (
        f"moves from {node_list(left)} to {node_list(taken)}: "
        f"waiting {MentionedJob(to.id, to.tenant)} needs {wants} and fits nowhere else; "
        f"the move stops {workers(size)} for about {job.restart_cost_s:.1f} s"
    )
    return reason(
        "defragment", text, **{"for": MentionedJob(to.id, to.tenant)}, leaves=sorted(set(left)), cost_s=cost_s
    )
