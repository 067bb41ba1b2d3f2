"""Runs policies for one device type on clusters with several: each type is a separate cluster to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Reason, Round
from fairlead.simulation.yardsticks.elastic_gangs import levels, speed_on

Policy = Callable[[ClusterState], Round]

NOWHERE = Reason("no-type", "it runs on no type of device that is there")


class ByType:
    """A policy that puts every job, as it comes, to one type that it runs on, and decides for each type apart.

    Their studies have one type only; there it is the policy itself.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._curves: dict[tuple[int, str], tuple[SpeedCurve, SpeedCurve]] = {}  # with the whole, so that its id stays

    def __call__(self, state: ClusterState) -> Round:
        devices: dict[str, int] = {}
        for node in state.nodes:
            devices[node.device_type] = devices.get(node.device_type, 0) + node.devices
        if len(devices) == 1:
            return self._policy(state)
        homes = self._homes(state, devices)
        decisions: list[Decision] = [Hold(job.id, NOWHERE) for job in state.jobs if job.id not in homes]
        memories: dict[str, Any] = {}
        for kind in sorted(devices):
            decided = self._policy(self._part(state, kind, homes))
            decisions += decided.decisions
            memories[kind] = decided.memory
        wake_s = min(float(memory.get("wake_s", math.inf)) for memory in memories.values())
        return Round(tuple(decisions), {}, {"homes": homes, "by_type": memories, "wake_s": wake_s})

    def _homes(self, state: ClusterState, devices: Mapping[str, int]) -> dict[str, str]:
        """The type of each job: that of before, or where it is soon done by how many are there for each device."""
        known: Mapping[str, str] = state.memory.get("homes", {})
        homes = {job.id: known[job.id] for job in state.jobs if job.id in known}
        asked = dict.fromkeys(devices, 0)
        for job in state.jobs:
            if job.id in homes:
                asked[homes[job.id]] += job.min_workers
        for job in sorted(state.jobs, key=lambda job: (job.submitted_s, job.id)):
            if job.id in homes:
                continue
            costs = [
                ((asked[kind] + job.min_workers) / devices[kind] / speed, kind)
                for kind in sorted(devices)
                if (speed := self._speed(job, kind, devices[kind])) > 0
            ]
            if costs:
                homes[job.id] = min(costs)[1]
                asked[homes[job.id]] += job.min_workers
        return homes

    def _speed(self, job: JobState, kind: str, devices: int) -> float:
        """Of its smallest gang of this type; 0 if there are too few, or it does not run on them."""
        if job.min_workers > devices:
            return 0.0
        there = self._on(job, kind)
        return next((speed for size, speed in levels(there).items() if size <= devices), speed_on(there, kind))

    def _part(self, state: ClusterState, kind: str, homes: Mapping[str, str]) -> ClusterState:
        """What the policy sees of one type."""
        jobs = [self._on(job, kind) for job in state.jobs if homes.get(job.id) == kind]
        nodes = [node for node in state.nodes if node.device_type == kind]
        return replace(state, nodes=nodes, jobs=jobs, memory=state.memory.get("by_type", {}).get(kind, {}))

    def _on(self, job: JobState, kind: str) -> JobState:
        """The job with what its curve says of one type."""
        if job.curve is None:
            return job
        key = (id(job.curve), kind)
        if key not in self._curves:
            rows = job.curve.speeds.get(kind)
            self._curves[key] = (job.curve, SpeedCurve(job.curve.sizes, {} if rows is None else {kind: rows}))
        return replace(job, curve=self._curves[key][1])
