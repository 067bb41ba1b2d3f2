"""What the market would give everybody on a live cluster, once what cannot change in this round is set aside.

Live, a job says less than a trace does: there is no curve but what was measured, no work left but samples, a gang has
to find memory and cores besides its devices, and some gangs may not be touched. So each job is first put as the market
reads it, in seconds of work of one worker, and what is fixed is taken off the pool and off its tenant's budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairlead.cluster import subtract
from fairlead.scheduling.carry.board import Board
from fairlead.scheduling.carry.gain import ceiling, prior_curve, speed_at
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.estimates import History
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.policy import Outcome, sale
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.read import Read, read
from fairlead.scheduling.state import ClusterState, JobState

URGENT_S = 60.0
"""A promise that must be kept within this time is urgent."""


@dataclass(frozen=True, slots=True)
class Target:
    """Who is to have what, and what the market thinks of everybody it was asked about."""

    size: Mapping[str, int] = field(default_factory=dict)  # workers; who is not named is to have none
    kind: Mapping[str, str] = field(default_factory=dict)  # the type of device that they are to be
    bid: Mapping[str, float] = field(default_factory=dict)  # for one device
    stretch: Mapping[str, float] = field(default_factory=dict)
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    due: frozenset[str] = frozenset()  # must run now, or a promise is broken
    price: float = 0.0  # of the cheapest device
    prices: Mapping[str, float] = field(default_factory=dict)  # by type
    memory: Mapping[str, Any] = field(default_factory=dict)


def put(job: JobState, there: int, types: tuple[str, ...], now_s: float) -> JobState | None:
    """The job as the market reads it; None if its gang is larger than any that is ``there`` for its shape."""
    size = len(job.seats)
    if size and not job.elastic:
        least = most = size
    else:
        least = job.min_workers
        if least > there:
            return None
        most = ceiling(job) if job.speeds else job.max_workers
        if not size <= most <= there:
            most = max(min(most, there), size)
    if job.curve is not None or _unknown(job):
        same = least == job.min_workers and most == job.max_workers and not job.broken
        return job if same else replace(job, min_workers=least, max_workers=most, broken=False)
    unit = speed_at(job, 1)
    left, done = _work(job, unit, now_s)
    return replace(
        job, min_workers=least, max_workers=most, work_left=left, work_done=done,
        curve=prior_curve(job, least, most, types), broken=False,
        finish_by_s=None if left is None else job.finish_by_s,
    )  # fmt: skip


def _unknown(job: JobState) -> bool:
    """Whether it has not begun, and nothing is known that its menu or its bid could depend on."""
    return not (job.seats or job.speeds or job.broken or job.finish_by_s is not None or "takes_s" in job.facts)


def _work(job: JobState, unit: float | None, now_s: float) -> tuple[float | None, float]:
    """Work left, if it can be told, and done, in seconds of one worker."""
    if unit is not None:
        left = None if job.remaining_samples is None else job.remaining_samples / unit
        return left, job.work_done / unit
    done = max(0.0, now_s - job.since_s) * len(job.seats) ** 0.9 if job.seats else 0.0
    takes_s = job.facts.get("takes_s")
    return (None if takes_s is None else max(1.0, float(takes_s) * job.min_workers**0.9 - done)), done


def urgent(job: JobState, now_s: float) -> bool:
    """Whether a promise is about to be broken; one that is broken already no longer pushes others aside."""
    if job.finish_by_s is None and job.start_by_s is None:
        return False
    slack_s = np.inf if job.start_by_s is None or job.seats else job.start_by_s - now_s
    if job.finish_by_s is not None:
        slack_s = min(slack_s, job.finish_by_s - now_s - _least_s(job, now_s))
    return bool(0.0 <= slack_s <= URGENT_S)


def _least_s(job: JobState, now_s: float) -> float:
    """What it still takes at the least, on its largest gang: as measured, or else as it was said to take."""
    speed = speed_at(job, job.max_workers)
    if speed:
        return (job.remaining_samples or 0.0) / speed
    left, _ = _work(job, None, now_s)
    return 0.0 if left is None else left / job.max_workers**0.9


def target(
    state: ClusterState, board: Board, seen: Mapping[str, JobState], fixed: Collection[str], parts: Shares, dials: Dials
) -> Target:
    """The market's answer for all jobs that are not fixed."""
    jobs = Read.in_order([job for name, job in seen.items() if name not in fixed])
    asked = {job.id: job for job in state.jobs}
    history = _history(state, seen, asked)
    names = read(jobs, "id")
    pool = _pool(board, frozenset(names), asked, any(job.curve is not None for job in state.jobs))
    promised = [job for job in state.jobs if job.finish_by_s is not None or job.start_by_s is not None]
    due = frozenset({job.id for job in promised if urgent(job, state.now_s)}.intersection(names))
    beside = _beside(parts, board, [asked[name] for name in fixed])
    sold = sale(state, jobs, pool, history, beside, dials, due)
    return _told(sold, pool, due, history)


