"""Finds jobs that no bid would start: limits of their tenant or of tenants above it, or room kept for other gangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.scheduling.market.offers import Offers, Pool
from fairlead.scheduling.market.seats import Seats
from fairlead.scheduling.phrases import budget_used_up, devices, reason, utc_minute
from fairlead.scheduling.queues import Tree
from fairlead.scheduling.state import JobState, Reason, Reservation, TenantState

Gangs = tuple[tuple[int, int], ...]
"""(type index, size) of the smallest gang on each type that the job could run on."""


def blocked_reasons(
    jobs: Sequence[JobState], seats: Mapping[str, Seats], choices: Offers, pool: Pool, tree: Tree,
    kept: Sequence[Reservation] = (),
) -> dict[int, Reason]:  # fmt: skip
    """By row, the reason of each job without seats that no bid would have started."""
    limited = any(queue.quota is not None or queue.most or queue.spent for queue in tree.queues.values())
    if not limited and not kept:
        return {}
    used = _used(jobs, seats, pool, tree)
    free = pool.capacity - [used["", kind] for kind in pool.types] if len(pool.types) else pool.capacity
    known: dict[tuple[str, Gangs], Reason | None] = {}
    found: dict[int, Reason] = {}
    menus = zip(choices.kind.tolist(), choices.size.tolist(), choices.speed.tolist(), strict=True)
    for row, (job, menu) in enumerate(zip(jobs, menus, strict=True)):
        gangs = () if job.id in seats else _smallest(*menu)
        if not gangs:
            continue
        key = (job.tenant, gangs)
        if key not in known:
            why = [_limit(job.tenant, pool.types[kind], size, tree, used) for kind, size in gangs]
            known[key] = why[0] if all(why) else _kept_from(gangs, pool, free.tolist(), kept)
        told = known[key]
        if told is not None and all(one.job != job.id for one in kept):
            found[row] = told
    return found


def _smallest(kinds: Sequence[int], sizes: Sequence[int], speeds: Sequence[float]) -> Gangs:
    least: dict[int, int] = {}
    for kind, size, speed in zip(kinds, sizes, speeds, strict=True):
        if speed > 0 and size < least.get(kind, size + 1):
            least[kind] = size
    return tuple(sorted(least.items()))


def _used(
    jobs: Sequence[JobState], seats: Mapping[str, Seats], pool: Pool, tree: Tree
) -> Counter[tuple[str, str | None]]:
    """Devices in use by queue, including the queues below, and type; type None counts all, queue "" all queues."""
    used: Counter[tuple[str, str | None]] = Counter()
    for job in jobs:
        where = seats.get(job.id)
        if where:
            kind = pool.types[pool.kind_of[where[0]]]
            for queue in (*tree.paths.get(job.tenant, ()), ""):
                used[queue, kind] += len(where)
                used[queue, None] += len(where)
    return used


def _limit(tenant: str, kind: str, size: int, tree: Tree, used: Mapping[tuple[str, str | None], int]) -> Reason | None:
    """The nearest limit that so many more devices of this type would exceed; None: no limit."""
    for name in tree.paths.get(tenant, ()):
        queue = tree.queues[name]
        who = f"tenant {name}" if name == tenant else f"tenant {name}, above {tenant},"
        if (spent := queue.spent) is not None:
            text = f"{budget_used_up(tenant, spent)}; the next begins {utc_minute(spent.again_s)}"
            return reason("budget-spent", text, needs=size, again_s=spent.again_s)
        if queue.quota is not None and (has := used.get((name, None), 0)) + size > queue.quota:
            text = f"needs {devices(size)}; {who} uses {has} of its quota of {queue.quota}"
            return reason(_code(size, queue.quota), text, needs=size, used=has, quota=queue.quota)
        if (most := _most(queue, kind)) is not None and (has := used.get((name, kind), 0)) + size > most:
            text = f"needs {devices(size)}; {who} uses {has} of the {most} of type {kind} that it may have"
            return reason(_code(size, most), text, needs=size, used=has, most=most, device_type=kind)
    return None


def _code(size: int, limit: int) -> str:
    """``quota`` if the gang can never fit the limit, ``quota-in-use`` if it fits once other jobs end."""
    return "quota" if size > limit else "quota-in-use"


def _most(queue: TenantState, kind: str) -> int | None:
    return int(queue.most[kind]) if kind in queue.most else None


def _kept_from(gangs: Gangs, pool: Pool, free: Sequence[float], kept: Sequence[Reservation]) -> Reason | None:
    """The reason where enough devices of a type are free, but reserved for another job."""
    for kind, size in gangs:
        for one in kept:
            if size <= free[kind] and pool.kind_of.get(one.nodes[0] if one.nodes else "") == kind:
                text = f"waits for {devices(size)}: the free ones are reserved for job {one.job}, which needs more room"
                return reason("held-for-others", text, needs=size, free=int(free[kind]), kept_for=one.job)
    return None
