"""The answer at submission: whether the promise can be kept, and if not, what could be promised instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from fairlead.scheduling.forecast import Forecast, Policy, forecast
from fairlead.scheduling.market.deadlines import MOST_JOBS, Ladder, Plan, edges, ladder_of, promised
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Pool, offers
from fairlead.scheduling.market.policy import ROUND_S, Market
from fairlead.scheduling.pace import efficient_speed, expected_left, length_known, start_cost_s, with_curve
from fairlead.scheduling.state import ClusterState, Decision, JobState, Reason, Round
from fairlead.scheduling.words import devices, reason, second

DIALS = Dials()
COARSE = 0.1
"""So much of the time to a deadline a played finish may be beyond it: the steps of a forecast are no finer."""

NOTHING, UNSEEN = Round((), {}), Forecast({}, {}, {}, 0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be said about a job before it is taken. Moments are forecasts, not promises."""

    admitted: bool  # False only for one that is to be refused if its promise cannot be kept
    kept: bool | None  # whether its promise can be; None: nothing was promised, or it is not known how long it takes
    expected_start_s: float | None
    expected_finish_s: float | None
    earliest_deadline_s: float | None  # that could be promised; None where that is not known
    gang: int | None  # the smallest that still keeps the deadline
    seats: tuple[str, ...]  # where it would start
    why: Reason
    decision: Decision | None = None  # about it now, if it changes anything for it


def admission(
    state: ClusterState, job: JobState, policy: Policy | None = None, *, strict: bool = False, look_ahead: bool = True
) -> Answer:
    """What would become of this job if it were submitted now; the promises that others were given come first.

    Without ``look_ahead`` only deadlines are looked at, which costs little however many jobs there are.
    """
    state = replace(state, jobs=[*(one for one in state.jobs if one.id != job.id), job])
    first = (policy or Market())(state) if look_ahead else NOTHING
    told = forecast(state, policy or Market(), finishes=(job.id,), first=first) if look_ahead else UNSEEN
    start_s, known = _moment(told.start_s.get(job.id)), length_known(state, job)
    finish_s = _moment(told.finish_s.get(job.id)) if known else None
    earliest_s, gang = _by_plan(state, job) if known else (None, None)
    earliest_s = _moment(earliest_s)
    if earliest_s is not None and finish_s is not None and _held_back(state, job, finish_s):
        earliest_s, gang = max(earliest_s, finish_s), None
    kept = None if job.start_by_s is not None and not look_ahead else _kept(job, start_s, earliest_s)
    if kept and job.finish_by_s is not None and finish_s is not None:
        finish_s = min(finish_s, job.finish_by_s)  # devices are kept free for it, as late as they can be
    why = _why(job, kept, start_s, finish_s, earliest_s, gang)
    decision = next((one for one in first.decisions if one.job == job.id), None)
    return Answer(not (strict and kept is False), kept, start_s, finish_s, earliest_s, gang,
                  told.seats.get(job.id, ()), why, decision)  # fmt: skip


def _moment(epoch_s: float | None) -> float | None:
    """None where it is never: no answer in JSON can say so."""
    return epoch_s if epoch_s is not None and isfinite(epoch_s) else None


def _kept(job: JobState, start_s: float | None, earliest_s: float | None) -> bool | None:
    if job.start_by_s is not None:
        return start_s is not None and start_s <= job.start_by_s
    return None if job.finish_by_s is None or earliest_s is None else earliest_s <= job.finish_by_s


def _held_back(state: ClusterState, job: JobState, finish_s: float) -> bool:
    """Whether, as the policy was played, it is too late because of what other tenants are entitled to.

    The plan is for all devices there are; how much of them a tenant may have for its deadlines only playing tells.
    """
    if job.finish_by_s is None or len({one.tenant for one in state.jobs}) < 2:
        return False
    return finish_s > job.finish_by_s + COARSE * (job.finish_by_s - state.now_s)


def _by_plan(state: ClusterState, job: JobState) -> tuple[float | None, int | None]:
    """The earliest deadline beside those that are kept already, and the smallest gang that keeps the job's own."""
    pool = Pool.of(state.nodes)
    bound = _promised(state, job)
    table = offers([with_curve(one, pool.types, int(pool.devices)) for one in (*bound, job)], pool)
    left = expected_left(state, [*bound, job])
    plan = Plan(edges(state.now_s, state.round_s or ROUND_S, np.array([_due_s(one) for one in bound])),
                pool.devices)  # fmt: skip
    for at in range(len(bound)):
        ladder = ladder_of(table, at)
        if len(ladder.sizes):
            wanted = promised(left[at], ladder, bound[at].restart_cost_s, DIALS)
            plan.reserve(ladder, wanted, _due_s(bound[at]))
    ladder = ladder_of(table, len(bound)).up_to(_quota(state, job))
    if not len(ladder.sizes):
        return None, None
    wanted = promised(left[-1], ladder, start_cost_s(state, job), DIALS)
    return plan.soonest(ladder, wanted, len(ladder.sizes) - 1), _smallest(plan, ladder, wanted, job.finish_by_s)


def _promised(state: ClusterState, job: JobState) -> list[JobState]:
    """The others with deadlines, the smallest first, as the policy plans for them."""
    bound = [one for one in state.jobs if one.finish_by_s is not None and one.id != job.id]
    area = dict(zip((one.id for one in bound), expected_left(state, bound), strict=True))
    bound.sort(key=lambda one: (area[one.id] / max(efficient_speed(one), 1e-300), one.id))
    return bound[:MOST_JOBS]


def _due_s(job: JobState) -> float:
    return inf if job.finish_by_s is None else job.finish_by_s


def _smallest(plan: Plan, ladder: Ladder, wanted: float, deadline_s: float | None) -> int | None:
    if deadline_s is None:
        return None
    rungs = range(len(ladder.sizes))
    return next((int(ladder.sizes[at]) for at in rungs if plan.soonest(ladder, wanted, at) <= deadline_s), None)


def _quota(state: ClusterState, job: JobState) -> float:
    quota = next((tenant.quota for tenant in state.tenants if tenant.name == job.tenant), None)
    return inf if quota is None else float(quota)


def _why(
    job: JobState, kept: bool | None, start_s: float | None, finish_s: float | None, earliest_s: float | None,
    gang: int | None,
) -> Reason:  # fmt: skip
    facts = {"kept": kept, "expected_start_s": start_s, "expected_finish_s": finish_s,
             "earliest_deadline_s": earliest_s, "gang": gang}  # fmt: skip
    if job.start_by_s is not None and kept is None:
        return reason("not-known", f"it is not known yet whether it starts by {second(job.start_by_s)}", **facts)
    if job.start_by_s is not None:
        begins = "is not expected to start as things are" if start_s is None else f"starts about {second(start_s)}"
        word, code = ("in time for", "in-time") if kept else ("too late for", "late-start")
        return reason(code, f"{begins}, {word} its class ({second(job.start_by_s)})", **facts)
    if job.finish_by_s is None:
        return reason("no-promise", "nothing is promised for it", **facts)
    if earliest_s is None:
        return reason("length-unknown", "nobody knows how long it takes, so whether its deadline can be kept; "
                      "say so with takes", **facts)  # fmt: skip
    if kept:
        at_least = "" if gang is None else f" with {devices(gang)} or more"
        return reason("in-time", f"can be done by its deadline, {second(job.finish_by_s)},{at_least}", **facts)
    return reason("late-finish", f"its deadline, {second(job.finish_by_s)}, cannot be kept: "
                  f"{second(earliest_s)} is the earliest that could be", **facts)  # fmt: skip
