"""Builds the spec with which a node starts a worker, from the stored job."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection

from fairlead.control.datasets import manifests_for
from fairlead.control.identity.secret_vault import SecretVault
from fairlead.control.records import Job
from fairlead.control.store import jobs, lineage, secrets, tenants
from fairlead.errors import NotFound, Refused
from fairlead.home import Home
from fairlead.specs import Policy
from fairlead.wire import WorkerSpec

FIRST_UID, UIDS_EACH, PLATFORMS = 1_000_000, 100_000, 20_000
"""When the platform runs as root, each tenant gets a user id of its own, far above those of people."""

MOST_SECRET_BYTES = 256 << 10
"""Limit for all secrets of a job: nodes search logs for each in many forms, in memory that all tenants share."""


def tenant_uid(home: Home, number: int) -> int:
    """The user id of a tenant. Platforms side by side on one machine use different ids."""
    return FIRST_UID + zlib.crc32(str(home.root).encode()) % PLATFORMS * UIDS_EACH + number


def worker_orders(home: Home) -> Callable[[Connection, Job], WorkerSpec]:
    """A function that reads a job's worker spec from the store; the node and device are filled in by the agent."""

    def order(connection: Connection, job: Job) -> WorkerSpec:
        tenant = tenants.get(connection, job.tenant)
        if tenant is None:
            raise NotFound(f"{job.tenant!r}: no such tenant", field="tenant", value=job.tenant)
        spec = jobs.stored_spec(connection, job.id)
        policy = Policy.model_validate(dict(tenant.policy))
        code = spec.get("code")
        return WorkerSpec(
            job=job.id,
            tenant=job.tenant,
            uid=tenant_uid(home, tenant.number) if os.geteuid() == 0 else None,
            run=spec.get("run"),
            command=spec.get("command"),
            params=spec.get("params", {}),
            env=spec.get("env", {}),
            venv=spec.get("venv"),
            bundle=code or None,
            cpu=float(job.demand.get("cpu", 0.0)),
            memory_bytes=int(job.demand["memory"]) if "memory" in job.demand else None,
            silence_s=spec.get("silence_timeout"),
            log_bytes=policy.log,
            network=policy.network,
            folders=policy.folders,
            files=policy.files,
            processes=policy.processes,
            disk_bytes=policy.disk,
            grid_bytes=policy.grid,
            grid_encrypted=policy.grid_encrypted,
            stage=dict(job.facts.get("stage", {})),
            pool=f"stages-{job.tenant}" if "stage" in job.facts else "",
            data=manifests_for(connection, job, spec),
            course=_course(connection, job),
            plan=str(job.facts.get("plan", "")),
        )

    return order


def _course(connection: Connection, job: Job) -> list[Any]:
    """Of a rerun: the course of batches and plans that it repeats."""
    origin = lineage.get(connection, job.id) if "again" in job.facts else None
    return [] if origin is None or origin.again is None else list(origin.again.get("course", []))


def launch_secrets(vault: SecretVault) -> Callable[[Connection, Job], dict[str, str]]:
    """A function that decrypts the secrets of a job when it starts; raises :class:`Refused` if one is missing."""

    def opened(connection: Connection, job: Job) -> dict[str, str]:
        wanted = jobs.stored_spec(connection, job.id).get("secrets", [])
        if not wanted:
            return {}
        kept = {secret.name: secret.ciphertext for secret in secrets.list_secrets(connection, job.tenant)}
        for name in wanted:
            if name not in kept:
                raise Refused(f"the secret {name} was removed", field="secrets", value=name,
                              fix=f"set it and submit the job again: fairlead secret set {name}")  # fmt: skip
        values = {name: vault.open(job.tenant, name, kept[name]) for name in wanted}
        if (size := sum(len(value.encode()) for value in values.values())) > MOST_SECRET_BYTES:
            raise Refused(f"its secrets have {size} bytes together, more than the {MOST_SECRET_BYTES} of a job",
                          field="secrets", fix="keep what is long in a file encrypted with a secret")  # fmt: skip
        return values

    return opened


def why_unsendable(worker: WorkerSpec) -> str | None:
    """Why the spec of a worker cannot be sent to a node; only jobs submitted to older versions can be so."""
    try:
        msgspec.msgpack.encode([worker.params, worker.command, worker.env])
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        return f"its parameters cannot be handed to a worker: {error}"
    return None
