"""Which waiting jobs start now: whole gangs, within the tenant's claim first, with what is left lent afterwards.

A big gang must not starve behind small ones that slip past it. The rule: small jobs may slip past the first
blocked job of their tenant for PATIENCE_S; after that the free devices it could use are held for it. A tenant
that has had nothing at all for OVERDUE_S, or whose gang is larger than its claim and waited for STARVING_S,
comes before everybody else's next job, and free devices are held for it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.scheduling.carry.board import Board, Shape, like_speed
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import speed_on
from fairlead.scheduling.carry.order import waited_s
from fairlead.scheduling.carry.place import place
from fairlead.scheduling.state import JobState

PATIENCE_S = 30.0
OVERDUE_S = 120.0
STARVING_S = 900.0


def start_first(draft: Draft) -> None:
    """Jobs for which others made room, then those that waited too long."""
    heads: dict[str, JobState] = {}
    for job in draft.line:
        heads.setdefault(job.tenant, job)
        if job.id in draft.promised:
            _start_or_hold(draft, job, "promised")

    def served(job: JobState) -> tuple[float, float, str]:
        tenant = draft.tenants[job.tenant]
        return (tenant.attained_device_s / tenant.weight, job.submitted_s, job.id)

    for job in sorted(heads.values(), key=served):
        if overdue(draft, job) and job.id not in draft.starting and job.id not in draft.board.held:
            _start_or_hold(draft, job, "overdue")


def start_wanted(draft: Draft) -> None:
    """Those whom the market would run, whose turn it is or whose deadline presses come before gangs grow."""
    wanted = draft.target.size.keys() | draft.turns.values()
    pressed = {job.id for job in draft.queue if job.finish_by_s is not None and draft.presses(job)}
    start_within_claims(draft, [job for job in draft.queue if job.id in wanted or job.id in pressed])


def start_within_claims(draft: Draft, line: Sequence[JobState] | None = None) -> None:
    """Every tenant gets its jobs up to its claim, in order; a patient head is held free devices."""
    holding: set[str] = set()
    full = _Full()
    if draft.board.full:
        return  # nothing to start on, and nothing to keep for anybody
    rooms: dict[tuple[str, str | None], int] = {}  # as long as nobody starts
    for job in draft.queue if line is None else line:
        key = (job.tenant, job.device_type or draft.target.kind.get(job.id))
        room = rooms.get(key)
        if room is None:
            room = rooms[key] = draft.headroom(*key)
        if job.min_workers <= room and _try_start(draft, job, "entitled", full):
            rooms.clear()
        elif job.tenant not in holding and _patient(draft, job):
            holding.add(job.tenant)
            hold_free(draft, job)


def _patient(draft: Draft, job: JobState) -> bool:
    waited = waited_s(job, draft.now_s) >= PATIENCE_S
    return waited and job.min_workers <= draft.claims[job.tenant] and job.id not in draft.board.held


def start_borrowers(draft: Draft) -> None:
    """What is still free is lent, in order, to whoever fits, counting what is held for it."""
    full, none_free = _Full(), draft.board.full
    for job in draft.queue:
        if not none_free or job.id in draft.board.held:
            _try_start(draft, job, "borrowing", full)
            none_free = draft.board.full


def overdue(draft: Draft, job: JobState) -> bool:
    """Whether this job's tenant has had nothing, or the job has waited, for so long that it comes first."""
    if draft.used(job.tenant) == 0:  # the tenant has waited as long as any of its jobs
        return draft.waits_s.get(job.tenant, 0.0) >= OVERDUE_S
    too_large = job.min_workers > max(draft.claims[job.tenant], draft.portions[job.tenant])  # a debt is no hardship
    return waited_s(job, draft.now_s) >= STARVING_S and too_large


def hold_free(draft: Draft, job: JobState) -> None:
    """Keep the free devices that the job could use, as far as they go, so that no other job takes them."""
    shape = draft.board.shape(job)
    if draft.board.most(shape) < job.min_workers or draft.quota_room(job.tenant) <= 0:
        return  # it cannot start however long others wait
    places = {kind: draft.board.places(shape.on(kind)).total for kind in kinds_for(draft, job)}
    kind = max(places, key=lambda kind: places[kind], default=None)
    seats = None if kind is None else place(draft.board, shape.on(kind), min(places[kind], job.min_workers))
    draft.board.hold(job, seats or ())


def seats_for(
    draft: Draft, board: Board, job: JobState, count: int, keep: tuple[str, ...] = ()
) -> tuple[str, ...] | None:
    """Seats for so many workers, where the market would have them if possible, within limits by type."""
    shape = board.shape(job)
    if keep:
        seats = place(board, shape, count, keep)
        return seats if seats is None or count <= draft.quota_room(job.tenant, board.kind(keep)) else None
    for kind in kinds_for(draft, job):
        if count <= draft.quota_room(job.tenant, kind):
            seats = place(board, shape.on(kind), count)
            if seats is not None:
                return seats
    return None


def kinds_for(draft: Draft, job: JobState) -> list[str]:
    """The types of device on which its smallest gang runs: the market's choice, then the fastest for their price."""
    board, prefer = draft.board, draft.target.kind.get(job.id)
    kinds = board.kinds(board.shape(job))
    if job.curve is None:
        return list(kinds) if len(kinds) == 1 else [kind for kind in board.fastest_first(prefer) if kind in kinds]
    prices, least, ranks = draft.target.prices, job.min_workers, []
    for kind in kinds:
        speed = speed_on(job, kind, least)
        if speed > 0:
            worth = speed / (prices.get(kind, 0.0) + 1e-12)
            ranks.append((kind != prefer, -worth, -like_speed(board.fastest(kind)), kind))
    return [rank[-1] for rank in sorted(ranks)]


class _Full:
    """Remembers what did not fit, so that a thousand jobs of one shape are tried once."""

    def __init__(self) -> None:
        self.smallest: dict[int, int] = {}  # by the shape that all jobs that are alike have in common

    def knows(self, shape: Shape, count: int) -> bool:
        return count >= self.smallest.get(id(shape), 1 << 30)

    def note(self, shape: Shape, count: int) -> None:
        self.smallest[id(shape)] = min(count, self.smallest.get(id(shape), count))


def _start_or_hold(draft: Draft, job: JobState, why: str) -> None:
    if not _try_start(draft, job, why, _Full()):
        hold_free(draft, job)


def _try_start(draft: Draft, job: JobState, why: str, full: _Full) -> bool:
    shape = draft.board.shape(job)
    own = draft.board.held.get(job.id, ())
    if not own and full.knows(shape, job.min_workers):
        return False
    if job.min_workers > draft.quota_room(job.tenant):
        return False
    if not own and not draft.board.fits(shape, job.min_workers):
        full.note(shape, job.min_workers)  # for everybody, whatever its limits and its curve
        draft.board.hold(job, ())
        return False
    draft.board.let_go(job)
    seats = seats_for(draft, draft.board, job, job.min_workers)
    if seats is None:
        draft.board.hold(job, own)
        return False
    draft.board.sit(job, seats)
    draft.starting[job.id] = why
    return True
