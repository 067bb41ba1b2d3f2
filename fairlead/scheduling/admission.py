"""Answers at submission whether a job's promise can be kept, and which one could be kept instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from fairlead.scheduling.forecast import NEVER_ENOUGH, Forecast, Policy, forecast
from fairlead.scheduling.job_speed import efficient_speed, expected_work_left, length_known, start_loss_s, with_curve
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.deadline_agenda import Row
from fairlead.scheduling.market.deadlines import MOST_JOBS, GangSizes, Plan, sizes_by_type, time_edges, work_to_reserve
from fairlead.scheduling.market.limits import confine_offers
from fairlead.scheduling.market.offers import Floats, Pool, offers
from fairlead.scheduling.market.policy import ROUND_S, Market
from fairlead.scheduling.phrases import devices, reason, utc_second
from fairlead.scheduling.queues import ANY, Tree, people_with_jobs
from fairlead.scheduling.state import ClusterState, JobState, Reason, Round

CONFIG = MarketConfig()
COARSE = 0.1
"""A forecast finish may exceed a deadline by this part of the time to it, or one round: forecasts step no finer."""

TRIES, FURTHER = 3, 1.5
"""Further deadlines simulated at most when the job's own cannot be kept, and the factor between them."""

NOTHING, UNSEEN = Round((), {}), Forecast({}, {}, {}, 0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about a job before it is accepted. Times are forecasts, not promises."""

    admitted: bool  # False only for a job that asks to be refused if its promise cannot be kept
    kept: bool | None  # whether its promise can be kept; None: no promise, or unknown duration
    expected_start_s: float | None
    expected_finish_s: float | None
    earliest_deadline_s: float | None  # that could be kept; None: unknown
    gang: int | None  # the smallest gang that keeps the deadline
    seats: tuple[str, ...]  # where it would start
    why: Reason
    decided: Reason | None = None  # of the decision about it now, if any


def admission(
    state: ClusterState, job: JobState, policy: Policy | None = None, *, strict: bool = False, look_ahead: bool = True,
    enough: Callable[[], bool] = NEVER_ENOUGH,
) -> Answer:  # fmt: skip
    """The outlook of this job if it were submitted now; promises given to other jobs come first.

    Without ``look_ahead`` only deadlines are planned, which is cheap with any number of jobs. Once it is ``enough``,
    the policy is not simulated further.
    """
    state, play = _with(state, job), policy or Market()
    first = play(state) if look_ahead else NOTHING
    told = forecast(state, play, finishes=(job.id,), first=first, enough=enough) if look_ahead else UNSEEN
    start_s, known = _moment(told.start_s.get(job.id)), length_known(state, job)
    finish_s = _moment(told.finish_s.get(job.id)) if known else None
    earliest_s, gang = _by_plan(state, job) if known else (None, None)
    earliest_s = _moment(earliest_s)
    if earliest_s is not None and finish_s is not None and job.finish_by_s is not None:
        planned_s, earliest_s = earliest_s, _as_played(state, job, play, told, earliest_s, enough)
        gang = gang if earliest_s == planned_s else None
    kept = None if job.start_by_s is not None and not look_ahead else _kept(job, start_s, earliest_s)
    why = _why(job, kept, start_s, finish_s, earliest_s, gang)
    decided = next((one.reason for one in first.decisions if one.job == job.id), None)
    return Answer(not (strict and kept is False), kept, start_s, finish_s, earliest_s, gang,
                  told.seats.get(job.id, ()), why, decided)  # fmt: skip


def _moment(epoch_s: float | None) -> float | None:
    """None for never, which JSON cannot express."""
    return epoch_s if epoch_s is not None and isfinite(epoch_s) else None


def _kept(job: JobState, start_s: float | None, earliest_s: float | None) -> bool | None:
    if job.start_by_s is not None:
        return start_s is not None and start_s <= job.start_by_s
    return None if job.finish_by_s is None or earliest_s is None else earliest_s <= job.finish_by_s


def _with(state: ClusterState, job: JobState) -> ClusterState:
    return replace(state, jobs=[*(one for one in state.jobs if one.id != job.id), job])


def _as_played(
    state: ClusterState, job: JobState, policy: Policy, told: Forecast, planned_s: float, enough: Callable[[], bool]
) -> float:
    """The earliest plannable deadline that is kept when the policy is simulated with it.

    A missed deadline says little about when another could be kept, since the policy does not hurry for a hopeless one:
    so the next deadline is simulated again, but not one that is much later.
    """
    due_s = _due_s(job)
    found_s = planned_s if planned_s > due_s else _late(state, job, due_s, told)
    if found_s is None:
        return planned_s
    done_s = found_s
    for _ in range(TRIES):
        if enough():
            break
        asked = replace(job, finish_by_s=found_s)
        later_s = _late(state, asked, found_s, forecast(_with(state, asked), policy, finishes=(job.id,), enough=enough))
        if later_s is None:
            return found_s
        found_s, done_s = min(later_s, state.now_s + FURTHER * (found_s - state.now_s)), later_s
    return done_s


def _late(state: ClusterState, job: JobState, deadline_s: float, told: Forecast) -> float | None:
    """When it is done, if the simulation says that this is too late; the plan only knows devices and limits.

    For a job that did not start in the simulation the plan is more reliable, unless its deadline passed meanwhile.
    """
    finish_s = _moment(told.finish_s.get(job.id))
    seen = job.id in told.seats or told.until_s >= deadline_s
    late = finish_s is not None and finish_s > deadline_s + _unsure_s(state, deadline_s)
    return finish_s if seen and late else None


def _unsure_s(state: ClusterState, deadline_s: float) -> float:
    """Tolerance by which a simulated finish may exceed a deadline."""
    return max(COARSE * (deadline_s - state.now_s), state.round_s or 0.0)


def _by_plan(state: ClusterState, job: JobState) -> tuple[float | None, int | None]:
    """The earliest deadline that can be kept beside the promised ones, and the smallest gang for the job's own."""
    pool, bound = Pool.of(state.nodes), _promised(state, job)
    jobs = [with_curve(one, pool.types, int(pool.devices)) for one in (*bound, job)]
    table, left = confine_offers(jobs, offers(jobs, pool), pool), expected_work_left(state, [*bound, job])
    room = DeadlineCapacity(state, pool, time_edges(state.now_s, state.round_s or ROUND_S, _moments(state, bound)))
    for at, one in enumerate(bound):
        size_options = sizes_by_type(table, at)
        room.plan(one).reserve(
            size_options, work_to_reserve(left[at], size_options, one.restart_cost_s, CONFIG), _due_s(one)
        )
    size_options = sizes_by_type(table, len(bound))
    if not size_options:
        return None, None
    plan, wanted = room.plan(job), work_to_reserve(left[-1], size_options, start_loss_s(state, job), CONFIG)
    return plan.soonest(size_options, wanted), _smallest(plan, size_options, wanted, job.finish_by_s)


def _moments(state: ClusterState, bound: Sequence[JobState]) -> Floats:
    """Times at which the plan changes: deadlines, and the renewal of budgets."""
    again_s = [tenant.spent.again_s for tenant in state.tenants if tenant.spent is not None]
    return np.array([*(_due_s(one) for one in bound), *again_s])


class DeadlineCapacity:
    """Devices for jobs with deadlines over time: by type, and under every limit up to the top."""

    def __init__(self, state: ClusterState, pool: Pool, edges_s: Floats) -> None:
        self._edges_s, self._pool = edges_s, pool
        self._tree = Tree.of(state.tenants, people_with_jobs(state.jobs))
        self._types = [self._row(devices) for devices in pool.capacity.tolist()]
        self._limits: dict[tuple[str, str], Row] = {}  # by queue and type, or any

    def plan(self, job: JobState) -> Plan:
        """The plan that this job must fit in; reservations in it are taken from the shared rows."""
        path = [self._tree.queues[name] for name in self._tree.path(job.tenant)]
        over = [self._limit(queue.name, ANY, queue.quota) for queue in path if queue.quota is not None]
        if (spent := path[0].spent) is not None and not job.seats:
            over.append([0.0 if end_s <= spent.again_s else inf for end_s in self._edges_s[1:].tolist()] + [inf])
        within = {}
        for kind, name in enumerate(self._pool.types):
            most = [self._limit(queue.name, name, queue.most[name]) for queue in path if name in queue.most]
            within[kind] = [self._types[kind], *over, *most]
        return Plan(self._edges_s, self._pool.devices, within=within)

    def _limit(self, queue: str, kind: str, amount: float) -> Row:
        return self._limits.setdefault((queue, kind), self._row(amount))

    def _row(self, amount: float) -> Row:
        return [float(amount)] * len(self._edges_s)


def _promised(state: ClusterState, job: JobState) -> list[JobState]:
    """Other jobs with deadlines, the smallest first, as the policy plans them."""
    bound = [one for one in state.jobs if one.finish_by_s is not None and one.id != job.id]
    area = dict(zip((one.id for one in bound), expected_work_left(state, bound), strict=True))
    bound.sort(key=lambda one: (area[one.id] / max(efficient_speed(one), 1e-300), one.id))
    return bound[:MOST_JOBS]


def _due_s(job: JobState) -> float:
    return inf if job.finish_by_s is None else job.finish_by_s


def _smallest(plan: Plan, size_options: Sequence[GangSizes], wanted: float, deadline_s: float | None) -> int | None:
    if deadline_s is None:
        return None
    sizes = sorted({int(size) for option in size_options for size in option.sizes})
    return next((size for size in sizes if plan.soonest(size_options, wanted, size) <= deadline_s), None)


def _why(
    job: JobState, kept: bool | None, start_s: float | None, finish_s: float | None, earliest_s: float | None,
    gang: int | None,
) -> Reason:  # fmt: skip
    facts = {"kept": kept, "expected_start_s": start_s, "expected_finish_s": finish_s,
             "earliest_deadline_s": earliest_s, "gang": gang}  # fmt: skip
    if job.start_by_s is not None and kept is None:
        return reason("not-known", f"it is not known yet whether it starts by {utc_second(job.start_by_s)}", **facts)
    if job.start_by_s is not None:
        begins = "is not expected to start" if start_s is None else f"starts about {utc_second(start_s)}"
        word, code = ("in time for", "in-time") if kept else ("too late for", "late-start")
        return reason(code, f"{begins}, {word} its class ({utc_second(job.start_by_s)})", **facts)
    if job.finish_by_s is None:
        return reason("no-promise", "it has no deadline and no class, so nothing is promised", **facts)
    if earliest_s is None:
        return reason("length-unknown", "its duration is unknown, so its deadline cannot be checked; "
                      "declare it with takes", **facts)  # fmt: skip
    if kept:
        at_least = "" if gang is None else f" with {devices(gang)} or more"
        barely = ", but only just" if finish_s is not None and finish_s > job.finish_by_s else ""
        return reason(
            "in-time", f"can be done by its deadline, {utc_second(job.finish_by_s)},{at_least}{barely}", **facts
        )
    return reason("late-finish", f"its deadline, {utc_second(job.finish_by_s)}, cannot be kept: "
                  f"{utc_second(earliest_s)} is the earliest that could be", **facts)  # fmt: skip
