"""Runs a node's grid supervisor: admits tenants and jobs, drops unused snapshots and reports usage."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import msgspec

from fairlead import wire
from fairlead.agent.node import job_folders
from fairlead.agent.node.messages import NodeConfig
from fairlead.grid.messages import Admit
from fairlead.grid.process_supervisor import CHECK_S, GridSupervisor
from fairlead.grid.values import TOKEN_VARIABLE, VARIABLE, snapshot_job, snapshot_label
from fairlead.home import Home

_USERS_EACH = 100_000  # uids of one platform on a machine; the last is the grid process's
_SPILLED_TIMES = 4  # disk quota of a tenant on a node, as a multiple of its memory quota

log = logging.getLogger("fairlead.node")


class NodeGrid:
    """One node's grid. No process runs and no memory is used before a worker connects."""

    def __init__(self, home: Home, config: NodeConfig) -> None:
        self._home, self._config = home, config
        self._supervisor: GridSupervisor | None = None

    def admit(self, spec: wire.WorkerSpec, keys: wire.GridKeys) -> dict[str, str]:
        """Admit the job's workers; returns the variables by which they find the grid."""
        if spec.grid_bytes <= 0:
            return {}
        supervisor = self._supervisor or self._start_supervisor(spec.uid, keys.peers or secrets.token_bytes(32))
        path = self._home.job(spec.job) / f"grid-{self._config.name}.sock"
        key = keys.tenant or secrets.token_bytes(32)
        try:
            job_folders.make(path.parent, 0o711)
            spilled = _SPILLED_TIMES * spec.grid_bytes
            supervisor.admit(Admit(spec.tenant, spec.grid_bytes, key, spec.grid_encrypted, spilled))
            token = supervisor.listen(spec.job, spec.tenant, path, spec.uid)
        except OSError as error:  # a job without the grid is better than none
            log.error("%s runs without the grid: %s", spec.job, error)
            return {}
        return {VARIABLE: str(path), TOKEN_VARIABLE: token}

    def _start_supervisor(self, uid: int | None, peer_key: bytes) -> GridSupervisor:
        name = self._config.name
        (self._home.root / "grid").mkdir(mode=0o711, exist_ok=True)
        self._supervisor = supervisor = GridSupervisor(
            spill(self._home, name), name=f"fl-grid-{name}", log_path=self._home.logs / f"{name}.log",
            uid=None if uid is None else uid // _USERS_EACH * _USERS_EACH + _USERS_EACH - 1,
            peer_path=self._home.run / f"{name}.grid", peer_key=peer_key,
        )  # fmt: skip
        asyncio.get_running_loop().add_reader(supervisor.fileno(), self._guarded, supervisor.handle_events)
        self._check()
        return supervisor

    def _check(self) -> None:
        """Ping the grid process every second, to notice when it hangs."""
        if self._supervisor is not None:
            self._guarded(self._supervisor.check)
            asyncio.get_running_loop().call_later(CHECK_S, self._check)

    @staticmethod
    def _guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:  # no memory for a process; the next connection retries
            log.error("the grid process of this node does not start: %s", error)

    def forget(self, job: str) -> None:
        """Stop listening for a job without workers on this node."""
        if self._supervisor is not None:
            self._supervisor.forget(job)

    def discard(self, job: str) -> None:
        """Drop the job's snapshots."""
        if self._supervisor is not None:
            self._supervisor.discard(snapshot_label(job))

    def drop(self, tenant: str, labels: Iterable[str]) -> None:
        """Drop the tenant's blocks of these labels."""
        if self._supervisor is not None:
            for label in labels:
                self._supervisor.discard(label, tenant)

    def tidy(self, living: Container[str]) -> None:
        """Drop snapshots of jobs without workers or snapshot records on this node: nothing refers to them."""
        usage = {} if self._supervisor is None else self._supervisor.usage
        left = {job for use in usage.values() for label in use.by_label if (job := snapshot_job(label))}
        for job in left:
            if job not in living and not self._has_index(job):
                self.discard(job)

    def _has_index(self, job: str) -> bool:
        """True when this node's memory has a record of a snapshot of the job, or of a training stage of it."""
        memory, node = self._home.memory, self._config.name
        places = (f"{job}/{node}/*.grid", f"*/{node}/snapshots-{job}/{node}/*.grid")
        return any(True for place in places for _ in memory.glob(place))

    def tell(self, telemetry: wire.Telemetry) -> wire.Telemetry:
        """Add every tenant's usage of this node's grid, and the resident bytes by label."""
        if self._supervisor is None:
            return telemetry
        usage = self._supervisor.usage
        resident = {f"{tenant}/{label}": size for tenant, use in usage.items() for label, size in use.by_label.items()}
        grid = {
            tenant: wire.GridUsage(use.quota, use.used, use.pinned, use.spilled, use.evictions)
            for tenant, use in usage.items()
        }
        return msgspec.structs.replace(telemetry, resident=resident, grid=grid, grid_trouble=self._supervisor.trouble)

    def close(self) -> None:
        """End the grid process and drop all its blocks in memory and on disk."""
        if self._supervisor is not None:
            asyncio.get_running_loop().remove_reader(self._supervisor.fileno())
            self._supervisor.close()
            self._supervisor = None


def spill(home: Home, node: str) -> Path:
    """The folder of a node's spilled blocks."""
    return home.root / "grid" / node


def forget(home: Home, node: str) -> None:
    """Remove the spilled blocks and socket of a killed node's grid."""
    shutil.rmtree(spill(home, node), ignore_errors=True)
    (home.run / f"{node}.grid").unlink(missing_ok=True)
