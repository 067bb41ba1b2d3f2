"""Checks simulated placements: gangs may not sit outside their residency, nor where a resource is exhausted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fairlead.cluster import Node
from fairlead.simulation.active_job import ActiveJob


def broken_rule(
    job: ActiveJob, seats: tuple[str, ...], nodes: Mapping[str, Node], others: Iterable[ActiveJob]
) -> str | None:
    """Why this gang may not sit there, apart from free devices; None if it may."""
    only, demand = job.job.only, job.job.demand
    for name in sorted(set(seats)):
        if only and only.isdisjoint(nodes[name].places):
            return f"a device of {name}, outside of {', '.join(sorted(only))} where alone it may run"
    if not demand:
        return None
    taken: dict[str, Counter[str]] = {name: Counter() for name in set(seats)}
    for one, where in ((job, seats), *((other, other.seats) for other in others if other is not job)):
        for name in where:
            for resource, much in one.job.demand.items() if name in taken else ():
                taken[name][resource] += much  # type: ignore[assignment]
    for name, amounts in sorted(taken.items()):
        for resource, much in sorted(amounts.items()):
            if much > nodes[name].capacity.get(resource, 0.0) + 1e-6:
                return f"more {resource} of {name} than there is"
    return None
