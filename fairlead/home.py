"""The folder of a platform on a machine and the paths in it; several platforms can run side by side."""

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
    """``FAIRLEAD_HOME``, or a folder that workers' users can reach (root's home usually is closed)."""
    named = os.environ.get("FAIRLEAD_HOME")
    if named:
        return Path(named).expanduser().absolute()
    return Path("/var/lib/fairlead") if os.geteuid() == 0 else Path.home() / ".fairlead"


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of a platform. All tenants may traverse ``jobs``, only a job's own tenant its folder."""

    root: Path

    @property
    def profile(self) -> Path:
        """Address and admin token for local clients (mode 0600)."""
        return self.root / "profile.json"

    @property
    def database(self) -> Path:
        return self.root / "fairlead.db"

    @property
    def secret_key(self) -> Path:
        """The key of the tenants' secrets, unless one is given (mode 0600)."""
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
        """Sockets, pid files and records of running processes."""
        return self.root / "run"

    @property
    def etc(self) -> Path:
        """The /etc that sandboxes show, per tenant."""
        return self.root / "etc"

    @property
    def gangs(self) -> Path:
        """Records of the members of each gang's network."""
        return self.run / "gangs"

    @property
    def memory(self) -> Path:
        """Snapshots in memory: a folder per job and node, removed with the node."""
        tmpfs = Path("/dev/shm")
        tag = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        return tmpfs / f"fairlead-{tag}" if tmpfs.is_dir() else self.root / "memory"

    def bundle(self, tenant: str, digest: str) -> Path:
        """Path of a code bundle; per tenant, so that knowing a hash gives no access to another tenant's code."""
        return self.bundles / tenant / f"{digest.removeprefix('sha256:')}.tar.gz"

    def job(self, job: str) -> Path:
        return self.jobs / job

    def job_memory(self, node: str, job: str) -> Path:
        return self.memory / job / node

    def forget_node_memory(self, node: str) -> None:
        """Remove all jobs' data in this node's memory."""
        for job in self.memory.glob("*/"):
            self.forget_job_memory(node, job.name)

    def forget_job_memory(self, node: str, job: str) -> None:
        """Remove a job's data in this node's memory, and the job's folder if it was the last."""
        with contextlib.suppress(OSError):  # other nodes have data of the job, or it is gone
            remove(self.job_memory(node, job))
            (self.memory / job).rmdir()

    def create(self) -> None:
        """Create the folders, closed to other users except for traversal to a job's folder."""
        for folder, mode in (
            (self.root, 0o711), (self.jobs, 0o711), (self.bundles, 0o700), (self.logs, 0o700), (self.run, 0o700),
        ):  # fmt: skip
            _folder(folder, mode)

    def create_memory(self) -> None:
        """Create the folder for snapshots in memory."""
        self.memory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.memory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():  # any user can create it in /dev/shm
            raise Unavailable(f"{self.memory} is not a folder of this user", fix="check its owner and remove it")
        self.memory.chmod(0o711)


def _folder(path: Path, mode: int) -> None:
    """Create the folder. An existing one keeps its mode, but becomes traversable where needed."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode) | mode & 0o011
    path.chmod(mode)
