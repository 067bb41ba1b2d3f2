"""Divides devices in a tree of queues: tenants, their teams and people (U4).

Weights count among siblings. A queue's unused share goes to its siblings first, and upwards only once no queue below
their parent wants it. A guarantee is a floor, a quota or a limit by type a cap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.cluster import DEVICE, Node, Resources, add, total
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.state import JobState, TenantState

ANY = ""
"""The key of demand for any device type."""

OWN, NOBODY = "*", "?"
"""Queue names for a tenant's own work beside its teams, and for its jobs without a known submitter."""

Wants = Mapping[str, float]
"""Devices by type, and under ``ANY`` devices of any type."""


def path_to_top(name: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """The queue and the queues above it, up to the top."""
    path = [name]
    while (parent := parents.get(path[-1])) is not None and parent not in path:
        path.append(parent)
    return tuple(path)


@dataclass(frozen=True, slots=True)
class Tree:
    """All queues in the order of their names, with parents and children."""

    queues: Mapping[str, TenantState]
    above: Mapping[str, str | None]
    below: Mapping[str | None, tuple[str, ...]]
    people: Mapping[str, frozenset[str]]  # by tenant, where several people have jobs
    tenants: frozenset[str]  # the queues that are tenants
    paths: Mapping[str, tuple[str, ...]]  # each queue, the one above it, and so on up to the top
    teams: Mapping[str, tuple[str, ...]]  # by tenant: itself and the tenants below it

    @classmethod
    def of(cls, tenants: Iterable[TenantState], persons: Mapping[str, Collection[str]] | None = None) -> Tree:
        """The tenants, the own work of those with teams below, and people where several of a tenant have jobs.

        ``persons`` are the people who have jobs, by tenant (see :func:`people_with_jobs`).
        """
        known, persons = {tenant.name: tenant for tenant in tenants}, persons or {}
        for tenant in persons:
            known.setdefault(tenant, TenantState(tenant))
        above, named = _parents(known), frozenset(known)
        people = {tenant: frozenset(found) for tenant, found in persons.items() if len(found) > 1}
        for tenant in {parent for parent in above.values() if parent is not None}:
            _add(known, above, f"{tenant}/{OWN}", tenant)
        for tenant, found in people.items():
            parent = f"{tenant}/{OWN}" if f"{tenant}/{OWN}" in known else tenant
            for person in found:
                _add(known, above, f"{tenant}/{person or NOBODY}", parent)
        below: dict[str | None, list[str]] = {}
        for name in sorted(known):
            below.setdefault(above[name], []).append(name)
        paths = {name: path_to_top(name, above) for name in sorted(known)}
        teams: dict[str, list[str]] = {}
        for name in sorted(named):
            for queue in paths[name]:
                teams.setdefault(queue, []).append(name)
        return cls({name: known[name] for name in paths}, above, {name: tuple(found) for name, found in below.items()},
                   people, named, paths, {name: tuple(found) for name, found in teams.items()})  # fmt: skip

    def own(self, tenant: str) -> str:
        """The queue of a tenant's own work, without its teams."""
        own = f"{tenant}/{OWN}"
        return own if own in self.queues else tenant

    def leaf(self, tenant: str, person: str = "") -> str:
        """The queue of this person's jobs; without a queue of its own, that of the tenant's own work."""
        return f"{tenant}/{person or NOBODY}" if person in self.people.get(tenant, ()) else self.own(tenant)

    def leaves(self, jobs: Sequence[JobState]) -> list[str]:
        """The queue of each job."""
        tenants, persons = read_column(jobs, "tenant"), read_column(jobs, "person")
        if not self.people:
            own = {tenant: self.own(tenant) for tenant in set(tenants)}
            return [own[tenant] for tenant in tenants]
        known = {who: self.leaf(*who) for who in set(zip(tenants, persons, strict=True))}
        return [known[who] for who in zip(tenants, persons, strict=True)]

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and the queues above it, up to the top."""
        return self.paths[name]

    @property
    def flat(self) -> bool:
        return len(self.below) <= 1

    def upwards(self) -> list[str]:
        """All queues, each after the queues below it."""
        order: list[str] = []
        open_: list[str] = list(self.below.get(None, ()))
        while open_:
            name = open_.pop()
            order.append(name)
            open_ += self.below.get(name, ())
        return order[::-1]

    def summed(self, amounts: Mapping[str, float]) -> dict[str, float]:
        """Each queue's amount including the queues below it."""
        sums = {name: float(amounts.get(name, 0.0)) for name in self.queues}
        if not self.flat:
            for name in self.upwards():
                if (parent := self.above[name]) is not None:
                    sums[parent] += sums[name]
        return sums


def _parents(known: Mapping[str, TenantState]) -> dict[str, str | None]:
    """The parent of each tenant; None if it is unknown or part of a cycle."""
    above = {name: tenant.parent if tenant.parent in known else None for name, tenant in known.items()}
    safe: set[str] = set()
    for name in sorted(known):
        seen: dict[str, None] = {}
        at: str | None = name
        while at is not None and at not in safe and at not in seen:
            seen[at] = None
            at = above[at]
        if at is not None and at in seen:
            members = list(seen)[list(seen).index(at) :]
            above |= dict.fromkeys(members, None)
        safe |= seen.keys()
    return above


def _add(known: dict[str, TenantState], above: dict[str, str | None], name: str, parent: str) -> None:
    known[name] = TenantState(name, parent=parent)
    above[name] = parent


def people_with_jobs(jobs: Sequence[JobState]) -> dict[str, set[str]]:
    """The people who have jobs, by tenant."""
    found: dict[str, set[str]] = {}
    for tenant, person in set(zip(read_column(jobs, "tenant"), read_column(jobs, "person"), strict=True)):
        found.setdefault(tenant, set()).add(person)
    return found


@dataclass(frozen=True, slots=True)
class Demand:
    """What the jobs of each leaf queue could use: charged devices, and devices by type."""

    charged: Mapping[str, float]
    wants: Mapping[str, Wants] = field(default_factory=dict)
    types: Mapping[str, float] = field(default_factory=dict)  # devices by type; empty: unknown


def divide_capacity(tree: Tree, demand: Demand, capacity: float) -> dict[str, float]:
    """Devices that each queue may claim, including queues below it: weighted max-min on each level."""
    weights = {name: queue.weight for name, queue in tree.queues.items()}
    caps, floors = _bounds(tree, demand)
    given = divide_by_weight(capacity, tree.below.get(None, ()), caps, floors, weights)
    if not tree.flat:
        for name in reversed(tree.upwards()):
            if name in tree.below:
                given |= divide_by_weight(given[name], tree.below[name], caps, floors, weights)
    return given


def divide_by_weight(
    amount: float, names: Sequence[str], caps: Mapping[str, float], floors: Mapping[str, float],
    weights: Mapping[str, float],
) -> dict[str, float]:  # fmt: skip
    """Divides the amount by weight, none above its cap and none below its floor as far as the amount allows."""
    sure = {name: floors[name] for name in names if name in floors}
    promised = sum(sure.values())
    if sure and promised >= amount:  # guarantees exceed the amount, such as after a loss of nodes
        return {name: sure.get(name, 0.0) * amount / promised if promised > 0 else 0.0 for name in names}
    kept: dict[str, float] = {}
    while True:
        others = [name for name in names if name not in kept]
        found = _by_weight(amount - sum(kept.values()), others, caps, weights)
        short = {name: sure[name] for name in others if name in sure and found[name] < sure[name] - 1e-12}
        if not short:
            return {name: kept[name] if name in kept else found[name] for name in names}
        kept |= short


def _by_weight(
    amount: float, names: Sequence[str], caps: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    shares = dict.fromkeys(names, 0.0)
    left, weight_left = float(amount), sum(weights[name] for name in shares)
    # The queue that needs least per weight is satisfied first; the others divide what it leaves.
    for name in sorted(shares, key=lambda name: (caps[name] / weights[name], name)):
        # with weights of very different size, rounding may leave no weight: then this is the last queue
        among = weight_left if weight_left > 0.999999 * weights[name] else weights[name]
        shares[name] = min(caps[name], left * weights[name] / among)
        left -= shares[name]
        weight_left -= weights[name]
    return shares


def _bounds(tree: Tree, demand: Demand) -> tuple[dict[str, float], dict[str, float]]:
    """The cap of every queue, and the floor of queues with guarantees, here or below."""
    caps: dict[str, float] = {}
    floors: dict[str, float] = {}
    limited = any(queue.guarantee or queue.most for queue in tree.queues.values())
    wants = _wants_below(tree, demand) if limited else {}
    for name in tree.queues if tree.flat else tree.upwards():
        queue, children = tree.queues[name], tree.below.get(name, ())
        cap = float(demand.charged.get(name, 0.0)) + sum(caps[child] for child in children)
        if queue.quota is not None:
            cap = min(cap, float(queue.quota))
        if queue.most:
            cap = min(cap, _servable(wants[name], queue.most, demand, otherwise=float("inf")))
        caps[name] = cap
        floor = sum(floors.get(child, 0.0) for child in children)
        if queue.guarantee:
            floor = max(floor, _servable(wants[name], queue.guarantee, demand, otherwise=0.0))
        if floor > 0:
            floors[name] = min(cap, floor)
    return caps, floors


def _wants_below(tree: Tree, demand: Demand) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {name: {} for name in tree.queues}
    for name in tree.upwards():
        own = demand.wants.get(name) or {ANY: float(demand.charged.get(name, 0.0))}
        sums[name] = add(sums[name], own)
        if (parent := tree.above[name]) is not None:
            sums[parent] = add(sums[parent], sums[name])
    return sums


def _servable(wants: Wants, limit: Mapping[str, float], demand: Demand, *, otherwise: float) -> float:
    """How much of the demand fits under a limit by type; types that it does not name are limited to ``otherwise``."""
    kinds = sorted({*demand.types, *limit, *wants} - {ANY})
    room = {kind: min(limit.get(kind, otherwise), demand.types.get(kind, 0.0 if demand.types else float("inf")))
            for kind in kinds}  # fmt: skip
    if not demand.types:
        room[ANY] = otherwise  # of types without a name here
    typed = sum(min(wants.get(kind, 0.0), room[kind]) for kind in kinds)
    spare = sum(max(0.0, amount - (wants.get(kind, 0.0) if kind != ANY else 0.0)) for kind, amount in room.items())
    return typed + min(wants.get(ANY, 0.0), spare)


def charge(need: Resources, whole: Resources) -> float:
    """Devices that one worker counts as: its dominant resource, relative to one device's part of all devices.

    A worker that takes more memory or cores than its device's part is charged for them (dominant resource fairness).
    """
    devices = whole.get(DEVICE, 0.0)
    parts = (amount / whole[name] for name, amount in need.items() if name != DEVICE and whole.get(name, 0.0) > 0)
    return max(1.0, max(parts, default=0.0) * devices)


def in_service(nodes: Iterable[Node]) -> dict[str, float]:
    """Total resources of the nodes that take new workers."""
    return total(node.capacity for node in nodes if node.schedulable)
