"""Collects what a round reads: the cluster at this moment, all tenants' shares, and the jobs as the market reads them.

It does not change during a round: all stages read the same values.
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
from fairlead.scheduling.market.tenants import Shares, compute_shares
from fairlead.scheduling.promise_budgets import affordable_jobs, promise_savings
from fairlead.scheduling.queues import path_to_top
from fairlead.scheduling.seating_plan import SeatingPlan, without
from fairlead.scheduling.state import ClusterState, JobState, TenantState


@dataclass(frozen=True, slots=True)
class Situation:
    """The cluster at the beginning of a round; in ``seating`` jobs still hold the seats that they are leaving."""

    state: ClusterState
    seating: SeatingPlan
    jobs: Mapping[str, JobState]  # by id, sorted
    seen: Mapping[str, JobState]  # jobs that could run, as the market reads them
    tenants: Mapping[str, TenantState]
    shares: Shares
    config: MarketConfig
    limited: bool  # whether any tenant has a quota or a limit by type
    guaranteed_types: frozenset[str]  # device types with a guarantee to any tenant
    promised: Mapping[str, float]  # by tenant, device seconds saved up for promises
    affordable_jobs: frozenset[str]  # jobs whose deadlines their tenants' own shares can keep

    @classmethod
    def of(cls, state: ClusterState, config: MarketConfig = DEFAULT_CONFIG) -> Situation:
        """Reads a state; sorts it, so that the order of the input does not matter."""
        config = config.under(state.sharing)
        jobs = {job.id: job for job in sorted(state.jobs, key=attrgetter("id"))}
        named = {tenant.name: tenant for tenant in state.tenants}
        for name in {job.tenant for job in state.jobs} - named.keys():
            named[name] = TenantState(name)
        seating = SeatingPlan(state.nodes, jobs.values(), state.colocation)
        tenants = {name: _within_budget(named, name, jobs.values()) for name in sorted(named)}
        seen = _market_jobs(state, seating, jobs, tenants)
        payers = [replace(tenant, spent=None) for tenant in tenants.values()]
        staying = [replace(job, seats=without(job.seats, job.leaving)) if job.leaving else job for job in jobs.values()]
        sitting = [job for job in staying if job.seats]
        shares = compute_shares(
            payers,
            _jobs_by_usable_size(seating, jobs, seen),
            _shareable_pool(seating),
            state.now_s,
            state.memory,
            config,
            sitting,
        )
        promised = promise_savings(jobs.values(), state.memory, state.now_s)
        due = {tenant: float(shares.entitled[shares.tree.own(tenant)]) for tenant in promised}
        kept = state.memory.get("affordable", ())
        return cls(
            state=state, seating=seating, jobs=jobs, seen=seen, tenants=tenants, shares=shares, config=config,
            limited=any(tenant.quota is not None or tenant.most for tenant in tenants.values()),
            guaranteed_types=frozenset(kind for one in named.values() for kind, many in one.guarantee.items() if many),
            promised=promised,
            affordable_jobs=affordable_jobs(jobs.values(), promised, due, kept, state.now_s),
        )  # fmt: skip

    @property
    def now_s(self) -> float:
        return self.state.now_s

    @property
    def waiting(self) -> list[JobState]:
        return [job for job in self.jobs.values() if not (job.seats or job.frozen or job.broken)]

    def entitled(self, tenant: str) -> float:
        """Devices of the tenant's own share."""
        return float(self.shares.entitled[self.shares.tree.own(tenant)])

    def resumes_first(self, job: JobState) -> bool:
        """Whether it restarts before all others after an interruption: its tenant may claim its smallest gang."""
        return job.min_workers <= max(1, ceil(self.entitled(job.tenant) - 1e-9))

    def owed(self, tenant: str) -> float:
        """Devices on top of its share to make up for too little before; negative: fewer, as it had too much."""
        own = self.shares.tree.own(tenant)
        return float(self.shares.budget[self.shares.names.index(own)]) - self.entitled(tenant)

    def used(self, tenant: str) -> int:
        return self.seating.used.get(tenant, 0)

    def share_text(self, tenant: str) -> str:
        """Words for the devices that it may claim: its share, and why it is more or less now."""
        own, more = self.entitled(tenant), self.owed(tenant) if len(self.shares.names) > 1 else 0.0
        share = f"the {own:.3g} it is entitled to"
        if more >= 0.1:
            return f"{share} (plus {more:.2g}, as it had too little before)"
        return f"{share} (minus {-more:.2g}, as it had too much before)" if more <= -0.1 else share

    def guarantee_left(self, tenant: str, kind: str) -> int | None:
        """Unused devices of a guarantee of this type to the tenant or one above it; None without a guarantee."""
        if kind not in self.guaranteed_types:
            return None
        rooms = [sure - self.held(self.seating, name, kind) for name in self.shares.tree.path(tenant)
                 if (sure := self.guaranteed(name, kind))]  # fmt: skip
        return max(rooms, default=None)

    def guaranteed(self, name: str, kind: str) -> int:
        tenant = self.tenants.get(name)
        return int(tenant.guarantee.get(kind, 0.0)) if tenant is not None else 0

    def held(self, seating: SeatingPlan, name: str, kind: str) -> int:
        """Devices of a type that the tenant and those below it hold in this seating."""
        return sum(seating.used_of.get((one, kind), 0) for one in self.shares.tree.teams[name])

    def quota_room(self, tenant: str, kind: str | None = None, seating: SeatingPlan | None = None) -> int:
        """Devices (of a type) that the limits of the tenant and of those above it still allow."""
        seating = self.seating if seating is None else seating
        room = 1 << 30
        for name in self.shares.tree.path(tenant) if self.limited else ():
            limits = self.tenants.get(name)
            if limits is None or (limits.quota is None and not limits.most):
                continue
            below = self.shares.tree.teams[name]
            if limits.quota is not None:
                room = min(room, limits.quota - sum(seating.used.get(one, 0) for one in below))
            if kind is not None and kind in limits.most:
                room = min(room, int(limits.most[kind]) - sum(seating.used_of.get((one, kind), 0) for one in below))
        return room

    def limits(self, seating: SeatingPlan) -> Limits:
        """What quotas and limits by type still allow in this seating."""
        left: dict[Limit, int] = {}
        tree, types = self.shares.tree, {name: node.device_type for name, node in self.seating.nodes.items()}
        for name, tenant in self.tenants.items() if self.limited else ():
            if name not in tree.teams:
                continue
            if tenant.quota is not None:
                left[name, ""] = tenant.quota - sum(seating.used.get(one, 0) for one in tree.teams[name])
            for kind, most in tenant.most.items():
                left[name, kind] = int(most) - self.held(seating, name, kind)

        def of(job: JobState, node: str) -> list[Limit]:
            if not left:
                return []
            asked = ((queue, kind) for queue in tree.path(job.tenant) for kind in ("", types.get(node, "")))
            return [limit for limit in asked if limit in left]

        return Limits(left, of)

    def cannot_change(self, job: JobState) -> bool:
        """Whether no decision is possible now: it is frozen, on a node that takes no workers, or on several types."""
        if job.frozen:
            return True
        nodes = self.seating.nodes
        homes = {nodes[name].device_type if name in nodes and nodes[name].schedulable else None for name in job.seats}
        return len(homes) > 1 or None in homes


