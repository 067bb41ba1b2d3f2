"""What a round reads: the cluster at this moment, everybody's share of it, and the jobs as the market sees them.

Nothing here changes during a round: repairs, the market and what can be done now are worked out from it one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from operator import attrgetter

from fairlead.cluster import DEVICE, NodeState, scaled
from fairlead.scheduling.feasible_changes import Limit, Limits
from fairlead.scheduling.job_columns import JobColumns
from fairlead.scheduling.job_views import job_view
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.market.tenants import Shares, shares
from fairlead.scheduling.promise_budgets import affordable, saved
from fairlead.scheduling.queues import path_to_top
from fairlead.scheduling.seating_plan import SeatingPlan, without
from fairlead.scheduling.state import ClusterState, JobState, TenantState


@dataclass(frozen=True, slots=True)
class Situation:
    """The cluster at the beginning of a round; ``board`` is what is held at this moment, also by whom is leaving."""

    state: ClusterState
    board: SeatingPlan
    jobs: Mapping[str, JobState]  # by id, sorted
    seen: Mapping[str, JobState]  # as the market reads them
    tenants: Mapping[str, TenantState]
    parts: Shares
    dials: MarketConfig
    limited: bool  # whether any tenant may not have all there is
    sure: frozenset[str]  # the types of device of which anything is guaranteed to anybody
    promised: Mapping[str, float]  # by tenant, the device seconds that it has saved up for promises
    affordable: frozenset[str]  # the jobs whose promises their tenants' own shares can keep

    @classmethod
    def of(cls, state: ClusterState, dials: MarketConfig = DEFAULT_CONFIG) -> Situation:
        """Sorting here makes the result independent of the order of the input."""
        dials = dials.under(state.sharing)
        jobs = {job.id: job for job in sorted(state.jobs, key=attrgetter("id"))}
        named = {tenant.name: tenant for tenant in state.tenants}
        for name in {job.tenant for job in state.jobs} - named.keys():
            named[name] = TenantState(name)
        board = SeatingPlan(state.nodes, jobs.values(), state.colocation)
        tenants = {name: _within_budget(named, name, jobs.values()) for name in sorted(named)}
        seen = _seen(state, board, jobs, tenants)
        payers = [replace(tenant, spent=None) for tenant in tenants.values()]
        staying = [replace(job, seats=without(job.seats, job.leaving)) if job.leaving else job for job in jobs.values()]
        sitting = [job for job in staying if job.seats]
        parts = shares(payers, _wanting(board, jobs, seen), _whole(board), state.now_s, state.memory, dials, sitting)
        promised = saved(jobs.values(), state.memory, state.now_s)
        due = {tenant: float(parts.entitled[parts.tree.own(tenant)]) for tenant in promised}
        kept = state.memory.get("affordable", ())
        return cls(
            state=state, board=board, jobs=jobs, seen=seen, tenants=tenants, parts=parts, dials=dials,
            limited=any(tenant.quota is not None or tenant.most for tenant in tenants.values()),
            sure=frozenset(kind for tenant in tenants.values() for kind, many in tenant.guarantee.items() if many),
            promised=promised,
            affordable=affordable(jobs.values(), promised, due, kept, state.now_s),
        )  # fmt: skip

    @property
    def now_s(self) -> float:
        return self.state.now_s

    @property
    def waiting(self) -> list[JobState]:
        return [job for job in self.jobs.values() if not (job.seats or job.settling or job.broken)]

    def entitled(self, tenant: str) -> float:
        """Devices of the tenant's own share."""
        return float(self.parts.entitled[self.parts.tree.own(tenant)])

    def goes_on(self, job: JobState) -> bool:
        """Whether it comes before all others once it was interrupted: its tenant may claim its smallest gang."""
        return job.min_workers <= max(1, ceil(self.entitled(job.tenant) - 1e-9))

    def owed(self, tenant: str) -> float:
        """Devices that it is given on top of its share, as it had too little before; negative: that it gives back."""
        own = self.parts.tree.own(tenant)
        return float(self.parts.budget[self.parts.names.index(own)]) - self.entitled(tenant)

    def used(self, tenant: str) -> int:
        return self.board.used.get(tenant, 0)

    def share_in_words(self, tenant: str) -> str:
        """What it may insist on: its share, and why it is more or less now."""
        own, more = self.entitled(tenant), self.owed(tenant) if len(self.parts.names) > 1 else 0.0
        share = f"the {own:.3g} it is entitled to"
        if more >= 0.1:
            return f"{share} and {more:.2g} it is owed"
        return f"{share} (less {-more:.2g} it had too much before)" if more <= -0.1 else share

    def lacking(self, tenant: str, kind: str) -> int | None:
        """Devices of a type that are guaranteed to it, or to whom it stands below, and not held; None: nothing is."""
        if kind not in self.sure:
            return None
        rooms = [sure - self.held(self.board, name, kind) for name in self.parts.tree.path(tenant)
                 if (sure := self.guaranteed(name, kind))]  # fmt: skip
        return max(rooms, default=None)

    def guaranteed(self, name: str, kind: str) -> int:
        tenant = self.tenants.get(name)
        return int(tenant.guarantee.get(kind, 0.0)) if tenant is not None else 0

    def held(self, board: SeatingPlan, name: str, kind: str) -> int:
        """Devices of a type that the tenant and those below it hold on this board."""
        return sum(board.used_of.get((one, kind), 0) for one in self.parts.tree.teams[name])

    def quota_room(self, tenant: str, kind: str | None = None, board: SeatingPlan | None = None) -> int:
        """Devices (of a type) that the tenant may still have, by its own limits and those of whom it stands below."""
        board = self.board if board is None else board
        room = 1 << 30
        for name in self.parts.tree.path(tenant) if self.limited else ():
            limits = self.tenants.get(name)
            if limits is None or (limits.quota is None and not limits.most):
                continue
            below = self.parts.tree.teams[name]
            if limits.quota is not None:
                room = min(room, limits.quota - sum(board.used.get(one, 0) for one in below))
            if kind is not None and kind in limits.most:
                room = min(room, int(limits.most[kind]) - sum(board.used_of.get((one, kind), 0) for one in below))
        return room

    def limits(self, board: SeatingPlan) -> Limits:
        """What quotas and limits by type leave everybody on this board."""
        left: dict[Limit, int] = {}
        tree, types = self.parts.tree, {name: node.device_type for name, node in self.board.nodes.items()}
        for name, tenant in self.tenants.items() if self.limited else ():
            if name not in tree.teams:
                continue
            if tenant.quota is not None:
                left[name, ""] = tenant.quota - sum(board.used.get(one, 0) for one in tree.teams[name])
            for kind, most in tenant.most.items():
                left[name, kind] = int(most) - self.held(board, name, kind)

        def of(job: JobState, node: str) -> list[Limit]:
            if not left:
                return []
            asked = ((queue, kind) for queue in tree.path(job.tenant) for kind in ("", types.get(node, "")))
            return [limit for limit in asked if limit in left]

        return Limits(left, of)

    def stays_put(self, job: JobState) -> bool:
        """Whether it can change nothing now: it settles, or sits where nothing new may be put, or on several types."""
        if job.settling:
            return True
        nodes = self.board.nodes
        homes = {nodes[name].device_type if name in nodes and nodes[name].schedulable else None for name in job.seats}
        return len(homes) > 1 or None in homes


