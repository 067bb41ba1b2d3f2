"""What gangs lose to those they share a node with, learned from how fast they train beside others and alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.control.records import Generation, Job
from fairlead.scheduling.market.colocation import Observation, learned
from fairlead.scheduling.market.wishes import workload
from fairlead.scheduling.state import JobState

WINDOW_S = 6.0
"""A gang is watched for so long in the same company before its speed there is believed ..."""

LEAST_STEPS = 8
"""... and for so many steps."""

SETTLES_S = 3.0
"""What a new generation does first says little about its speed."""

RECENT = 0.5
"""How much the newest window alone counts against those before."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sitting:
    """One gang at one moment: where it sits, and how many steps it has taken; None where that says nothing."""

    job: str
    kind: str
    generation: int
    nodes: frozenset[str]
    size: int
    pace: float = 1.0  # of its slowest device
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Since when, and from which step on, a gang has been in the same company."""

    generation: int
    beside: tuple[str, ...]
    since_s: float
    step: int


class Company:
    """The table that decisions are made by, and the watch that it is learned from; speeds are of one job each."""

    def __init__(self, table: Mapping[Pair, float] | None = None) -> None:
        self.table: dict[Pair, float] = dict(table or {})
        self._windows: dict[str, Window] = {}
        self._alone: dict[str, dict[tuple[int, float], float]] = {}  # job -> (size, pace) -> steps per second

    def look(self, now_s: float, gangs: Sequence[Sitting], alive: Collection[str]) -> dict[Pair, float]:
        """Take in where everybody sits and how far each has come; returns what is known anew of which pairs."""
        on: dict[str, list[Sitting]] = {}
        for gang in gangs:
            for name in gang.nodes:
                on.setdefault(name, []).append(gang)
        watched = (self._watched(now_s, gang, _beside(gang, on)) for gang in gangs)
        seen = [found for found in watched if found is not None]
        self._windows = {job: window for job, window in self._windows.items() if job in alive}
        self._alone = {job: speeds for job, speeds in self._alone.items() if job in alive}
        self.table = learned(self.table, seen)
        pairs = sorted({(one.kind, other) for one in seen for other in one.beside})
        return {pair: self.table[pair] for pair in pairs}

    def _watched(self, now_s: float, gang: Sitting, beside: tuple[str, ...]) -> Observation | None:
        """What a whole window of this gang beside others says, if one has just ended and it is known alone."""
        if gang.step is None:
            self._windows.pop(gang.job, None)
            return None
        window = self._windows.get(gang.job)
        if window is None or (window.generation, window.beside) != (gang.generation, beside) or gang.step < window.step:
            self._windows[gang.job] = Window(gang.generation, beside, now_s, gang.step)
            return None
        steps, for_s = gang.step - window.step, now_s - window.since_s
        if for_s < WINDOW_S or steps < LEAST_STEPS:
            return None
        self._windows[gang.job] = Window(gang.generation, beside, now_s, gang.step)
        alone, key = self._alone.setdefault(gang.job, {}), (gang.size, gang.pace)
        known, speed = alone.get(key), steps / for_s
        if beside:
            return None if known is None else Observation(gang.kind, beside, speed, known)
        alone[key] = speed if known is None else known + RECENT * (speed - known)
        return None


def _beside(gang: Sitting, on: Mapping[str, Sequence[Sitting]]) -> tuple[str, ...]:
    """The classes of all others that share a node with it."""
    return tuple(sorted({other.kind for name in gang.nodes for other in on[name] if other.job != gang.job}))


def sittings(
    now_s: float, jobs: Iterable[JobState], known: Mapping[str, Job], live: Mapping[str, Sequence[Generation]],
    paces: Mapping[str, float],
) -> list[Sitting]:  # fmt: skip
    """All gangs that hold devices; only of trainings in full swing do steps tell a speed."""
    found = []
    for job in jobs:
        generations, stored = live.get(job.id, ()), known.get(job.id)
        if not job.seats or not generations or stored is None:
            continue
        newest = generations[-1]
        steady = stored.training and len(generations) == 1 and not job.settling and not job.broken
        ran_s = -1.0 if newest.running_s is None else now_s - newest.running_s
        step = stored.step if steady and ran_s >= SETTLES_S else None
        pace = min(paces.get(name, 1.0) for name in job.seats)
        nodes = frozenset(job.seats)
        found.append(Sitting(job.id, workload(job.facts), newest.number, nodes, len(job.seats), pace, step))
    return found
