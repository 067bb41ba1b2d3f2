"""Counts what happened to jobs and nodes from the store's events, so that no code path is missed."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.control.job_views import sla_met
from fairlead.control.observability import live_metrics, metric_families
from fairlead.control.records import Job, LoggedEvent

NOBODY = "none"
_ENDS = {"job-succeeded": "succeeded", "job-failed": "failed", "job-cancelled": "cancelled"}


class JobCounts:
    """Counts events one by one. Remembers since when jobs wait, and their tenants."""

    def __init__(self) -> None:
        self.tenants: dict[str, str] = {}  # tenant of each unfinished job
        self._waiting_since_s: dict[str, float] = {}
        self._decided_s: dict[str, float] = {}

    def begin(self, active: Mapping[str, Job]) -> None:
        """Load the jobs that were active before this process started."""
        for job in active.values():
            self.tenants[job.id] = job.tenant
            self._waiting_since_s[job.id] = job.since_s or job.submitted_s

    def take(self, event: LoggedEvent, job: Job | None) -> None:
        """Count this event; ``job`` is needed for events that end a job."""
        tenant = event.tenant or NOBODY
        if event.job is not None and event.kind != "pruned":  # pruned jobs ended long ago
            self.tenants[event.job] = tenant
        match event.kind:
            case "node-joined":
                live_metrics.count(metric_families.JOINED, event.node or NOBODY)
            case "node-lost":
                live_metrics.count(metric_families.LOST, event.node or NOBODY)
            case "job-submitted":
                live_metrics.count(metric_families.SUBMITTED, tenant)
            case "job-preempted":
                live_metrics.count(metric_families.PREEMPTED, tenant, _reason(event))
            case "job-failing":
                live_metrics.count(metric_families.FAILED_ATTEMPTS, tenant)
            case "worker-lost":
                live_metrics.count(metric_families.LOST_WORKERS, tenant, by=len(event.facts.get("workers", ())) or 1)
            case "planner-blind":
                live_metrics.count(metric_families.BLIND, tenant)
            case "generation-abandoned":
                live_metrics.count(metric_families.ABANDONED, tenant)
            case "job-recovered":
                live_metrics.observe(metric_families.RECOVERY, float(event.facts.get("seconds", 0.0)), tenant)
        if event.job is not None:
            self._count_progress(event, event.job, tenant, job)

    def _count_progress(self, event: LoggedEvent, name: str, tenant: str, job: Job | None) -> None:
        match event.kind:
            case "job-submitted":
                self._waiting_since_s[name] = event.time_s
            case "job-starting":
                live_metrics.count(metric_families.ADMITTED, tenant, _reason(event))
                since_s = self._waiting_since_s.pop(name, None)
                if since_s is not None:
                    live_metrics.observe(metric_families.WAIT, event.time_s - since_s, tenant)
                self._decided_s[name] = event.time_s
            case "job-resizing":
                live_metrics.count(metric_families.RESIZED, tenant, _reason(event))
                self._decided_s[name] = event.time_s
            case "generation-running":
                live_metrics.count(metric_families.GENERATIONS, tenant)
                decided_s = self._decided_s.pop(name, None)
                if decided_s is not None:
                    live_metrics.observe(metric_families.START, event.time_s - decided_s, tenant)
            case "job-queued":
                live_metrics.count(metric_families.EVICTED, tenant, str(event.facts.get("outcome", "unknown")))
                self._waiting_since_s[name] = event.time_s
            case kind if kind in _ENDS:
                self._count_end(event, name, tenant, _ENDS[kind], job)

    def _count_end(self, event: LoggedEvent, name: str, tenant: str, outcome: str, job: Job | None) -> None:
        live_metrics.count(metric_families.FINISHED, tenant, outcome)
        if job is not None:
            live_metrics.observe(metric_families.COMPLETION, event.time_s - job.submitted_s, tenant, outcome)
            kept = sla_met(job, event.time_s)
            if kept is not None:
                live_metrics.count(metric_families.SLA, tenant, "kept" if kept else "missed")
        for memory in (self.tenants, self._waiting_since_s, self._decided_s):
            memory.pop(name, None)


def _reason(event: LoggedEvent) -> str:
    return str(event.facts.get("reason", "unknown"))
