"""Draws mutants by seed and knows which of them need no test."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tests.mutants.mutations import Mutant, Site, modules, mutant_of, sites
from tests.mutants.trees import CHECKOUT

ROOMS = ("scheduling", "planning", "control", "recovery", "training", "grid", "data")
ON_REQUEST = ("agent",)  # its tests start real processes: drawn only when it is named
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")


def drawn(seed: int, rooms: Sequence[str], count: int) -> list[tuple[str, Mutant]]:
    """(room, mutant): rooms by turns, in each a kind of change and then a place for it, all equally likely."""
    chance = random.Random(seed)
    found: dict[str, tuple[str, Mutant]] = {}
    while len(found) < count:
        room = rooms[len(found) % len(rooms)]
        by_kind = _by_kind(room)
        site = chance.choice(by_kind[chance.choice(sorted(by_kind))])
        mutant = mutant_of(site, _sites(site.module), _source(site.module))
        if mutant is not None:
            found.setdefault(mutant.key, (room, mutant))
    return list(found.values())


def equivalents() -> dict[str, str]:
    """The reason for each mutant that needs no test, by its key."""
    listed = tomllib.loads(EQUIVALENTS.read_text()).get("mutant", [])
    return {f"{each['module']}:{each['function']}:{each['change']}": each["reason"] for each in listed}


def unknown(keys: Iterable[str]) -> list[str]:
    """Those of the keys that belong to no mutant any more: their code has changed."""
    return sorted(key for key in keys if key not in _keys(*key.split(":")[:2]))


@cache
def _keys(module: str, function: str) -> frozenset[str]:
    if not (CHECKOUT / module).exists():
        return frozenset()
    own = [site for site in _sites(module) if site.function == function]
    every = (mutant_of(site, own, _source(module)) for site in own)
    return frozenset(mutant.key for mutant in every if mutant is not None)


@cache
def _by_kind(room: str) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for module in modules(CHECKOUT, room):
        for site in _sites(module):
            found.setdefault(site.kind, []).append(site)
    return found


@cache
def _sites(module: str) -> list[Site]:
    return sites(module, _source(module))


@cache
def _source(module: str) -> str:
    return (CHECKOUT / module).read_text()
