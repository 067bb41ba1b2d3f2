"""Learns what gangs lose to neighbours on the same node, from their speeds beside others and alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead import wire
from fairlead.control.records import Generation, Job
from fairlead.scheduling.market.colocation import Observation, learn_losses
from fairlead.scheduling.market.seat_requests import workload_class
from fairlead.scheduling.state import JobState

WINDOW_S = 6.0
"""A gang is watched this long beside the same neighbours before its speed counts ..."""

LEAST_STEPS = 8
"""... and for this many steps."""

SETTLE_S = 3.0
"""The start of a new generation, which says little about its speed."""

LOOK_EVERY_S = 1.0
"""How often windows are checked at most."""

NEWEST_WEIGHT = 0.5
"""Weight of the newest window against all before."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """The nodes of one gang, and since when it has trained there undisturbed; None where its steps say nothing."""

    job: str
    kind: str
    generation: int
    nodes: frozenset[str]
    size: int
    pace: float = 1.0  # speed of its slowest device
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Since when, and from which step on, a gang has had the same neighbours."""

    generation: int
    beside: tuple[str, ...]
    since_s: float
    step: int


class InterferenceWatch:
    """The table of losses that decisions use, and the observations from which it is learned."""

    def __init__(self, table: Mapping[Pair, float] | None = None) -> None:
        self.table: dict[Pair, float] = dict(table or {})
        self._gangs: Sequence[GangPlacement] = ()
        self._others: Mapping[str, tuple[str, ...]] | None = None  # by job: the classes beside it, once looked at
        self._steps: dict[str, tuple[int, int]] = {}  # job -> generation, how far it has come
        self._windows: dict[str, Window] = {}
        self._alone: dict[str, dict[tuple[int, float], float]] = {}  # job -> (size, pace) -> steps per second
        self._looked_s = 0.0

    def set_placements(self, gangs: Sequence[GangPlacement], alive: Collection[str]) -> None:
        """These gangs hold devices from now on; jobs that are not ``alive`` are forgotten, but not what was learned."""
        self._gangs, self._others = gangs, None
        self._steps = {job: step for job, step in self._steps.items() if job in alive}
        self._windows = {job: window for job, window in self._windows.items() if job in alive}
        self._alone = {job: speeds for job, speeds in self._alone.items() if job in alive}

    def record_progress(self, job: str, body: object) -> None:
        """Record how far a gang has come."""
        if isinstance(body, wire.Progress):
            self._steps[job] = (body.generation, body.step)

    def close_windows(self, now_s: float) -> dict[Pair, float]:
        """Close the full windows; returns the new losses by pair of classes."""
        if 0.0 <= now_s - self._looked_s < LOOK_EVERY_S:
            return {}
        self._looked_s = now_s
        others = self._others = _neighbours(self._gangs) if self._others is None else self._others
        watched = (self._watched(now_s, gang, others[gang.job]) for gang in self._gangs)
        seen = [found for found in watched if found is not None]
        self.table = learn_losses(self.table, seen)
        pairs = sorted({(one.kind, other) for one in seen for other in one.beside})
        return {pair: self.table[pair] for pair in pairs}

    def _watched(self, now_s: float, gang: GangPlacement, beside: tuple[str, ...]) -> Observation | None:
        """The observation of a full window beside neighbours, if the gang's speed alone is known."""
        generation, step = self._steps.get(gang.job, (0, 0))
        if gang.since_s is None or now_s - gang.since_s < SETTLE_S or generation != gang.generation:
            self._windows.pop(gang.job, None)
            return None
        window = self._windows.get(gang.job)
        if window is None or (window.generation, window.beside) != (generation, beside) or step < window.step:
            self._windows[gang.job] = Window(generation, beside, now_s, step)
            return None
        steps, for_s = step - window.step, now_s - window.since_s
        if for_s < WINDOW_S or steps < LEAST_STEPS:
            return None
        self._windows[gang.job] = Window(generation, beside, now_s, step)
        alone, key = self._alone.setdefault(gang.job, {}), (gang.size, gang.pace)
        known, speed = alone.get(key), steps / for_s
        if beside:
            return None if known is None else Observation(gang.kind, beside, speed, known)
        alone[key] = speed if known is None else known + NEWEST_WEIGHT * (speed - known)
        return None


def _neighbours(gangs: Sequence[GangPlacement]) -> dict[str, tuple[str, ...]]:
    """By job, the classes of all other gangs on its nodes."""
    on: dict[str, list[GangPlacement]] = {}
    for gang in gangs:
        for name in gang.nodes:
            on.setdefault(name, []).append(gang)
    return {gang.job: tuple(sorted({other.kind for name in gang.nodes for other in on[name] if other.job != gang.job}))
            for gang in gangs}  # fmt: skip


def gang_placements(
    jobs: Iterable[JobState], known: Mapping[str, Job], live: Mapping[str, Sequence[Generation]],
    paces: Mapping[str, float],
) -> list[GangPlacement]:  # fmt: skip
    """All gangs that hold devices; only steps of trainings in full swing tell a speed."""
    found = []
    for job in jobs:
        generations, stored = live.get(job.id, ()), known.get(job.id)
        if not job.seats or not generations or stored is None:
            continue
        newest, nodes = generations[-1], frozenset(job.seats)
        steady = stored.training and len(generations) == 1 and not job.frozen and not job.broken
        pace = min(paces.get(name, 1.0) for name in nodes)
        since_s = newest.running_s if steady else None
        found.append(
            GangPlacement(job.id, workload_class(job.facts), newest.number, nodes, len(job.seats), pace, since_s)
        )
    return found
