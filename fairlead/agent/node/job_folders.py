"""A job's folders on a node, each owned by whom it is for: the platform, or the tenant's own user."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.local_wire import PlacedSpec

TENANT_FOLDERS = ("output", "snapshots", "code", "home", "tmp", "rendezvous")


def prepare(spec: PlacedSpec) -> None:
    """Make the job's folders; other tenants may pass through the outermost, and look into none."""
    folder = logs(spec).parent
    for name in TENANT_FOLDERS:
        make(folder / name, 0o700, spec.uid)
    memory = Path(spec.memory_folder)
    make(memory.parent, 0o755)  # the platform's, so that a job cannot put a link there; a worker lists its nodes
    make(memory, 0o700, spec.uid)


def logs(spec: PlacedSpec) -> Path:
    """The folder of the job's logs, made if need be: the platform's own, which the job can neither read nor write."""
    folder = Path(spec.folder)
    make(folder, 0o711)
    make(folder / "logs", 0o700)
    return folder / "logs"


def make(path: Path, mode: int, owner: int | None = None) -> None:
    """Have the folder with this mode, belonging to the owner."""
    path.mkdir(parents=True, exist_ok=True)
    found = path.stat(follow_symlinks=False)
    if found.st_mode & 0o777 != mode:
        path.chmod(mode)
    if owner is not None and os.geteuid() == 0 and found.st_uid != owner:
        os.chown(path, owner, owner, follow_symlinks=False)