def _shareable_pool(seating: SeatingPlan) -> Pool:
    """All devices that shares divide: those in service, and those in use on cordoned and outdated nodes."""
    sitting = Counter(name for seats in seating.seats.values() for name in seats)
    nodes = []
    for name, node in seating.nodes.items():
        if node.schedulable:
            nodes.append(node)
        elif sitting[name] and (node.state is NodeState.CORDONED or node.outdated):
            part = sitting[name] / max(1, node.devices)
            kept = {**scaled(node.capacity, part), DEVICE: float(sitting[name])}
            nodes.append(replace(node, capacity=kept, state=NodeState.READY, outdated=False))
    return Pool.of(nodes)


def _within_budget(named: Mapping[str, TenantState], name: str, jobs: Iterable[JobState]) -> TenantState:
    """The tenant; once its budget is used up, with a quota of what its gangs hold, or need to be whole again.

    The gangs of the tenants below count for its quota, even if their own budgets are not used up.
    """
    tenant = named[name]
    if tenant.spent is None:
        return tenant
    parents = {each.name: each.parent for each in named.values()}
    gangs = [job for job in jobs if (job.seats or job.broken) and name in path_to_top(job.tenant, parents)]
    kept = sum(max(len(job.seats), job.min_workers if job.broken else 0) for job in gangs)
    return replace(tenant, quota=kept if tenant.quota is None else min(kept, tenant.quota))


def _market_jobs(
    state: ClusterState, seating: SeatingPlan, jobs: Mapping[str, JobState], tenants: Mapping[str, TenantState]
) -> dict[str, JobState]:
    found, spent = {}, {name for name, tenant in tenants.items() if tenant.spent is not None}
    largest: dict[int, int] = {}  # largest gang of a shape, by the id of the shape that jobs alike share
    for name, job in jobs.items():
        if spent and not job.seats and job.tenant in spent:
            continue
        shape = seating.shape(job)
        there = largest.get(id(shape))
        if there is None:
            there = largest[id(shape)] = seating.most(shape)
        view = job_view(job, there, seating.types, state.now_s)
        if view is not None:
            found[name] = view
    return found


def _jobs_by_usable_size(
    seating: SeatingPlan, jobs: Mapping[str, JobState], seen: Mapping[str, JobState]
) -> Sequence[JobState]:
    """The jobs with as many workers as they could use: devices that no node has are no demand, so they are lent."""
    there: Counter[str] = Counter()
    for node in seating.nodes.values():
        there[node.device_type] += node.devices
    asked: Counter[tuple[str, str]] = Counter()
    wanting = []
    for name, job in jobs.items():
        sitting, asks = len(seating.seats.get(name, ())), seen.get(name)
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
