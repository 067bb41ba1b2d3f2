"""What a waiting job is told: what blocks it, who comes first, and when it will probably start."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.market.guarantees import short
from fairlead.scheduling.phrases import budget_used_up, devices, utc_minute, with_resources
from fairlead.scheduling.scaling import remaining_s
from fairlead.scheduling.seating_plan import Shape
from fairlead.scheduling.state import Hold, JobState, Reason

AHEAD = 5
"""Names given of those that come first; the count is in the facts. All of them for each would be quadratic."""


def hold_decisions(plan: LivePlan) -> list[Hold]:
    """One for every job that still waits, in order."""
    queue = plan.queue
    ids = [job.id for job in queue]
    first = tuple(ids[:AHEAD])
    blocked = _Blocked(plan)
    starts = expected_starts(plan, queue)
    return [
        Hold(name, why, expected, first if place >= AHEAD else first[:place])
        for place, (name, why, expected) in enumerate(zip(ids, blocked.reasons(queue), starts, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _Said:
    """What jobs that are alike are told, but for their places in the queue and their bids."""

    code: str
    text: str
    facts: dict[str, Any]
    queues: bool = True  # whether it helps to know how many come first
    priced: dict[str, Any] = field(init=False)  # the same facts, with places for what the market thinks of a job

    def __post_init__(self) -> None:
        object.__setattr__(self, "priced", {**self.facts, "bid": 0.0, "stretch": 0.0, "remaining_s": 0.0})


class _Blocked:
    """Finds what stands in a job's way; remembers what is the same for all jobs of one tenant, shape and size."""

    def __init__(self, plan: LivePlan) -> None:
        self.plan, self.situation = plan, plan.situation
        self._free: dict[int, tuple[int, int]] = {}  # by shape: the object is the same for all jobs that are alike
        self._each: dict[int, str] = {}
        self._holds: dict[tuple[int, int], list[str]] = {}
        self._claims: dict[str, tuple[float, str]] = {}
        self._unsure: dict[tuple[str, str | None, int], str] = {}
        self._rooms: dict[tuple[str, str | None], int] = {}
        self._alike: dict[tuple[str, int, int], _Said] = {}
        self._special = plan.done.awaits.keys()  # who is told something of its own

    def reasons(self, queue: Sequence[JobState]) -> Iterator[Reason]:
        """Of each of these jobs, which come one after the other."""
        told = self.plan.targets
        bids, price, stretches, lefts_s = told.bid, told.price, told.stretch, told.remaining_s
        for ahead, job in enumerate(queue):
            said, name = self._said(job), job.id
            bid = bids.get(name)
            if bid is None:
                facts = said.facts.copy()
            else:  # what the market thinks of it: in going prices, and how much longer than alone it takes
                facts = said.priced.copy()
                facts["bid"] = bid / price if price > 0 else 0.0
                facts["stretch"], facts["remaining_s"] = stretches[name], lefts_s[name]
            facts["ahead"] = ahead
            if ahead and said.queues:
                yield Reason(said.code, f"{said.text}; behind {ahead} job{'' if ahead == 1 else 's'}", facts)
            else:
                yield Reason(said.code, said.text, facts)

    def _said(self, job: JobState) -> _Said:
        shape = self.plan.board.shape(job)
        if job.id in self._special:
            return self._what(job, shape)
        key = (job.tenant, id(shape), job.min_workers)
        said = self._alike.get(key)
        if said is None:
            said = self._alike[key] = self._what(job, shape)
        return said

    def _what(self, job: JobState, shape: Shape) -> _Said:
        now, need = self.situation, job.min_workers
        (free, most), lidded = self._free_for(shape), self._lidded(job, shape)
        if lidded:  # what is free of a type of which its tenant may have no more is not free for it
            free = max((self.plan.board.roomiest(shape.on(kind))[0] for kind in self.plan.board.kinds(shape)
                        if kind not in lidded), default=0)  # fmt: skip
        tenant, used = now.tenants[job.tenant], self.plan.board.used.get(job.tenant, 0)
        claim, share_in_words = self._claim(job.tenant)
        facts: dict[str, Any] = {
            "needs": need, "free": free, "most": most, "ahead": 0, "device_type": job.device_type,
            "used": used, "claim": claim, "quota": tenant.quota,
        }  # fmt: skip
        wants = f"needs {devices(need, job.device_type)}{self._with_each(shape)}"
        if most < need:
            text = f"{wants}; the nodes in service have room for {most} at the most, even when empty"
            return _Said("no-such-room", text, facts, queues=False)
        if tenant.spent is not None:
            text = f"{budget_used_up(tenant.name, tenant.spent)}; the next begins {utc_minute(tenant.spent.again_s)}"
            of = tenant.spent.of or tenant.name
            return _Said("budget", text, {"again_s": tenant.spent.again_s, "of": of, **facts}, queues=False)
        if tenant.quota is not None and used + need > tenant.quota:
            text = f"needs {devices(need)}; tenant {tenant.name} uses {used} of its quota of {tenant.quota}"
            return _Said("quota", text, facts)
        if need > self._room(job.tenant, None):
            text = f"{wants}; tenant {tenant.name} has all that the limit of the tenant above it allows"
            return _Said("quota", text, facts)
        if lidded and not set(self._holding(shape, need)) - lidded:
            limit = f"its {' and '.join(sorted(lidded))} devices"
            return _Said("quota", f"{wants}; tenant {tenant.name} has all that the limit of {limit} allows", facts)
        if job.id in self.plan.done.awaits:
            victims = self.plan.victims(job.id)
            by = f"is being made by {', '.join(map(str, victims[:3]))}{' and others' if len(victims) > 3 else ''}"
            text = f"{wants}; room {by if victims else 'was made for it, and it comes first'}"
            return _Said("making-room", text, {"victims": victims, **facts}, queues=False)
        if free >= need:
            return _Said("held-for-others", f"{wants}, {free} free but kept for jobs that come first", facts)
        share = f"tenant {tenant.name} uses {used} of {share_in_words}"
        key = (job.tenant, job.device_type, need)
        not_sure = self._unsure.get(key)
        if not_sure is None:
            not_sure = self._unsure[key] = self._not_guaranteed(job)
        if not_sure:
            share, facts = f"{share}; {not_sure}", {**facts, "not_guaranteed": not_sure}
        return _Said("no-room", f"{wants}, {free} free; {share}", facts)

    def _not_guaranteed(self, job: JobState) -> str:
        """Why it is not guaranteed although something is left of a guarantee; empty if nothing is."""
        now = self.situation
        kinds = sorted(now.sure & set(self.plan.board.kinds(self.plan.board.shape(job))))
        for name in now.parts.tree.path(job.tenant):
            for kind in kinds:
                sure = now.guaranteed(name, kind)
                left = sure - now.held(self.plan.board, name, kind) if sure else 0
                if 0 < left < job.min_workers:
                    return short(name, kind, sure, left, job.min_workers)
        return ""

    def _free_for(self, shape: Shape) -> tuple[int, int]:
        """Places for this shape now and on empty nodes; what is held for others is free, only not for everybody."""
        found = self._free.get(id(shape))
        if found is None:
            found = self._free[id(shape)] = (self.plan.board.roomiest(shape)[0], self.plan.board.most(shape))
        return found

    def _with_each(self, shape: Shape) -> str:
        """What a worker needs besides its device, in words."""
        if id(shape) not in self._each:
            self._each[id(shape)] = f"{with_resources(shape.need)} each" if len(shape.need) > 1 else ""
        return self._each[id(shape)]

    def _claim(self, tenant: str) -> tuple[float, str]:
        """What the tenant may insist on, and the same in words."""
        if tenant not in self._claims:
            now = self.situation
            claim = round(now.entitled(tenant) + now.owed(tenant), 3)
            self._claims[tenant] = (claim, now.share_in_words(tenant))
        return self._claims[tenant]

    def _lidded(self, job: JobState, shape: Shape) -> set[str]:
        """The types that would hold its gang, of which its tenant may not have so many more."""
        if not self.situation.limited:
            return set()
        return {kind for kind in self._holding(shape, job.min_workers)
                if job.min_workers > self._room(job.tenant, kind)}  # fmt: skip

    def _holding(self, shape: Shape, need: int) -> list[str]:
        """The types of which the nodes in service would hold so many workers if they were empty."""
        found = self._holds.get((id(shape), need))
        if found is None:
            board = self.plan.board
            found = [kind for kind in board.kinds(shape) if board.most(shape.on(kind)) >= need]
            self._holds[id(shape), need] = found
        return found

    def _room(self, tenant: str, kind: str | None) -> int:
        if (tenant, kind) not in self._rooms:
            self._rooms[tenant, kind] = self.plan.quota_room(tenant, kind)
        return self._rooms[tenant, kind]


