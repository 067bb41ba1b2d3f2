"""What the market would give everybody on a live cluster, down to the seats, in the settled state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fairlead.scheduling.job_columns import JobColumns, read
from fairlead.scheduling.job_views import URGENT_S, urgent
from fairlead.scheduling.market.estimates import History
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.placement import PlacedGangs, dealt, reservations
from fairlead.scheduling.market.policy import Outcome, sale
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.settled_state import Seats, SettledState, free_amounts
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Reservation

ROUND_S = 5.0
"""How long a live decision is taken to stand: until something happens, which is seconds."""

FLOOR_S = 60.0
"""Live, a gang is left alone until it has run for so long, unless a promise, a loss or another's share asks for it."""


MENDED_S = 15.0
"""A gang that lost a worker and was mended, or started anew, is left alone for so long, whoever's turn it is."""

TURN_S, TURN_LASTS_S = 300.0, 120.0
"""So often the job of a tenant that has waited longest, and for at least as long, comes first, whatever it bids, and is
left its gang for a while: short jobs that keep coming would outbid it for ever."""


@dataclass(frozen=True, slots=True)
class MarketTargets:
    """The seats of everybody who was asked and is to have any, and what the market thinks of each."""

    seats: Mapping[str, Seats] = field(default_factory=dict)
    bid: Mapping[str, float] = field(default_factory=dict)  # for one device
    stretch: Mapping[str, float] = field(default_factory=dict)
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    due: frozenset[str] = frozenset()  # must run now, or a promise is broken or an interruption goes on
    turns: Mapping[str, str] = field(default_factory=dict)  # by tenant, the job that comes first as it waited longest
    price: float = 0.0  # of the cheapest device
    reservations: tuple[Reservation, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)


def market_targets(situation: Situation, settled: SettledState) -> MarketTargets:
    """The market's answer for all jobs that are not fixed."""
    jobs = JobColumns.of(sorted(settled.asked.values(), key=partial(_rank, situation.now_s)))
    history = _history(situation.state, situation.seen, situation.jobs)
    pool = _pool(situation, settled)
    turns = _turns(situation, settled.asked)
    first = _first(situation, settled.asked)
    state = replace(situation.state, nodes=pool.nodes, round_s=ROUND_S)
    parts = _beside(situation, settled)
    dials = replace(situation.dials, floor_s=0.0, fresh_s=FLOOR_S)
    sold = sale(state, jobs, pool, history, parts, dials, first, ahead=set(turns.values()), tenure=True)
    chosen, found = dealt(state, jobs, sold.choices, pool, sold.problem, sold.chosen, sold.book, dials)
    told = _told(replace(sold, chosen=chosen), found, first, history, situation.now_s)
    return replace(told, turns=turns)


def _rank(now_s: float, job: JobState) -> tuple[bool, float, float, str]:
    """The order in which equal bids are served: of gangs that run first those that would lose most, then who has waited
    longest."""
    if not job.seats:
        return (True, max(job.since_s, job.submitted_s), job.submitted_s, job.id)
    loses_s = job.restart_cost_s + (max(0.0, now_s - job.since_s) if job.starts_over else 0.0)
    return (False, -loses_s * len(job.seats), job.submitted_s, job.id)


def _first(situation: Situation, asked: Collection[str]) -> frozenset[str]:
    """Jobs that get their smallest gang before all others: a promise is about to be broken, or they were interrupted
    and are within what their tenant may claim."""
    promised = {job.id for job in situation.jobs.values()
                if (urgent(job, situation.now_s) and (job.finish_by_s is None or job.id in situation.affordable))
                or _just_begun(job, situation.now_s)}  # fmt: skip
    interrupted = {
        job.id
        for job in situation.jobs.values()
        if (job.broken or (job.interrupted_s is not None and not job.seats)) and situation.goes_on(job)
    }
    mended = {name for name, when_s in situation.state.memory.get("mended", {}).items()
              if 0.0 <= situation.now_s - when_s < MENDED_S and name in situation.jobs
              and situation.jobs[name].seats}  # fmt: skip
    return frozenset((promised | interrupted | mended).intersection(asked))


