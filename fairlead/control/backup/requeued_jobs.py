"""Requeues jobs that were running when the backup was taken: their gangs are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from fairlead.control.records import ENDED, GenerationPhase, Job, JobPhase
from fairlead.control.store import audit, events, generations, jobs


@dataclass(frozen=True, slots=True)
class RequeuedJobs:
    """How many jobs go on, and how many only had their end to be recorded."""

    going_on: int
    ended: int


def requeue_jobs(connection: Connection, taken_s: float, now_s: float) -> RequeuedJobs:
    """End all generations of the old platform; jobs that held devices queue again, with their snapshots.

    The ledger stays as it is: how long a gang lived after its last line is unknown.
    """
    moving = [job for job in jobs.active(connection) if job.phase is not JobPhase.QUEUED]
    live = generations.live_by_job(connection, {job.id for job in moving})
    for job in moving:
        for generation in live.get(job.id, []):
            generations.update(connection, job.id, generation.number, phase=GenerationPhase.ENDED, ended_s=taken_s,
                               outcome="restored")  # fmt: skip
        _requeue(connection, job, taken_s, now_s)
    waiting = {job.id for job in jobs.active(connection)}
    text = f"restored from a backup; {len(waiting)} jobs go on"
    events.append(connection, time_s=now_s, kind="platform-restored", text=text, facts={"taken_s": taken_s})
    audit.append(connection, time_s=now_s, actor="restore", action="platform.restore", target="platform",
                 detail={"taken_s": taken_s})  # fmt: skip
    return RequeuedJobs(len(waiting), sum(job.id not in waiting for job in moving))


def _requeue(connection: Connection, job: Job, taken_s: float, now_s: float) -> None:
    then = job.then if job.phase is JobPhase.STOPPING and job.then in ENDED else JobPhase.QUEUED
    changes: dict[str, Any] = {"phase": then, "then": None, "outcome": None, "since_s": now_s}
    if then is not JobPhase.QUEUED:
        changes["finished_s"] = taken_s
    jobs.update(connection, job.id, **changes)
    became = "goes on from its last snapshot" if job.training and job.snapshot_step else "starts over"
    told = f"{job.id} {became}: the platform was restored" if then is JobPhase.QUEUED else f"{job.id} had {then}"
    events.append(connection, time_s=now_s, kind=f"job-{then}", text=told, tenant=job.tenant, job=job.id,
                  facts={"outcome": "restored"})  # fmt: skip
