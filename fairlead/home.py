"""Where a platform keeps its things on a machine: one folder, so that several platforms can live side by side."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import Unavailable
from fairlead.safe_removal import remove


def default_home() -> Path:
    """``FAIRLEAD_HOME``, or a folder that the workers' own users can reach: root's home usually is not."""
    named = os.environ.get("FAIRLEAD_HOME")
    if named:
        return Path(named).expanduser().absolute()
    return Path("/var/lib/fairlead") if os.geteuid() == 0 else Path.home() / ".fairlead"


@dataclass(frozen=True, slots=True)
class Home:
    """Its folders. ``jobs`` can be passed through by every tenant, each job's folder only by its own."""

    root: Path

    @property
    def profile(self) -> Path:
        """Address and admin token for clients on this machine (mode 0600)."""
        return self.root / "profile.json"

    @property
    def database(self) -> Path:
        return self.root / "fairlead.db"

    @property
    def secret_key(self) -> Path:
        """What the tenants' secrets are encrypted with, unless another key is given (mode 0600)."""
        return self.root / "secret.key"

    @property
    def bundles(self) -> Path:
        return self.root / "bundles"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def logs(self) -> Path:
        """Logs of the platform's own processes."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Sockets, pid files and node settings of what is running now."""
        return self.root / "run"

    @property
    def etc(self) -> Path:
        """What sandboxes show as /etc, per tenant."""
        return self.root / "etc"

    @property
    def gangs(self) -> Path:
        """Which processes keep the network of each gang alive."""
        return self.run / "gangs"

    @property
    def memory(self) -> Path:
        """Snapshots in memory: per job a folder per node, gone with the node."""
        tmpfs = Path("/dev/shm")
        tag = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        return tmpfs / f"fairlead-{tag}" if tmpfs.is_dir() else self.root / "memory"

    def bundle(self, tenant: str, digest: str) -> Path:
        """Bundles are kept per tenant, so that knowing a hash opens nobody else's code."""
        return self.bundles / tenant / f"{digest.removeprefix('sha256:')}.tar.gz"

    def job(self, job: str) -> Path:
        return self.jobs / job

    def job_memory(self, node: str, job: str) -> Path:
        return self.memory / job / node

    def forget_node_memory(self, node: str) -> None:
        """Drop what all jobs kept in this node's memory."""
        for job in self.memory.glob("*/"):
            self.forget_job_memory(node, job.name)

    def forget_job_memory(self, node: str, job: str) -> None:
        """Drop what a job kept in this node's memory, and its folder with the last of it."""
        with contextlib.suppress(OSError):  # other nodes still keep something, or it is gone already
            remove(self.job_memory(node, job))
            (self.memory / job).rmdir()

    def create(self) -> None:
        """Make the folders, closed to other users except for passing through to a job's own folder."""
        for folder, mode in (
            (self.root, 0o711), (self.jobs, 0o711), (self.bundles, 0o700), (self.logs, 0o700), (self.run, 0o700),
        ):  # fmt: skip
            _folder(folder, mode)

    def create_memory(self) -> None:
        """Make the folder for snapshots in memory."""
        self.memory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.memory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():  # anybody may have put it into /dev/shm
            raise Unavailable(f"{self.memory} is not a folder of this user", fix="find out whose it is, and remove it")
        self.memory.chmod(0o711)


def _folder(path: Path, mode: int) -> None:
    """Make the folder. One that is there already keeps its mode, but can be passed through where that is needed."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode) | mode & 0o011
    path.chmod(mode)
