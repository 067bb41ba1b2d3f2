"""Shockwave (NSDI 23) as a yardstick: a market over the rounds to come, solved as an integer program with HiGHS.

In the manner of the paper: the welfare of all jobs (the sum of logarithms of their progress) and the longest remaining
time are traded off over a window of future rounds, and every job must be able to keep its fair finish time. Where that
cannot be, jobs that fall behind weigh more. Which of the window's rounds a job gets does not matter to either term, so
the program has one whole number per job, and rounds are filled afterwards; the original has one per job and round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.ordered_policies import fastest_free
from fairlead.simulation.yardsticks.shockwave_forecast import JobForecast, outlook
from fairlead.simulation.yardsticks.type_requests import TypeRequest, capacities, granted

Array = NDArray[np.float64]

WINDOW = 20
RESOLVE = 8
"""Rounds that are planned, and after how many the plan is made anew when nothing happened."""

TAIL = 1e-3
"""What a second of the longest remaining time weighs against welfare (k)."""

URGENCY = 12.0
"""How much more a job weighs that falls behind its fair finish time (lambda)."""

RHO = 1.0
MOMENTUM = 0.9
BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
NOTHING = 1e-6
"""Progress at which the logarithm of none is taken."""

GAP, NODES = 1e-4, 300
"""How good an answer is good enough, and how many branches are looked at for it: no clock, so that runs repeat."""


@dataclass(slots=True)
class Shockwave:
    """Plans a window of rounds when jobs came or went, or every so many rounds."""

    plan: list[list[str]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    fair: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # (round, foreseen fair finish)
    rounds: int = 0

    def __call__(self, state: ClusterState) -> Round:
        present = {job.id for job in state.jobs}
        if present != self.known or not self.plan or self.rounds % RESOLVE == 0:
            self._resolve(state, changed=present != self.known)
            self.known = present
        self.rounds += 1
        chosen = self.plan.pop(0)
        left = capacities(state.nodes)
        jobs = {job.id: job for job in state.jobs}
        wishes: dict[str, TypeRequest] = {}
        for name in chosen:
            wish = fastest_free(jobs[name], left)
            if wish is not None:
                left[wish.device_type] -= wish.size
                wishes[name] = wish
        return granted(state, wishes, "Shockwave")

    def _resolve(self, state: ClusterState, *, changed: bool) -> None:
        jobs = list(state.jobs)
        views = [outlook(job) for job in jobs]
        devices = sum(capacities(state.nodes).values())
        share = min(1.0, devices / len(jobs))
        if changed:
            for job, view in zip(jobs, views, strict=True):
                finish_s = job.submitted_s + (view.spent_s + view.left_s) / share
                self.fair.setdefault(job.id, []).append((self.rounds, finish_s))
            self.fair = {job.id: self.fair[job.id] for job in jobs}
        program = Program(jobs, views, devices, state.round_s or 120.0, share)
        fair_s = np.array([self._fair_s(job.id) for job in jobs])
        counts = program.solve(state.now_s, fair_s)
        weights = np.ones(len(jobs))
        if counts is None:
            late = (state.now_s + program.left_s / share) / fair_s
            weights = np.where(late > RHO, late**URGENCY, 1.0)
            counts = program.solve(state.now_s, None, weights)
        self.plan = arranged(jobs, counts if counts is not None else np.zeros(len(jobs)), views, weights, devices)

    def _fair_s(self, name: str) -> float:
        """The foreseen fair finish, averaged over the time that each forecast stood."""
        series = self.fair[name]
        spans = np.diff([at for at, _ in series] + [self.rounds])
        values = np.array([value for _, value in series])
        mean = float(values[-1]) if spans.max() == 0 else float((spans * values).sum() / spans.sum())
        return MOMENTUM * mean + (1.0 - MOMENTUM) * float(values[-1])


class Program:
    """Variables: rounds of each job, seconds it trains in them, its welfare, and the longest remaining time."""

    def __init__(
        self, jobs: Sequence[JobState], views: Sequence[JobForecast], devices: int, round_s: float, share: float
    ) -> None:
        self.count, self.devices, self.round_s, self.share = len(jobs), devices, round_s, share
        self.gangs = np.array([job.min_workers for job in jobs], dtype=np.float64)
        self.progress = np.array([view.progress for view in views])
        self.left_s = np.array([view.left_s for view in views])
        self.whole_s = np.array([view.whole_s for view in views])

    def solve(self, now_s: float, fair_s: Array | None, weights: Array | None = None) -> Array | None:
        """Rounds per job; None when the fair finish times cannot all be kept."""
        count, one = self.count, np.ones(self.count)
        rows = [
            self._rows(rounds=self.gangs, summed=True, most=np.array([self.devices * WINDOW])),
            self._rows(rounds=-self.round_s * one, seconds=one, most=0 * one),
            self._rows(seconds=-one, longest=-one, most=-self.left_s),
        ]
        # Welfare lies below every piece of the logarithm, which is concave.
        for slope, height in pieces():
            most = height + slope * self.progress
            rows.append(self._rows(seconds=-slope / self.whole_s, welfare=one, most=most))
        if fair_s is not None:
            allowed_s = (fair_s * RHO - now_s - WINDOW * self.round_s) * self.share
            if allowed_s.min() < 0:
                return None
            rows.append(self._rows(seconds=-one, most=allowed_s - self.left_s))
        scale = 1.0 if weights is None else float(weights.max())
        worth = one if weights is None else weights / scale
        cost = np.concatenate([0 * one, 0 * one, -worth / (count * WINDOW), [TAIL / scale]])
        return self._minimise(cost, sparse.vstack([table for table, _ in rows]), np.concatenate([m for _, m in rows]))

    def _rows(
        self,
        *,
        rounds: Array | None = None,
        seconds: Array | None = None,
        welfare: Array | None = None,
        longest: Array | None = None,
        summed: bool = False,
        most: Array,
    ) -> tuple[Any, Array]:
        """One constraint per job, or one over all, in these variables: the sum is at most so much."""
        nothing = np.zeros(self.count)
        parts = [sparse.diags_array(nothing if part is None else part) for part in (rounds, seconds, welfare)]
        last = sparse.csr_array((nothing if longest is None else longest)[:, None])
        table = sparse.csr_array(sparse.hstack([*parts, last]))
        return (sparse.csr_array(table.sum(axis=0)[None, :]) if summed else table), most

    def _minimise(self, cost: Array, table: Any, most: Array) -> Array | None:
        count, nothing = self.count, np.zeros(self.count)
        trains_s = np.maximum(0.0, (1.0 - self.progress) * self.whole_s)
        highest = np.concatenate([np.full(count, float(WINDOW)), trains_s, nothing, [np.inf]])
        lowest = np.concatenate([nothing, nothing, np.full(count, -np.inf), [0.0]])
        found = milp(
            cost,
            integrality=np.concatenate([np.ones(count), nothing, nothing, [0.0]]),
            bounds=Bounds(lowest, highest),
            constraints=LinearConstraint(table, np.full(len(most), -np.inf), most),
            options={"mip_rel_gap": GAP, "node_limit": NODES},
        )
        return None if found.x is None else np.asarray(np.round(found.x[:count]), dtype=np.float64)


def pieces() -> list[tuple[float, float]]:
    """Slope and height of each piece of the logarithm between the bases."""
    logs = [math.log(base or NOTHING) for base in BASES]
    found = []
    for at in range(len(BASES) - 1):
        slope = (logs[at + 1] - logs[at]) / (BASES[at + 1] - BASES[at])
        found.append((slope, logs[at] - slope * BASES[at]))
    return found


def arranged(
    jobs: Sequence[JobState], counts: Array, views: Sequence[JobForecast], weights: Array, devices: int
) -> list[list[str]]:
    """The rounds of the window: the urgent first, and whoever is left over fills the gaps, the longest first."""
    owed = {job.id: int(count) for job, count in zip(jobs, counts, strict=True)}
    weight = {job.id: float(w) for job, w in zip(jobs, weights, strict=True)}
    longest = [job for _, job in sorted(zip(views, jobs, strict=True), key=lambda pair: -pair[0].left_s)]
    plan: list[list[str]] = []
    for at in range(WINDOW):
        left, chosen = devices, []
        queue = sorted(jobs, key=lambda job: (owed[job.id] < WINDOW - at, -weight[job.id], -owed[job.id]))
        for job in [*(job for job in queue if owed[job.id] > 0), *longest]:
            if job.id not in chosen and job.min_workers <= left:
                left -= job.min_workers
                owed[job.id] = max(0, owed[job.id] - 1)
                chosen.append(job.id)
        plan.append(chosen)
    return plan
