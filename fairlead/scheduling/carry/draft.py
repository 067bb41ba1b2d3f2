"""A round in the making: what the stages read, and what they have decided so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from fairlead.cluster import DEVICE, NodeState, scaled
from fairlead.scheduling.carry.board import Board, Shape
from fairlead.scheduling.carry.claims import claims, repaid
from fairlead.scheduling.carry.gain import pressed
from fairlead.scheduling.carry.target import Target, put
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.policy import DEFAULTS
from fairlead.scheduling.market.rules import charges, heaviness
from fairlead.scheduling.market.tenants import Shares, shares
from fairlead.scheduling.queues import path_up
from fairlead.scheduling.read import Read
from fairlead.scheduling.state import ClusterState, Decision, JobState, TenantState
from fairlead.scheduling.words import devices

PROMISE_S = 30.0
"""A job for which others made room comes first for this long once they have left; then it queues like everybody."""


@dataclass(slots=True)
class Draft:
    """The values of one round. Stages change only the board, the target, the decisions and what is promised."""

    state: ClusterState
    board: Board
    jobs: Mapping[str, JobState]  # by id, sorted
    sitting: Sequence[JobState]  # those that had seats when the round began, by id
    seen: Mapping[str, JobState]  # as the market reads them
    tenants: Mapping[str, TenantState]
    parts: Shares
    claims: Mapping[str, int]  # shares and what is owed, in whole devices
    portions: Mapping[str, int]  # shares alone: who takes more than its own from within another's is repaid
    promised: dict[str, dict[str, Any]]  # job -> {"victims": still leaving, "since_s": ...}: others make room
    dials: Dials
    target: Target = field(default_factory=Target)
    limited: bool = True  # whether any tenant may not have all there is
    line: Sequence[JobState] = ()  # the waiting ones, in order
    waits_s: dict[str, float] = field(default_factory=dict)  # tenant -> how long its longest waiting job has waited
    turns: dict[str, str] = field(default_factory=dict)  # tenant -> its job that comes first because it waited longest
    decisions: dict[str, Decision] = field(default_factory=dict)
    starting: dict[str, str] = field(default_factory=dict)  # job -> why it may start: promised, overdue, ...
    growing: set[str] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)  # devices per tenant given up for others in this round
    neighbours: dict[tuple[str | None, frozenset[str]], dict[str, list[JobState]]] = field(default_factory=dict)
    several: bool = False  # whether more than one tenant has jobs
    sure: frozenset[str] = frozenset()  # the types of device of which anything is guaranteed to anybody
    moving: list[str] = field(default_factory=list)  # gangs that are on their way elsewhere, so that others fit

    @classmethod
    def of(cls, state: ClusterState, dials: Dials = DEFAULTS) -> Draft:
        """The beginning of a round. Sorting here makes the result independent of the order of the input."""
        dials = dials.under(state.sharing)
        jobs = {job.id: job for job in sorted(state.jobs, key=attrgetter("id"))}
        named = {tenant.name: tenant for tenant in state.tenants}
        for name in {job.tenant for job in state.jobs} - named.keys():
            named[name] = TenantState(name)
        board = Board(state.nodes, jobs.values(), state.colocation)
        tenants = {name: _within_budget(named, name, jobs.values()) for name in sorted(named)}
        seen = _seen(state, board, jobs, tenants)
        payers = [replace(tenant, spent=None) for tenant in tenants.values()]
        wanting, whole = _wanting(board, jobs, seen), _whole(board)
        sitting = [job for job in jobs.values() if job.seats]  # as it is, so that a round asked again says the same
        parts = shares(payers, wanting, whole, state.now_s, state.memory, dials, sitting)
        heavy = heaviness(wanting, charges(wanting, parts.whole))  # claims are devices, whatever else goes with them
        asked = parts.used(wanting, {job.id: job.max_workers for job in wanting})
        insisted = repaid(parts, asked, whole.devices, dials.gives)

        def in_devices(amounts: Mapping[str, float]) -> Mapping[str, int]:
            own = {name: float(amounts[parts.tree.own(name)]) / heavy.get(name, 1.0) for name in tenants}
            return claims(own, tenants.values(), board.used)

        return cls(
            state=state, board=board, jobs=jobs, sitting=sitting, seen=seen, tenants=tenants, parts=parts, dials=dials,
            claims=in_devices(insisted), portions=in_devices(parts.entitled), promised=_still_promised(state, jobs),
            limited=any(tenant.quota is not None or tenant.most for tenant in tenants.values()),
            several=sum(1 for tenant in tenants if tenant in board.used) > 1,
            sure=frozenset(kind for tenant in tenants.values() for kind, many in tenant.guarantee.items() if many),
            moving=[name for name in state.memory.get("moving", ()) if name in jobs and jobs[name].settling],
        )  # fmt: skip

    @property
    def now_s(self) -> float:
        return self.state.now_s

    def presses(self, job: JobState) -> bool:
        """Whether a waiting job should begin although the market would wait for the last moment its deadline allows.

        A plan for the whole cluster can count on it. One for a tenant's share cannot: it changes as others come and go.
        """
        if job.finish_by_s is None or job.seats or not self.several:
            return False
        return pressed(job, job.min_workers, self.now_s)

    @property
    def turned_s(self) -> Mapping[str, float]:
        """When the last turn of each tenant's longest waiting job was."""
        found: Mapping[str, float] = self.state.memory.get("turned_s", {})
        return found

    @property
    def entitled(self) -> Mapping[str, float]:
        """Devices that each tenant may claim, with everybody below it."""
        return self.parts.by_tenant()

    @property
    def queue(self) -> list[JobState]:
        """The waiting jobs that nothing was decided for yet, in order."""
        if not self.starting:
            return list(self.line)
        return [job for job in self.line if job.id not in self.starting]

    def used(self, tenant: str) -> int:
        return self.board.used.get(tenant, 0)

    def said(self, tenant: str, *, plain: bool = False) -> str:
        """What it may insist on, in words: its share, and why it is more or less now."""
        own, more = self.portions[tenant], self.claims[tenant] - self.portions[tenant]
        share = f"the {own if plain else devices(own)} it is entitled to"
        if more > 0:
            return f"{share} and {more} it is owed"
        return f"{share} (less {-more} it had too much before)" if more < 0 else share

    def holding(self, tenant: str) -> int:
        """Devices that it has, less those that it is owed, more those it had too much: so who is repaid comes first."""
        return self.used(tenant) - self.claims[tenant] + self.portions[tenant]

    def headroom(self, tenant: str, kind: str | None = None) -> int:
        """Devices (of a type) that the tenant may still insist on; negative when it borrows."""
        room = self.claims[tenant] - self.used(tenant)
        lacking = None if kind is None else self.lacking(tenant, kind)
        return room if lacking is None else max(room, lacking)

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

    def held(self, board: Board, name: str, kind: str) -> int:
        """Devices of a type that the tenant and those below it hold on this board."""
        return sum(board.used_of.get((one, kind), 0) for one in self.parts.tree.teams[name])

    def quota_room(self, tenant: str, kind: str | None = None) -> int:
        """Devices (of a type) that the tenant may still have, by its own limits and those of whom it stands below."""
        room = 1 << 30
        for name in self.parts.tree.path(tenant) if self.limited else ():
            limits = self.tenants.get(name)
            if limits is None or (limits.quota is None and not limits.most):
                continue
            below = self.parts.tree.teams[name]
            if limits.quota is not None:
                room = min(room, limits.quota - sum(self.used(one) for one in below))
            if kind is not None and kind in limits.most:
                room = min(room, int(limits.most[kind]) - sum(self.board.used_of.get((one, kind), 0) for one in below))
        return room

    def unheld(self) -> Board:
        """The board as it would be if no free seats were held for anybody."""
        board = self.board.copy()
        for name in self.board.held:
            board.let_go(self.jobs[name])
        return board

    def untouched(self, job: JobState) -> bool:
        """Whether the job runs and may still be decided about in this round."""
        steady = bool(job.seats) and not job.settling and not job.broken
        return steady and job.id not in self.decisions and job.id not in self.growing

    def steady(self) -> list[JobState]:
        """The gangs that run and may still be decided about in this round."""
        return [job for job in self.sitting if self.board.seats[job.id] and self.untouched(job)]

    def beside(self, shape: Shape) -> Mapping[str, Sequence[JobState]]:
        """By tenant, who sat as the round began where workers of this shape, which names its type of device, could."""
        key = (shape.device_type, shape.only)
        if key not in self.neighbours:
            there, found = frozenset(self.board.ready(*key)), self.neighbours.setdefault(key, {})
            for job in self.sitting:
                if not there.isdisjoint(job.seats):
                    found.setdefault(job.tenant, []).append(job)
        return self.neighbours[key]

    def steady_on(self, shape: Shape, tenants: Iterable[str] | None = None) -> list[JobState]:
        """Those of them, of all tenants or of some, that run and may still be decided about in this round."""
        beside, seats = self.beside(shape), self.board.seats
        some = beside if tenants is None else [tenant for tenant in tenants if tenant in beside]
        return [job for tenant in some for job in beside[tenant] if seats[job.id] and self.untouched(job)]

    def fixed(self) -> frozenset[str]:
        """Gangs that stay as they are, whatever the market would do: they settle, were just mended, or sit where
        nothing new may be put."""
        home = {name: node.device_type for name, node in self.board.nodes.items() if node.schedulable}
        return frozenset(
            job.id
            for job in self.jobs.values()
            if (job.seats or job.settling or job.broken)
            and (not self.untouched(job) or len(kinds := {home.get(name) for name in job.seats}) > 1 or None in kinds)
        )

    def decide(self, decision: Decision) -> None:
        self.decisions[decision.job] = decision


