"""Records for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead import wire
from fairlead.cluster import Member
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, Role, Tenant, Token, Usage


def job(**changes: Any) -> Job:
    made = Job(
        id="mlp-abc234", tenant="vision", name="mlp", phase=JobPhase.RUNNING, submitted_s=100.0, submitted_by="tok",
        min_workers=1, max_workers=4, demand={}, device_type=None, priority=0, elastic=True, training=True, retries=0,
    )  # fmt: skip
    return replace(made, **changes)


def generation(*workers: tuple[str, str], **changes: Any) -> Generation:
    """A running generation of these (worker, node) pairs."""
    members = tuple(Member(worker, rank, node, 0) for rank, (worker, node) in enumerate(workers))
    made = Generation(
        "mlp-abc234", 1, GenerationPhase.RUNNING, members, "started", "starts", 100.0, running_s=101.0, metered_s=101.0
    )
    return replace(made, **changes)


def worker_order(connection: object, job: Job) -> wire.WorkerSpec:
    """What a node manager would be told to start."""
    return wire.WorkerSpec(job.id, job.tenant, None, "train.py:training", None, {}, {}, None, None, 1.0)


def tenant(name: str, weight: float = 1.0, number: int = 0) -> Tenant:
    return Tenant(name, weight, None, {}, number, 0.0)


def token(role: Role, team: str | None = "vision") -> Token:
    return Token("tok", None if role is Role.ADMIN else team, role, "a token", "digest", 0.0)


def usage(team: str, devices: int, from_s: float, to_s: float, cpu_s: float = 0.0) -> Usage:
    return Usage("job", team, "tok", 1, "node-0", "cpu", devices, 1.0, from_s, to_s, cpu_s)
