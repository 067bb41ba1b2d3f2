"""Finds the reason why each waiting job waits, the jobs ahead of it, and when it will probably start."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.market.guarantees import guarantee_gap_text
from fairlead.scheduling.mentioned_jobs import mentioned
from fairlead.scheduling.phrases import budget_used_up, devices, utc_minute, with_resources
from fairlead.scheduling.scaling import remaining_s
from fairlead.scheduling.seating_plan import Shape
from fairlead.scheduling.state import Hold, JobState, Reason

AHEAD = 5
"""At most so many jobs ahead are named; their number is in the facts. Naming all for each job would be quadratic."""


def hold_decisions(plan: LivePlan) -> list[Hold]:
    """One hold with its reason for every job that still waits, in order."""
    queue = plan.queue
    ids = [job.id for job in queue]
    first = tuple(ids[:AHEAD])
    blocked = _BlockerSearch(plan)
    starts = expected_starts(plan, queue)
    return [
        Hold(name, why, expected, first if place >= AHEAD else first[:place])
        for place, (name, why, expected) in enumerate(zip(ids, blocked.reasons(queue), starts, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _SharedReason:
    """The part of a reason that is the same for all jobs of one tenant, shape and size."""

    code: str
    text: str
    facts: dict[str, Any]
    queues: bool = True  # whether the number of jobs ahead matters
    priced: dict[str, Any] = field(init=False)  # the same facts with places for the job's bid

    def __post_init__(self) -> None:
        object.__setattr__(self, "priced", {**self.facts, "bid": 0.0, "stretch": 0.0, "remaining_s": 0.0})


class _BlockerSearch:
    """Finds what blocks a job; remembers what is the same for all jobs of one tenant, shape and size."""

    def __init__(self, plan: LivePlan) -> None:
        self.plan, self.situation = plan, plan.situation
        self._free: dict[int, tuple[int, int]] = {}  # by the shape's id: jobs alike share the object
        self._each: dict[int, str] = {}
        self._holds: dict[tuple[int, int], list[str]] = {}
        self._claims: dict[str, tuple[float, str]] = {}
        self._unsure: dict[tuple[str, str | None, int], str] = {}
        self._rooms: dict[tuple[str, str | None], int] = {}
        self._alike: dict[tuple[str, int, int], _SharedReason] = {}
        self._special = plan.feasible.awaits.keys()  # jobs with a reason of their own

    def reasons(self, queue: Sequence[JobState]) -> Iterator[Reason]:
        """The reason of each of these jobs, which are in queue order."""
        told = self.plan.targets
        bids, price, stretches, lefts_s = told.bid, told.price, told.stretch, told.remaining_s
        for ahead, job in enumerate(queue):
            said, name = self._said(job), job.id
            bid = bids.get(name)
            if bid is None:
                facts = said.facts.copy()
            else:  # its bid in going prices, and how many times longer than alone it takes
                facts = said.priced.copy()
                facts["bid"] = bid / price if price > 0 else 0.0
                facts["stretch"], facts["remaining_s"] = stretches[name], lefts_s[name]
            facts["ahead"] = ahead
            if ahead and said.queues:
                yield Reason(said.code, f"{said.text}; behind {ahead} job{'' if ahead == 1 else 's'}", facts)
            else:
                yield Reason(said.code, said.text, facts)

    def _said(self, job: JobState) -> _SharedReason:
        shape = self.plan.seating.shape(job)
        if job.id in self._special:
            return self._what(job, shape)
        key = (job.tenant, id(shape), job.min_workers)
        said = self._alike.get(key)
        if said is None:
            said = self._alike[key] = self._what(job, shape)
        return said

    def _what(self, job: JobState, shape: Shape) -> _SharedReason:
        now, need = self.situation, job.min_workers
        (free, most), capped = self._free_for(shape), self._capped_types(job, shape)
        if capped:  # free devices of a type that its tenant has reached its limit of are not free for it
            free = max((self.plan.seating.roomiest(shape.on(kind))[0] for kind in self.plan.seating.kinds(shape)
                        if kind not in capped), default=0)  # fmt: skip
        tenant, used = now.tenants[job.tenant], self.plan.seating.used.get(job.tenant, 0)
        claim, share_text = self._claim(job.tenant)
        facts: dict[str, Any] = {
            "needs": need, "free": free, "most": most, "ahead": 0, "device_type": job.device_type,
            "used": used, "claim": claim, "quota": tenant.quota,
        }  # fmt: skip
        wants = f"needs {devices(need, job.device_type)}{self._with_each(shape)}"
        if most < need:
            text = f"{wants}; the nodes in service hold {most} at most, even when empty"
            return _SharedReason("no-such-room", text, facts, queues=False)
        if tenant.spent is not None:
            text = f"{budget_used_up(tenant.name, tenant.spent)}; the next begins {utc_minute(tenant.spent.again_s)}"
            of = tenant.spent.of or tenant.name
            return _SharedReason("budget", text, {"again_s": tenant.spent.again_s, "of": of, **facts}, queues=False)
        if tenant.quota is not None and used + need > tenant.quota:
            text = f"needs {devices(need)}; tenant {tenant.name} uses {used} of its quota of {tenant.quota}"
            return _SharedReason("quota", text, facts)
        if need > self._room(job.tenant, None):
            text = f"{wants}; a tenant above {tenant.name} has reached its limit"
            return _SharedReason("quota", text, facts)
        if capped and not set(self._holding(shape, need)) - capped:
            limit = f"its limit of {' and '.join(sorted(capped))} devices"
            return _SharedReason("quota", f"{wants}; tenant {tenant.name} has reached {limit}", facts)
        if job.id in self.plan.feasible.awaits:
            victims = self.plan.jobs_making_room(job.id)
            how = (
                f"room is being made by {mentioned(victims)}"
                if victims
                else "they are reserved for it, but not free yet"
            )
            return _SharedReason("making-room", f"{wants}; {how}", {"victims": victims, **facts}, queues=False)
        if free >= need:
            return _SharedReason("held-for-others", f"{wants}, {free} free but reserved for jobs ahead of it", facts)
        share = f"tenant {tenant.name} uses {used} of {share_text}"
        key = (job.tenant, job.device_type, need)
        not_sure = self._unsure.get(key)
        if not_sure is None:
            not_sure = self._unsure[key] = self._not_guaranteed(job)
        if not_sure:
            share, facts = f"{share}; {not_sure}", {**facts, "not_guaranteed": not_sure}
        return _SharedReason("no-room", f"{wants}, {free} free; {share}", facts)

    def _not_guaranteed(self, job: JobState) -> str:
        """Why its gang is not guaranteed although a part of a guarantee is left; empty if nothing is left."""
        now = self.situation
        kinds = sorted(now.guaranteed_types & set(self.plan.seating.kinds(self.plan.seating.shape(job))))
        for name in now.shares.tree.path(job.tenant):
            for kind in kinds:
                sure = now.guaranteed(name, kind)
                left = sure - now.held(self.plan.seating, name, kind) if sure else 0
                if 0 < left < job.min_workers:
                    return guarantee_gap_text(name, kind, sure, left, job.min_workers)
        return ""

    def _free_for(self, shape: Shape) -> tuple[int, int]:
        """Places for workers of this shape now, and on empty nodes. Devices reserved for others count as free here."""
        found = self._free.get(id(shape))
        if found is None:
            found = self._free[id(shape)] = (self.plan.seating.roomiest(shape)[0], self.plan.seating.most(shape))
        return found

    def _with_each(self, shape: Shape) -> str:
        """Words for what a worker needs besides its device."""
        if id(shape) not in self._each:
            self._each[id(shape)] = f"{with_resources(shape.need)} each" if len(shape.need) > 1 else ""
        return self._each[id(shape)]

    def _claim(self, tenant: str) -> tuple[float, str]:
        """Devices that the tenant may claim, as a number and in words."""
        if tenant not in self._claims:
            now = self.situation
            claim = round(now.entitled(tenant) + now.owed(tenant), 3)
            self._claims[tenant] = (claim, now.share_text(tenant))
        return self._claims[tenant]

    def _capped_types(self, job: JobState, shape: Shape) -> set[str]:
        """The device types that could hold its gang, but not within its tenant's limits."""
        if not self.situation.limited:
            return set()
        return {kind for kind in self._holding(shape, job.min_workers)
                if job.min_workers > self._room(job.tenant, kind)}  # fmt: skip

    def _holding(self, shape: Shape, need: int) -> list[str]:
        """The device types on which the nodes in service would hold so many workers if they were empty."""
        found = self._holds.get((id(shape), need))
        if found is None:
            seating = self.plan.seating
            found = [kind for kind in seating.kinds(shape) if seating.most(shape.on(kind)) >= need]
            self._holds[id(shape), need] = found
        return found

    def _room(self, tenant: str, kind: str | None) -> int:
        if (tenant, kind) not in self._rooms:
            self._rooms[tenant, kind] = self.plan.quota_room(tenant, kind)
        return self._rooms[tenant, kind]