def _whole(board: Board) -> Pool:
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
    gangs = [job for job in jobs if (job.seats or job.broken) and name in path_up(job.tenant, parents)]
    kept = sum(max(len(job.seats), job.min_workers if job.broken else 0) for job in gangs)
    return replace(tenant, quota=kept if tenant.quota is None else min(kept, tenant.quota))


def _seen(
    state: ClusterState, board: Board, jobs: Mapping[str, JobState], tenants: Mapping[str, TenantState]
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
        put_so = put(job, there, board.types, state.now_s)
        if put_so is not None:
            found[name] = put_so
    return found


def _wanting(board: Board, jobs: Mapping[str, JobState], seen: Mapping[str, JobState]) -> Sequence[JobState]:
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
    return Read.lazily(wanting)


def _still_promised(state: ClusterState, jobs: Mapping[str, JobState]) -> dict[str, dict[str, Any]]:
    """What earlier rounds promised and is not kept yet; a running job's promise ends when its victims have settled.

    Its time begins when the last victim has left: however long that takes, no further victims are sought meanwhile.
    """
    kept: dict[str, dict[str, Any]] = {}
    for name, promise in sorted(state.memory.get("promised", {}).items()):
        job = jobs.get(name)
        leaving = [victim for victim in promise["victims"] if victim in jobs and jobs[victim].settling]
        since_s = state.now_s if leaving else promise["since_s"]
        if job is None or not 0.0 <= state.now_s - since_s <= PROMISE_S:
            continue
        if leaving or not (job.seats or job.settling):
            kept[name] = {"victims": leaving, "since_s": since_s}
    return kept