def _turns(situation: Situation, asked: Mapping[str, JobState]) -> dict[str, str]:
    """By tenant, the waiting job whose turn it is, or the running one whose turn is not over."""
    found: dict[str, str] = {}
    longest: dict[str, tuple[float, str]] = {}
    for name in asked:
        job = situation.jobs[name]
        when_s, last = situation.state.memory.get("turned", {}).get(job.tenant, (-TURN_S, ""))
        since_s = situation.now_s - when_s
        if job.seats:
            if name == last and 0.0 <= since_s < TURN_LASTS_S:
                found[job.tenant] = name
        elif not 0.0 <= since_s < TURN_S:
            begun_s = max(job.since_s, job.submitted_s)
            if situation.now_s - begun_s >= TURN_S:
                longest[job.tenant] = min(longest.get(job.tenant, (begun_s, name)), (begun_s, name))
    return {tenant: name for tenant, (_, name) in longest.items()} | found


def _just_begun(job: JobState, now_s: float) -> bool:
    """Whether it has just been started so that it begins when it was promised to: it is not stopped right away."""
    if job.start_by_s is None or not job.seats or not 0.0 <= now_s - job.since_s < FLOOR_S:
        return False
    return -URGENT_S <= job.since_s - job.start_by_s <= 0.0


def _history(state: ClusterState, seen: Mapping[str, JobState], asked: Collection[str]) -> History:
    """Who is gone has finished; who is only not asked, as no node could take it now, has not."""
    known = History.of(state.memory)
    aside = {name: one for name, one in known.seen.items() if name in asked and name not in seen}
    others = {name: one for name, one in known.seen.items() if name not in aside}
    found = History(known.finished, others).updated(JobColumns.lazily(seen.values()), begun=True)
    return replace(found, seen={**found.seen, **aside})


def _pool(situation: Situation, settled: SettledState) -> Pool:
    """Nodes in service without what the fixed gangs will keep; what others are leaving counts as theirs to give.

    Of nodes that are as good those come first that nobody is leaving: what is free now need not be awaited.
    """
    nodes = situation.board.nodes
    left = free_amounts(situation, {name: settled.seats[name] for name in settled.seats if name not in settled.asked})
    pool = Pool.of([replace(node, capacity=left[name]) for name, node in nodes.items()])
    left_by = Counter(seat for job in situation.jobs.values() for seat in job.leaving)
    if left_by:
        pool = replace(pool, nodes=tuple(sorted(pool.nodes, key=lambda node: left_by[node.name])))
    # Without curves that tell one node from several, every size is worth a look, not only powers of two.
    curves = any(job.curve is not None for job in situation.state.jobs)
    return pool if curves else replace(pool, width=np.ones_like(pool.width))


def _beside(situation: Situation, settled: SettledState) -> Shares:
    """Budgets and limits without what the gangs that are not asked will keep."""
    parts = situation.parts
    kept = {name: seats for name, seats in settled.seats.items() if seats and name not in settled.asked}
    used = parts.used([situation.jobs[name] for name in kept], {name: len(seats) for name, seats in kept.items()})
    taken = np.array([used.get(name, 0.0) for name in parts.names])
    budget, ceiling, claim, has = (
        np.maximum(0.0, amount - taken) for amount in (parts.budget, parts.ceiling, parts.claim, parts.has)
    )
    return replace(parts, budget=budget, ceiling=ceiling, claim=claim, has=has)


def _told(sold: Outcome, found: PlacedGangs, first: frozenset[str], history: History, now_s: float) -> MarketTargets:
    names = read(sold.jobs, "id")
    wake_s = {"wake_s": sold.duty.wake_s} if np.isfinite(sold.duty.wake_s) else {}
    obliged = {names[at] for at in np.nonzero(sold.duty.column >= 0)[0].tolist()}
    return MarketTargets(
        seats={name: tuple(sorted(seats)) for name, seats in found.seats.items() if seats},
        bid=dict(zip(names, sold.bids.per_device.tolist(), strict=True)),
        stretch=dict(zip(names, sold.bids.stretch.tolist(), strict=True)),
        remaining_s=dict(zip(names, sold.bids.remaining_s.tolist(), strict=True)),
        due=first | obliged,
        price=float(sold.chosen.price.min()) if len(sold.chosen.price) else 0.0,
        reservations=reservations(found, now_s),
        memory=_kept(history) | wake_s,
    )


def _kept(history: History) -> dict[str, Any]:
    """Of the history only what somebody would miss: not the thousand that wait and have not begun."""
    return {"finished": history.finished, "seen": dict(history.seen)}
