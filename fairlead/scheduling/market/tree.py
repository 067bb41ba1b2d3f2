"""Places a gang in the tree of zones, racks and nodes: as close together as its speed requires, then tightly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.market.capacity_arrays import Bools, Floats, Ints
from fairlead.scheduling.market.occupancy import Counts, Occupancy, SeatRequest

LOCALITY = 0.1
"""Bonus for nodes near a gang's data: a preference, smaller than the cost of a wider domain."""

ALIKE = 0.01
"""Paces that differ by less than this count as equal."""


def runs(request: SeatRequest, levels: int) -> Iterator[tuple[int, int, float]]:
    """(first level, last level, pace) of neighbouring levels at which the gang is equally fast, narrowest first."""
    first = 0
    for level in range(1, levels + 1):
        if level == levels or abs(request.pace(level) - request.pace(first)) > ALIKE:
            yield first, level - 1, request.pace(first)
            first = level


def best_seats(
    occupancy: Occupancy, request: SeatRequest, inside: Bools | None = None, widest: int | None = None
) -> Counts | None:
    """The seats at the best pace that is free; None if the gang does not fit."""
    fit = occupancy.fit(request)
    if inside is not None:
        fit = np.where(inside, fit, 0)
    if int(fit.sum()) < request.size:
        return None
    domains = occupancy.capacity.domains
    for first, last, pace in runs(request, len(domains)):
        if pace <= 0 or (widest is not None and first > widest):
            continue
        if first == 0 and bool((fit >= request.size).any()):
            return {_preferred(occupancy, request, domains[0], fit): request.size}
        if last > 0 and int(np.bincount(domains[last], fit).max()) >= request.size:
            number = _preferred(occupancy, request, domains[last], fit)
            return _within(occupancy, request, np.where(domains[last] == number, fit, 0), indifferent=first == 0)
    return None


def _preferred(occupancy: Occupancy, request: SeatRequest, domain: Ints, fit: Ints) -> int:
    """The best of the domains that hold the gang: near its data, little interference, awake, tight, cool."""
    room = np.bincount(domain, fit).astype(np.float64)
    candidates = np.nonzero(room >= request.size)[0]
    if len(candidates) == 1:
        return int(candidates[0])
    keys: list[NDArray[Any]] = [candidates]
    if occupancy.heat.any():
        keys.append(np.round((np.bincount(domain, fit * occupancy.heat) / np.maximum(room, 1))[candidates], 1))
    keys.append(room[candidates])
    if not occupancy.awake.all():
        keys.append(np.bincount(domain, np.where(occupancy.awake, fit, 0))[candidates] < request.size)
    if request.near or occupancy.neighbours is not None:
        keys.append(-np.round(_quality(occupancy, request, domain, fit, room)[candidates], 1 if occupancy.rough else 2))
    return int(candidates[np.lexsort(keys)[0]])


def _quality(occupancy: Occupancy, request: SeatRequest, domain: Ints, fit: Ints, room: Floats) -> Floats:
    good = np.ones(len(room))
    if request.near:
        beside = np.bincount(domain, np.where(occupancy.where(request.near), fit, 0), minlength=len(room))
        good += LOCALITY * np.minimum(beside, request.size) / request.size
    if occupancy.neighbours is not None:
        harm = np.bincount(domain, fit * occupancy.neighbours.harm(request.kind), minlength=len(room))
        good -= harm / np.maximum(room, 1)
    return good


def _within(occupancy: Occupancy, request: SeatRequest, fit: Ints, *, indifferent: bool) -> Counts:
    """Seats over several nodes: few nodes where speed depends on it; else partly used nodes first, so that whole nodes
    stay free. The last part goes to the node with the tightest fit.
    """
    order: list[NDArray[Any]] = [np.arange(len(fit)), fit if indifferent else -fit]
    if not occupancy.awake.all():
        order.append(~occupancy.awake)
    if request.near or occupancy.neighbours is not None:
        nodes = occupancy.capacity.domains[0]
        order.append(-np.round(_quality(occupancy, request, nodes, fit, fit.astype(np.float64)), 2))
    counts: dict[int, int] = {}
    left = request.size
    for node in np.lexsort(order).tolist():
        if fit[node] <= 0:
            continue
        if left <= fit[node] and not indifferent:
            rest = np.where((fit >= left) & ~np.isin(np.arange(len(fit)), list(counts)), fit, np.iinfo(np.int64).max)
            if rest[node] > rest.min() and not request.near and occupancy.neighbours is None and occupancy.awake.all():
                node = int(rest.argmin())
        counts[node] = min(left, int(fit[node]))
        left -= counts[node]
        if left == 0:
            return counts
    raise ValueError("more workers than the domain holds")