def _history(state: ClusterState, seen: Mapping[str, JobState], asked: Collection[str]) -> History:
    """Who is gone has finished; who is only not asked, as no node could take it now, has not."""
    known = History.of(state.memory)
    aside = {name: one for name, one in known.seen.items() if name in asked and name not in seen}
    others = {name: one for name, one in known.seen.items() if name not in aside}
    found = History(known.finished, others).updated(Read.lazily(seen.values()), begun=True)
    return replace(found, seen={**found.seen, **aside})


def _pool(board: Board, movable: Collection[str], jobs: Mapping[str, JobState], curves: bool) -> Pool:
    """Nodes in service without what the fixed gangs hold."""
    nodes = board.nodes
    left: dict[str, dict[str, float]] = {}
    for name, seats in board.seats.items():
        if seats and name not in movable:
            for node in seats:
                left[node] = subtract(left.get(node, nodes[node].capacity), jobs[name].need)
    pool = Pool.of([replace(node, capacity=left[name]) if name in left else node for name, node in nodes.items()])
    # Without curves that tell one node from several, every size is worth a look, not only powers of two.
    return pool if curves else replace(pool, width=np.ones_like(pool.width))


def _beside(parts: Shares, board: Board, fixed: Collection[JobState]) -> Shares:
    """Budgets and limits without what the fixed gangs of each tenant hold."""
    held = sorted(fixed, key=lambda job: job.id)
    used = parts.used(held, {job.id: len(board.seats.get(job.id, ())) for job in held})
    taken = np.array([used.get(name, 0.0) for name in parts.names])
    budget, ceiling, claim, has = (
        np.maximum(0.0, amount - taken) for amount in (parts.budget, parts.ceiling, parts.claim, parts.has)
    )
    return replace(parts, budget=budget, ceiling=ceiling, claim=claim, has=has)


def _told(sold: Outcome, pool: Pool, due: frozenset[str], history: History) -> Target:
    names = read(sold.jobs, "id")
    got = np.nonzero(sold.chosen.column >= 0)[0]
    chosen = [names[at] for at in got.tolist()]
    kinds, sizes = (table[got, sold.chosen.column[got]].tolist() for table in (sold.choices.kind, sold.choices.size))
    wake_s = {"wake_s": sold.duty.wake_s} if np.isfinite(sold.duty.wake_s) else {}
    obliged = {names[at] for at in np.nonzero(sold.duty.column >= 0)[0].tolist()}
    return Target(
        size=dict(zip(chosen, sizes, strict=True)),
        kind=dict(zip(chosen, [pool.types[kind] for kind in kinds], strict=True)),
        bid=dict(zip(names, sold.bids.per_device.tolist(), strict=True)),
        stretch=dict(zip(names, sold.bids.stretch.tolist(), strict=True)),
        remaining_s=dict(zip(names, sold.bids.remaining_s.tolist(), strict=True)),
        due=due | obliged,
        price=float(sold.chosen.price.min()) if len(sold.chosen.price) else 0.0,
        prices=dict(zip(pool.types, sold.chosen.price.tolist(), strict=True)),
        memory=_kept(history) | wake_s,
    )


def _kept(history: History) -> dict[str, Any]:
    """Of the history only what somebody would miss: not the thousand that wait and have not begun."""
    return {"finished": history.finished, "seen": dict(history.seen)}
