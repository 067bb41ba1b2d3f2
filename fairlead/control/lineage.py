"""Checks what workers report about the origin of results, and computes what a rerun can promise. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.control.records import Generation

MOST_BYTES = 4 << 20  # of one job's report
MOST_BLOCKS = 100_000
LONGEST = 500

BITS, TOLERANCE = "bits", "tolerance"
"""What a rerun gives: the same weights bit by bit, or the same but for rounding."""


class VersionRead(msgspec.Struct, frozen=True):
    """A version of a data set that the job read."""

    name: str
    version: str
    recipe: str = ""
    rows: int = 0
    blocks: list[str] = []


class ReportedOrigin(msgspec.Struct, frozen=True):
    """The origin of a result as the worker that wrote it reports."""

    weights: str | None = None
    seed: int = 0
    environment: dict[str, str | int] = {}
    samples: int = 0
    steps: int = 0
    course: list[tuple[int, int, str, list[float]]] = []
    data: list[VersionRead] = []
    repeats: bool = False
    why_not: str = ""
    followed: bool | None = None


def check_origin(said: Mapping[str, Any]) -> ReportedOrigin:
    """The reported origin, if an honest worker could send it; ValueError otherwise."""
    if len(msgspec.msgpack.encode(said)) > MOST_BYTES:
        raise ValueError("a lineage that is too large")
    try:
        found = msgspec.convert(dict(said), ReportedOrigin)
    except msgspec.ValidationError as error:
        raise ValueError(f"a lineage that cannot be read: {error}") from None
    parts = [share for _, _, _, shares in found.course for share in shares]
    sound = all(math.isfinite(share) and 0 <= share <= 1.000001 for share in parts)
    if not sound or sum(len(each.blocks) for each in found.data) > MOST_BLOCKS:
        raise ValueError("a lineage with impossible numbers")
    texts = [found.why_not, found.weights or "", *(str(word) for pair in found.environment.items() for word in pair)]
    if any(len(text) > LONGEST for text in texts):
        raise ValueError("a lineage with texts that are too long")
    return found


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a rerun of a job can be: its workers and plan if they never changed, and what to expect."""

    gives: str
    why: str
    workers: int | None = None
    plan: Mapping[str, Any] | None = None  # as stored with its generations


def what_repeats(said: ReportedOrigin | None, generations: Sequence[Generation]) -> Repeat:
    """Whether a rerun can give the same bits, and with which workers and plan."""
    ran = [each for each in generations if did_work(each)]
    if said is None or not said.course:
        why = said.why_not if said is not None else ""
        return Repeat(TOLERANCE, why or "it says nothing of the course that it took")
    worlds = sorted({world for _, world, _, _ in said.course})
    plans = list(dict.fromkeys(plan for _, _, plan, _ in said.course))
    if len(worlds) > 1:
        told = " and ".join(map(str, worlds))
        return Repeat(TOLERANCE, f"it ran on {told} workers by turns, and a rerun runs on what it gets")
    if len(plans) > 1:
        return Repeat(TOLERANCE, f"it changed its plan while it ran: {', '.join(plans)}", workers=worlds[0])
    plan = next((each.plan for each in reversed(ran) if each.plan is not None), None)
    seats = len(ran[-1].members) if ran else worlds[0]
    if not said.repeats:
        return Repeat(TOLERANCE, said.why_not or "it says that it cannot be repeated", seats, plan)
    count = f"{worlds[0]} worker{'s' if worlds[0] > 1 else ''}"
    return Repeat(BITS, f"{count} under one plan ({plans[0]}) from the first step to the last", seats, plan)


def did_work(generation: Generation) -> bool:
    """True if it ran: a generation that ended in a moment may never have been seen running."""
    return generation.running_s is not None or generation.outcome == "finished"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences of two environments, as text; empty: none known."""
    names = sorted({*before, *now})
    told = [f"{name} {before.get(name, '?')} then, {now.get(name, '?')} now" for name in names
            if before.get(name) != now.get(name)]  # fmt: skip
    return "; ".join(told)
