"""Growing and shrinking elastic gangs: spare devices go, one at a time, to the tenant furthest below its due."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from fairlead.scheduling.carry.board import without
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import better_smaller, ceiling, larger, relative_gain, worth_restarting
from fairlead.scheduling.carry.start import seats_for
from fairlead.scheduling.state import JobState, Resize
from fairlead.scheduling.words import reason, workers

SETTLE_S = 5.0
"""A generation younger than this is not resized, unless somebody's entitlement needs it or it is broken."""


def grow_within_claims(draft: Draft) -> None:
    """Up to what the market would give each gang, as far as its tenant may insist on it."""

    def allowed(job: JobState) -> bool:
        seats = draft.board.seats[job.id]
        wanted = len(seats) < draft.target.size.get(job.id, 0)
        return wanted and draft.headroom(job.tenant, draft.board.kind(seats)) > 0

    _grow(draft, allowed)


def grow_beyond_claims(draft: Draft) -> None:
    """Lend what nobody claims; only to gangs that can give it back."""
    giving = {draft.jobs[name].tenant for name in draft.decisions if draft.jobs[name].seats}
    _grow(draft, lambda job: job.elastic and not (job.tenant in giving and draft.headroom(job.tenant) <= 0))


def shrink_slower(draft: Draft) -> None:
    """A gang that was clearly faster with fewer workers goes back to that size and frees the rest."""
    for job in draft.steady():
        size = len(job.seats)
        if not (job.elastic and job.speeds and settled(draft, job)):
            continue
        smaller = better_smaller(job, size)
        if smaller is not None:
            text = (
                f"was faster with {workers(smaller)} ({job.speeds[smaller]:.0f} samples/s) "
                f"than with {size} ({job.speeds[size]:.0f}): gives {size - smaller} back"
            )
            gone = tuple(give_up(draft, job, job.seats, size - smaller))
            draft.decide(Resize(job.id, without(job.seats, gone), reason("slower", text, size=smaller, was=size)))


def settled(draft: Draft, job: JobState) -> bool:
    return draft.now_s - job.since_s >= SETTLE_S


def may_grow(draft: Draft, job: JobState, size: int) -> bool:
    """Whether one more worker is allowed and useful for this gang now."""
    if size >= ceiling(job) or draft.quota_room(job.tenant) <= 0:
        return False
    if job.id in draft.starting:
        return True
    if not job.elastic or not (draft.untouched(job) or job.id in draft.growing):
        return False
    return settled(draft, job) and worth_restarting(job, len(job.seats))


def give_up(draft: Draft, job: JobState, seats: tuple[str, ...], count: int) -> list[str]:
    """The seats this gang gives up first: on nodes where it has fewest workers, then on the slowest."""
    gone: list[str] = []
    for _ in range(count):
        left = without(seats, gone)
        gone.append(min(left, key=lambda name: (left.count(name), draft.board.nodes[name].speed, name)))
    return gone


def _grow(draft: Draft, allowed: Callable[[JobState], bool]) -> None:
    """One step at a time: the tenant that holds least for its weight, and of its gangs the one that gains most."""
    heaps: dict[str, list[tuple[int, float, str]]] = {}

    def line_up(job: JobState, size: int) -> None:
        entry = (-job.priority, -relative_gain(job, size), job.id)
        heapq.heappush(heaps.setdefault(job.tenant, []), entry)

    if draft.board.full:
        return
    for name, seats in draft.board.seats.items():
        job = draft.jobs[name]
        if seats and (job.elastic or name in draft.starting):
            line_up(job, len(seats))
    while heaps and not draft.board.full:
        tenant = min(heaps, key=lambda name: (draft.holding(name) / draft.tenants[name].weight, heaps[name][0]))
        job = draft.jobs[heapq.heappop(heaps[tenant])[2]]
        seats = draft.board.seats[job.id]
        newcomers = _step(draft, job, seats) if allowed(job) else None
        if newcomers is not None:
            draft.board.sit(job, newcomers)
            line_up(job, len(seats) + len(newcomers))
            if job.id not in draft.starting:
                draft.growing.add(job.id)
        if not heaps[tenant]:
            del heaps[tenant]


def _step(draft: Draft, job: JobState, seats: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for the next larger size, if it is allowed and there are any."""
    if not may_grow(draft, job, len(seats)):
        return None
    size = larger(job, len(seats))
    return None if size is None else seats_for(draft, draft.board, job, size - len(seats), seats)