def _whole(board: SeatingPlan) -> Pool:
    """All devices that can be shared out: those in service, and those in use on cordoned and outdated nodes."""
    sitting = Counter(name for seats in board.seats.values() for name in seats)
    nodes = []
    for name, node in board.nodes.items():
        if node.schedulable:
            nodes.append(node)
        elif sitting[name] and (node.state is NodeState.CORDONED or node.outdated):
            part = sitting[name] / max(1, node.devices)
            kept = {**scaled(node.capacity, part), DEVICE: float(sitting[name])}
            nodes.append(replace(node, capacity=kept, state=NodeState.READY, outdated=False))
    return Pool.of(nodes)


def _within_budget(named: Mapping[str, TenantState], name: str, jobs: Iterable[JobState]) -> TenantState:
    """Without a budget left it keeps what its gangs have, or need to be whole again, and gets nothing on top.

    With those below it, whose gangs count for its quota, and whose budgets may not be used up.
    """
    tenant = named[name]
    if tenant.spent is None:
        return tenant
    parents = {each.name: each.parent for each in named.values()}
    gangs = [job for job in jobs if (job.seats or job.broken) and name in path_to_top(job.tenant, parents)]
    kept = sum(max(len(job.seats), job.min_workers if job.broken else 0) for job in gangs)
    return replace(tenant, quota=kept if tenant.quota is None else min(kept, tenant.quota))


def _seen(
    state: ClusterState, board: SeatingPlan, jobs: Mapping[str, JobState], tenants: Mapping[str, TenantState]
) -> dict[str, JobState]:
    found, spent = {}, {name for name, tenant in tenants.items() if tenant.spent is not None}
    largest: dict[int, int] = {}  # gang that there could be of a shape, by the object that all who are alike share
    for name, job in jobs.items():
        if spent and not job.seats and job.tenant in spent:
            continue
        shape = board.shape(job)
        there = largest.get(id(shape))
        if there is None:
            there = largest[id(shape)] = board.most(shape)
        view = job_view(job, there, board.types, state.now_s)
        if view is not None:
            found[name] = view
    return found


def _wanting(board: SeatingPlan, jobs: Mapping[str, JobState], seen: Mapping[str, JobState]) -> Sequence[JobState]:
    """The jobs with as many workers as they could use: what no node could ever give is no demand, so it is lent."""
    there: Counter[str] = Counter()
    for node in board.nodes.values():
        there[node.device_type] += node.devices
    asked: Counter[tuple[str, str]] = Counter()
    wanting = []
    for name, job in jobs.items():
        sitting, asks = len(board.seats.get(name, ())), seen.get(name)
        want = 0 if asks is None or (sitting and not job.elastic) else asks.max_workers
        if sitting > want:
            want = sitting
        if job.broken and asks is not None:
            want = max(want, job.min_workers)
        if job.device_type is not None:
            want = min(want, there[job.device_type] - asked[job.tenant, job.device_type])
            asked[job.tenant, job.device_type] += want
        if want > 0:
            wanting.append(replace(job, max_workers=want) if want != job.max_workers else job)
    return JobColumns.lazily(wanting)
