"""The leader's memory of all gangs: worker facts, commands sent to gangs, and what nodes measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead import wire
from fairlead.control.accounting import ledger
from fairlead.control.plans.interference import InterferenceWatch
from fairlead.control.plans.workload_signature import MeasuredUsage
from fairlead.control.reconcile.data_locality import Resident
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import Generation, Job
from fairlead.recovery.policy import LONGEST_S

FREE_EXIT_S = 2.0
"""A worker that claims to have finished and goes on for longer is charged: it kept its device."""


@dataclass
class GangRegistry:
    """What this leader knows of all gangs in memory; rebuilt from the backend after a restart."""

    workers: dict[str, dict[str, WorkerFact]]
    commands_sent: dict[str, set[str]]
    cooling_until_s: dict[str, float]
    exit_times: dict[str, dict[str, float]] = field(default_factory=dict)  # job -> worker -> when its process ended
    cpu: ledger.CpuMeter = field(default_factory=ledger.CpuMeter)
    measured_usage: MeasuredUsage = field(default_factory=MeasuredUsage)
    interference: InterferenceWatch = field(default_factory=InterferenceWatch)
    resident: Resident = field(default_factory=dict)

    def observe(self, telemetry: wire.Telemetry) -> None:
        """Take in a node's measurements, but not of jobs that are gone: nothing would ever forget them."""
        known = [usage for usage in telemetry.workers if usage.job in self.workers]
        if len(known) < len(telemetry.workers):
            telemetry = msgspec.structs.replace(telemetry, workers=known)
        self.cpu.observe(telemetry)
        self.measured_usage.observe(telemetry)

    def record_exit(self, job: str, worker: str, cpu_s: float, at_s: float) -> None:
        """Record when a worker ended and its CPU time over its whole life; its job may be gone already."""
        if job in self.workers:
            self.cpu.observe_total(job, worker, cpu_s)
            self.exit_times.setdefault(job, {})[worker] = at_s

    def workers_of(self, job: str) -> dict[str, WorkerFact]:
        return self.workers.setdefault(job, {})

    def held_until_s(self, job: Job, live: Sequence[Generation], outcome: str, now_s: float) -> float:
        """The moment up to which an ending job is charged for its devices: the exit of its last process.

        A job that finished gives its devices away at once, so the few seconds that its processes take to exit are free.
        """
        exits = self.exit_times.get(job.id, {})
        members = [member.worker for generation in live for member in generation.members]
        if outcome == "finished":
            last_s = max((exits[worker] for worker in members if worker in exits), default=job.since_s)
            return min(now_s, last_s if last_s > job.since_s + FREE_EXIT_S else job.since_s)
        return min(now_s, max((exits.get(worker, now_s) for worker in members), default=now_s))

    def restore_back_offs(self, active: Sequence[Job], now_s: float) -> None:
        """Restore the stored back-offs of jobs."""
        for job in active:
            until_s = job.back_off_until_s or 0.0
            if 0.0 < until_s - now_s <= LONGEST_S:  # a longer one comes from a clock that was set back
                self.cooling_until_s[job.id] = max(until_s, self.cooling_until_s.get(job.id, 0.0))

    def end_expired_back_offs(self, now_s: float) -> bool:
        """Forget back-offs that have expired; True if there were any, as the next round plans for their jobs."""
        expired = [job for job, until_s in self.cooling_until_s.items() if not 0.0 < until_s - now_s <= LONGEST_S]
        for job in expired:
            del self.cooling_until_s[job]
        return bool(expired)

    def record_resume(self, job: str, generation: int) -> None:
        """Workers joined this generation again: calls to leave it and to join later ones are void."""
        told = self.commands_sent.get(job, set())
        told -= {f"leave:{generation}"} | {f"join:{number}" for number in _joins(told) if number > generation}

    def forget(self, job: str) -> None:
        for memory in (self.workers, self.commands_sent, self.cooling_until_s, self.exit_times):
            memory.pop(job, None)
        self.cpu.forget(job)
        self.measured_usage.forget(job)


def _joins(told: Iterable[str]) -> list[int]:
    return [int(mark.removeprefix("join:")) for mark in told if mark.startswith("join:")]
