"""Sia (SOSP 23) as a yardstick: one (device type, gang size) per job by an integer program over normalised goodput."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.curves import FAR, NEAR
from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.packing import packed
from fairlead.simulation.yardsticks.seating import round_of
from fairlead.simulation.yardsticks.type_requests import TypeRequest, capacities

NOTHING = 1e-4


@dataclass(frozen=True, slots=True)
class History:
    """What Sia remembers of a job."""

    restarts: int = 0
    widest: int = 0  # the largest gang that it has run on
    wish: TypeRequest | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Sia:
    """Minimises the sum of (goodput over the job's least goodput) ** p, and a penalty for each job left out.

    A change of gang counts less by the share of its life that a job loses with it. A gang may at most double the
    widest that the job has run on, as far as Sia trusts a profile; one that restarts is left alone until it runs.
    What a gang is worth is rounded to two decimals, as in its authors' code: large gangs are often worth the same.
    """

    power: float = -0.5
    left_out: float = 1.1
    time_limit_s: float = 10.0

    def __call__(self, state: ClusterState) -> Round:
        known: Mapping[str, History] = state.memory.get("history", {})
        types = capacities(state.nodes)
        jobs = list(state.jobs)
        past = {job.id: _ran(known.get(job.id, History()), job, state.now_s) for job in jobs}
        choices = [self._choices(state, job, past[job.id], types) for job in jobs]
        wishes = self._solve(jobs, choices, types)
        history = {job.id: _after(past[job.id], wishes.get(job.id)) for job in jobs}
        return round_of(state, packed(state, wishes), "Sia", {"history": history})

    def _choices(
        self, state: ClusterState, job: JobState, past: History, types: Mapping[str, int]
    ) -> list[tuple[TypeRequest, float]]:
        """Every gang worth considering, with its cost in the objective."""
        if past.wish is not None and _restarts(job, state.now_s):
            return [(past.wish, 0.0)]
        most = min(job.max_workers, max(2 * past.widest, job.min_workers))
        goodputs = {wish: goodput for wish, goodput in configurations(state, job, types) if wish.size <= most}
        if not goodputs:
            return []
        least = min(goodputs.values())
        age_s = state.now_s - job.submitted_s
        lost_s = past.restarts * job.restart_cost_s
        keeps = 1.0 if age_s < job.restart_cost_s else max(age_s - lost_s, 0.0) / (age_s + job.restart_cost_s)
        found = []
        for wish, goodput in goodputs.items():
            worth = goodput / least * (1.0 if wish == past.wish or past.wish is None else keeps)
            found.append((wish, job.weight * round(max(worth, NOTHING) ** self.power, 2)))
        return found

    def _solve(
        self, jobs: Sequence[JobState], choices: Sequence[Sequence[tuple[TypeRequest, float]]], types: Mapping[str, int]
    ) -> dict[str, TypeRequest]:
        """By HiGHS; each job at most one gang, no type more devices than there are."""
        flat = [(row, wish, cost) for row, options in enumerate(choices) for wish, cost in options]
        if not flat:
            return {}
        sign = -1.0 if self.power > 0 else 1.0
        costs = np.array([sign * (cost - self.left_out * jobs[row].weight) for row, _, cost in flat])
        one_each = np.zeros((len(jobs), len(flat)))
        used = np.zeros((len(types), len(flat)))
        place = {kind: row for row, kind in enumerate(types)}
        for column, (row, wish, _) in enumerate(flat):
            one_each[row, column] = 1.0
            used[place[wish.device_type], column] = wish.size
        chosen = self._highs(costs, np.vstack([one_each, used]), np.array([1.0] * len(jobs) + [*types.values()]))
        return {jobs[row].id: wish for (row, wish, _), taken in zip(flat, chosen, strict=True) if taken > 0.5}

    def _highs(
        self, costs: NDArray[np.float64], rows: NDArray[np.float64], upper: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        from scipy.optimize import Bounds, LinearConstraint, milp

        options = {"time_limit": self.time_limit_s, "mip_rel_gap": 1e-4}
        limits, whole = LinearConstraint(rows, -np.inf, upper), np.ones(len(costs))
        with quiet():
            solved = milp(costs, integrality=whole, bounds=Bounds(0, 1), constraints=limits, options=options)
        return np.zeros(len(costs)) if solved.x is None else np.asarray(solved.x, dtype=np.float64)


@contextmanager
def quiet() -> Iterator[None]:
    """This HiGHS now and then prints a line from within, past Python, which would end up in the user's JSON."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    flush(None)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def configurations(state: ClusterState, job: JobState, types: Mapping[str, int]) -> list[tuple[TypeRequest, float]]:
    """Powers of two within a node, whole nodes beyond; with the goodput that the job's curve gives them."""
    found = []
    for kind, devices in types.items():
        node = max(one.devices for one in state.nodes if one.schedulable and one.device_type == kind)
        for size in [2**k for k in range(node.bit_length()) if 2**k < node] + list(range(node, devices + 1, node)):
            if job.min_workers <= size <= job.max_workers and job.curve is not None:
                goodput = job.curve.speed(kind, size, NEAR if size <= node else FAR)
                if goodput > 0:
                    found.append((TypeRequest(kind, size), goodput))
    return found or _rigid(state, job, types)


def _rigid(state: ClusterState, job: JobState, types: Mapping[str, int]) -> list[tuple[TypeRequest, float]]:
    """A gang of another size than Sia's own can only be taken as it is, on any type."""
    size = job.min_workers
    if job.curve is None:
        return [(TypeRequest(kind, size), 1.0) for kind, devices in types.items() if size <= devices]
    speeds = {kind: max(job.curve.speed(kind, size, level) for level in (NEAR, FAR)) for kind in types}
    return [(TypeRequest(kind, size), speed) for kind, speed in speeds.items() if speed > 0 and size <= types[kind]]


def _restarts(job: JobState, now_s: float) -> bool:
    return bool(job.seats) and now_s - job.since_s < job.restart_cost_s


def _ran(past: History, job: JobState, now_s: float) -> History:
    """With the gang that it has, once that has run."""
    if not job.seats or _restarts(job, now_s):
        return past
    return replace(past, widest=max(past.widest, len(job.seats)))


def _after(past: History, wish: TypeRequest | None) -> History:
    if wish is None:
        return replace(past, wish=None)
    return History(past.restarts + (past.begun and wish != past.wish), past.widest, wish, True)