def expected_starts(plan: LivePlan, queue: list[JobState]) -> Iterator[float | None]:
    """Play the queue forward: devices come free when running jobs end, and go to the jobs in order.

    Only counts devices per type. A job that cannot be told to end keeps its devices for ever in this
    forecast, so what depends on it is None, rather than a guess.
    """
    free = {kind: plan.board.free_devices(kind) for kind in {n.device_type for n in plan.board.nodes.values()}}
    ends: list[tuple[float, tuple[str, ...]]] = []
    for name, seats in plan.board.seats.items():
        left = remaining_s(plan.situation.jobs[name], len(seats)) if seats else None
        if left is not None:
            kinds = tuple(plan.board.nodes[n].device_type for n in seats if plan.board.nodes[n].schedulable)
            ends.append((plan.situation.now_s + left, kinds))
    heapq.heapify(ends)
    return islice(_play(plan, queue, free, ends), len(queue))


def _play(
    plan: LivePlan, queue: list[JobState], free: dict[str, int], ends: list[tuple[float, tuple[str, ...]]]
) -> Iterator[float | None]:
    now, every = plan.situation.now_s, tuple(sorted(free))
    tenants = {job.tenant for job in queue} if plan.situation.limited else ()
    rooms = {(tenant, kind): plan.quota_room(tenant, kind) for tenant in tenants for kind in every}
    spent = {name: tenant.spent for name, tenant in plan.situation.tenants.items() if tenant.spent is not None}
    mosts: dict[tuple[str, ...], int] = {}  # free devices of the roomiest of some types, as long as nothing changes
    for job in queue:
        if job.tenant in spent:
            yield spent[job.tenant].again_s  # at the earliest; who can start before comes before it in the queue
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
