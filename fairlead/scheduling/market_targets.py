"""Asks the market which seats every gang of a live cluster should have in the settled state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fairlead.scheduling.job_columns import JobColumns, read_column
from fairlead.scheduling.job_views import URGENT_S, urgent
from fairlead.scheduling.market.estimates import History
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.placement import PlacedGangs, place_gangs, reservations
from fairlead.scheduling.market.policy import Outcome, run_market
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.settled_state import Seats, SettledState, free_resources
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Reservation

ROUND_S = 5.0
"""How long a live decision is expected to stand: until the next event, which is seconds."""

MIN_RUN_S = 60.0
"""Live, a gang keeps its size until it has run for so long, unless a promise, a loss or a share requires a change."""

REPAIR_GRACE_S = 15.0
"""A gang that was repaired or restarted after a loss is left alone for so long, whichever job comes next."""

LONGEST_WAIT_S, LONGEST_WAIT_TURN_S = 300.0, 120.0
"""At this interval the longest waiting job of a tenant comes first whatever it bids, if it has waited for at least as
long, and keeps its gang for a while: short jobs that keep coming would outbid it for ever."""


@dataclass(frozen=True, slots=True)
class MarketTargets:
    """The seats that the market wants each bidder to have, and its bid."""

    seats: Mapping[str, Seats] = field(default_factory=dict)
    bid: Mapping[str, float] = field(default_factory=dict)  # for one device
    stretch: Mapping[str, float] = field(default_factory=dict)
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    due: frozenset[str] = frozenset()  # jobs that must run now: a promise, an interruption
    turns: Mapping[str, str] = field(default_factory=dict)  # by tenant, the longest waiting job whose turn it is
    price: float = 0.0  # of the cheapest device
    reservations: tuple[Reservation, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)


def market_targets(situation: Situation, settled: SettledState) -> MarketTargets:
    """The market's answer for all bidders."""
    jobs = JobColumns.of(sorted(settled.bidders.values(), key=partial(_rank, situation.now_s)))
    history = _history(situation.state, situation.seen, situation.jobs)
    pool = _pool(situation, settled)
    turns = _longest_waiting(situation, settled.bidders)
    first = _must_run_now(situation, settled.bidders)
    state = replace(situation.state, nodes=pool.nodes, round_s=ROUND_S)
    shares = _shares_without_fixed(situation, settled)
    config = replace(situation.config, floor_s=0.0, fresh_s=MIN_RUN_S)
    outcome = run_market(state, jobs, pool, history, shares, config, first, ahead=set(turns.values()), tenure=True)
    chosen, found = place_gangs(
        state, jobs, outcome.choices, pool, outcome.problem, outcome.chosen, outcome.book, config
    )
    told = _targets(replace(outcome, chosen=chosen), found, first, history, situation.now_s)
    return replace(told, turns=turns)


def _rank(now_s: float, job: JobState) -> tuple[bool, float, float, str]:
    """The order of equal bids: running gangs by what stopping them would lose, then jobs by how long they wait."""
    if not job.seats:
        return (True, max(job.since_s, job.submitted_s), job.submitted_s, job.id)
    loses_s = job.restart_cost_s + (max(0.0, now_s - job.since_s) if job.starts_over else 0.0)
    return (False, -loses_s * len(job.seats), job.submitted_s, job.id)


def _must_run_now(situation: Situation, bidders: Collection[str]) -> frozenset[str]:
    """Jobs that get their smallest gang first: a promise is urgent, the job was interrupted and its tenant may claim
    the gang, or it was repaired a moment ago."""
    promised = {job.id for job in situation.jobs.values()
                if (urgent(job, situation.now_s) and (job.finish_by_s is None or job.id in situation.affordable_jobs))
                or _just_started_for_promise(job, situation.now_s)}  # fmt: skip
    interrupted = {
        job.id
        for job in situation.jobs.values()
        if (job.broken or (job.interrupted_s is not None and not job.seats)) and situation.resumes_first(job)
    }
    mended = {name for name, when_s in situation.state.memory.get("mended", {}).items()
              if 0.0 <= situation.now_s - when_s < REPAIR_GRACE_S and name in situation.jobs
              and situation.jobs[name].seats}  # fmt: skip
    return frozenset((promised | interrupted | mended).intersection(bidders))


