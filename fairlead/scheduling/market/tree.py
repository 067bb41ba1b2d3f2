"""Where a gang sits in the tree of zones, racks and nodes: as close together as its speed asks for, then tightly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.market.capacity_arrays import Bools, Floats, Ints
from fairlead.scheduling.market.occupancy import Counts, Occupancy, SeatRequest

LOCALITY = 0.1
"""Beside its data a gang is taken to be so much better off: a preference, outdone by what a wider domain costs."""

ALIKE = 0.01
"""Paces that differ by less than this count as the same."""


def runs(wish: SeatRequest, levels: int) -> Iterator[tuple[int, int, float]]:
    """(first level, last level, pace) of neighbouring levels at which the gang is equally fast, narrowest first."""
    first = 0
    for level in range(1, levels + 1):
        if level == levels or abs(wish.pace(level) - wish.pace(first)) > ALIKE:
            yield first, level - 1, wish.pace(first)
            first = level


def best_seats(
    floor: Occupancy, wish: SeatRequest, inside: Bools | None = None, widest: int | None = None
) -> Counts | None:
    """The seats it would have now at the best pace that is free, or None when it does not fit at all."""
    fit = floor.fit(wish)
    if inside is not None:
        fit = np.where(inside, fit, 0)
    if int(fit.sum()) < wish.size:
        return None
    domains = floor.ground.domains
    for first, last, pace in runs(wish, len(domains)):
        if pace <= 0 or (widest is not None and first > widest):
            continue
        if first == 0 and bool((fit >= wish.size).any()):
            return {_preferred(floor, wish, domains[0], fit): wish.size}
        if last > 0 and int(np.bincount(domains[last], fit).max()) >= wish.size:
            number = _preferred(floor, wish, domains[last], fit)
            return _within(floor, wish, np.where(domains[last] == number, fit, 0), indifferent=first == 0)
    return None


def _preferred(floor: Occupancy, wish: SeatRequest, domain: Ints, fit: Ints) -> int:
    """Of the domains that hold it: near its data and away from bad company, awake, tight, cool; else the first."""
    room = np.bincount(domain, fit).astype(np.float64)
    candidates = np.nonzero(room >= wish.size)[0]
    if len(candidates) == 1:
        return int(candidates[0])
    keys: list[NDArray[Any]] = [candidates]
    if floor.heat.any():
        keys.append(np.round((np.bincount(domain, fit * floor.heat) / np.maximum(room, 1))[candidates], 1))
    keys.append(room[candidates])
    if not floor.awake.all():
        keys.append(np.bincount(domain, np.where(floor.awake, fit, 0))[candidates] < wish.size)
    if wish.near or floor.neighbours is not None:
        keys.append(-np.round(_quality(floor, wish, domain, fit, room)[candidates], 1 if floor.rough else 2))
    return int(candidates[np.lexsort(keys)[0]])


def _quality(floor: Occupancy, wish: SeatRequest, domain: Ints, fit: Ints, room: Floats) -> Floats:
    good = np.ones(len(room))
    if wish.near:
        beside = np.bincount(domain, np.where(floor.where(wish.near), fit, 0), minlength=len(room))
        good += LOCALITY * np.minimum(beside, wish.size) / wish.size
    if floor.neighbours is not None:
        harm = np.bincount(domain, fit * floor.neighbours.harm(wish.kind), minlength=len(room))
        good -= harm / np.maximum(room, 1)
    return good


def _within(floor: Occupancy, wish: SeatRequest, fit: Ints, *, indifferent: bool) -> Counts:
    """Over several nodes: few of them where speed depends on it; else remainders first, so that whole nodes stay free.

    The last part goes where it fits most tightly.
    """
    order: list[NDArray[Any]] = [np.arange(len(fit)), fit if indifferent else -fit]
    if not floor.awake.all():
        order.append(~floor.awake)
    if wish.near or floor.neighbours is not None:
        nodes = floor.ground.domains[0]
        order.append(-np.round(_quality(floor, wish, nodes, fit, fit.astype(np.float64)), 2))
    counts: dict[int, int] = {}
    left = wish.size
    for node in np.lexsort(order).tolist():
        if fit[node] <= 0:
            continue
        if left <= fit[node] and not indifferent:
            rest = np.where((fit >= left) & ~np.isin(np.arange(len(fit)), list(counts)), fit, np.iinfo(np.int64).max)
            if rest[node] > rest.min() and not wish.near and floor.neighbours is None and floor.awake.all():
                node = int(rest.argmin())
        counts[node] = min(left, int(fit[node]))
        left -= counts[node]
        if left == 0:
            return counts
    raise ValueError("more workers than the domain holds")