def expected_starts(plan: LivePlan, queue: list[JobState]) -> Iterator[float | None]:
    """Expected start of each job in the queue: running jobs end, and their devices go to the queue in order.

    Counts devices by type only. A job whose end is unknown keeps its devices in this forecast, so a start that depends
    on it is None rather than a guess.
    """
    free = {kind: plan.seating.free_devices(kind) for kind in {n.device_type for n in plan.seating.nodes.values()}}
    ends: list[tuple[float, tuple[str, ...]]] = []
    for name, seats in plan.seating.seats.items():
        left = remaining_s(plan.situation.jobs[name], len(seats)) if seats else None
        if left is not None:
            kinds = tuple(plan.seating.nodes[n].device_type for n in seats if plan.seating.nodes[n].schedulable)
            ends.append((plan.situation.now_s + left, kinds))
    heapq.heapify(ends)
    return islice(_simulate_queue(plan, queue, free, ends), len(queue))


def _simulate_queue(
    plan: LivePlan, queue: list[JobState], free: dict[str, int], ends: list[tuple[float, tuple[str, ...]]]
) -> Iterator[float | None]:
    now, every = plan.situation.now_s, tuple(sorted(free))
    tenants = {job.tenant for job in queue} if plan.situation.limited else ()
    rooms = {(tenant, kind): plan.quota_room(tenant, kind) for tenant in tenants for kind in every}
    spent = {name: tenant.spent for name, tenant in plan.situation.tenants.items() if tenant.spent is not None}
    mosts: dict[tuple[str, ...], int] = {}  # free devices of the type with most, until a count changes
    for job in queue:
        if job.tenant in spent:
            yield spent[job.tenant].again_s  # at the earliest; jobs that can start sooner are ahead of it
            continue
        left = job.min_workers
        kinds = every if job.device_type is None else (job.device_type,)
        if rooms:
            kinds = tuple(kind for kind in kinds if rooms.get((job.tenant, kind), 0) >= left)
        most = mosts.get(kinds, -1) if kinds else 0
        while kinds and (most < 0 or (most < left and ends)):
            if most >= 0:
                now, freed = heapq.heappop(ends)
                for kind in freed:
                    free[kind] += 1
                mosts.clear()
            most = mosts[kinds] = max([free.get(kind, 0) for kind in kinds], default=0)
        if most < left:
            yield None
            continue
        best = next(kind for kind in kinds if free.get(kind, 0) == most)
        free[best] -= left
        mosts.clear()
        run_s = remaining_s(job, left)
        if run_s is not None:
            heapq.heappush(ends, (now + run_s, (best,) * left))
        yield now