def _longest_waiting(situation: Situation, bidders: Mapping[str, JobState]) -> dict[str, str]:
    """By tenant, the longest waiting job whose turn it is, or the running one whose turn is not over."""
    found: dict[str, str] = {}
    longest: dict[str, tuple[float, str]] = {}
    for name in bidders:
        job = situation.jobs[name]
        when_s, last = situation.state.memory.get("turned", {}).get(job.tenant, (-LONGEST_WAIT_S, ""))
        since_s = situation.now_s - when_s
        if job.seats:
            if name == last and 0.0 <= since_s < LONGEST_WAIT_TURN_S:
                found[job.tenant] = name
        elif not 0.0 <= since_s < LONGEST_WAIT_S:
            begun_s = max(job.since_s, job.submitted_s)
            if situation.now_s - begun_s >= LONGEST_WAIT_S:
                longest[job.tenant] = min(longest.get(job.tenant, (begun_s, name)), (begun_s, name))
    return {tenant: name for tenant, (_, name) in longest.items()} | found


def _just_started_for_promise(job: JobState, now_s: float) -> bool:
    """Whether it was started a moment ago to keep a promised start: it is not stopped right away."""
    if job.start_by_s is None or not job.seats or not 0.0 <= now_s - job.since_s < MIN_RUN_S:
        return False
    return -URGENT_S <= job.since_s - job.start_by_s <= 0.0


def _history(state: ClusterState, seen: Mapping[str, JobState], bidders: Collection[str]) -> History:
    """The history after this round. A job that is gone has finished; one that no node can take now has not."""
    known = History.of(state.memory)
    aside = {name: one for name, one in known.seen.items() if name in bidders and name not in seen}
    others = {name: one for name, one in known.seen.items() if name not in aside}
    found = History(known.finished, others).updated(JobColumns.lazily(seen.values()), begun=True)
    return replace(found, seen={**found.seen, **aside})


def _pool(situation: Situation, settled: SettledState) -> Pool:
    """The nodes in service without what fixed gangs keep; seats that jobs are leaving count as free.

    Of equally good nodes those that no job is leaving come first: their seats are free now.
    """
    nodes = situation.seating.nodes
    left = free_resources(
        situation, {name: settled.seats[name] for name in settled.seats if name not in settled.bidders}
    )
    pool = Pool.of([replace(node, capacity=left[name]) for name, node in nodes.items()])
    left_by = Counter(seat for job in situation.jobs.values() for seat in job.leaving)
    if left_by:
        pool = replace(pool, nodes=tuple(sorted(pool.nodes, key=lambda node: left_by[node.name])))
    # Without curves that tell one node from several, every size is worth a look, not only powers of two.
    curves = any(job.curve is not None for job in situation.state.jobs)
    return pool if curves else replace(pool, width=np.ones_like(pool.width))


def _shares_without_fixed(situation: Situation, settled: SettledState) -> Shares:
    """Budgets and limits without what the fixed gangs keep."""
    shares = situation.shares
    kept = {name: seats for name, seats in settled.seats.items() if seats and name not in settled.bidders}
    used = shares.used([situation.jobs[name] for name in kept], {name: len(seats) for name, seats in kept.items()})
    taken = np.array([used.get(name, 0.0) for name in shares.names])
    budget, ceiling, claim, has = (
        np.maximum(0.0, amount - taken) for amount in (shares.budget, shares.ceiling, shares.claim, shares.has)
    )
    return replace(shares, budget=budget, ceiling=ceiling, claim=claim, has=has)


def _targets(
    outcome: Outcome, found: PlacedGangs, first: frozenset[str], history: History, now_s: float
) -> MarketTargets:
    names = read_column(outcome.jobs, "id")
    wake_s = {"wake_s": outcome.duty.wake_s} if np.isfinite(outcome.duty.wake_s) else {}
    obliged = {names[at] for at in np.nonzero(outcome.duty.column >= 0)[0].tolist()}
    return MarketTargets(
        seats={name: tuple(sorted(seats)) for name, seats in found.seats.items() if seats},
        bid=dict(zip(names, outcome.bids.per_device.tolist(), strict=True)),
        stretch=dict(zip(names, outcome.bids.stretch.tolist(), strict=True)),
        remaining_s=dict(zip(names, outcome.bids.remaining_s.tolist(), strict=True)),
        due=first | obliged,
        price=float(outcome.chosen.price.min()) if len(outcome.chosen.price) else 0.0,
        reservations=reservations(found, now_s),
        memory=_history_memory(history) | wake_s,
    )


def _history_memory(history: History) -> dict[str, Any]:
    """The history to store: without waiting jobs that have not begun, which may be thousands."""
    return {"finished": history.finished, "seen": dict(history.seen)}
