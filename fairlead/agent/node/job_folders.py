"""Creates a job's folders on a node, owned by the platform or by the tenant's user."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.local_wire import PlacedSpec

TENANT_FOLDERS = ("output", "snapshots", "code", "home", "tmp", "rendezvous")


def prepare(spec: PlacedSpec) -> None:
    """Create the job's folders; other tenants may traverse the outermost and read none."""
    folder = logs(spec).parent
    for name in TENANT_FOLDERS:
        make(folder / name, 0o700, spec.uid)
    memory = Path(spec.memory_folder)
    make(memory.parent, 0o755)  # owned by the platform, so that a job cannot put a link there
    make(memory, 0o700, spec.uid)


def logs(spec: PlacedSpec) -> Path:
    """The folder of the job's logs, created if need be; the job can neither read nor write it."""
    folder = Path(spec.folder)
    make(folder, 0o711)
    make(folder / "logs", 0o700)
    return folder / "logs"


def make(path: Path, mode: int, owner: int | None = None) -> None:
    """Create the folder if need be, with this mode and owner."""
    path.mkdir(parents=True, exist_ok=True)
    found = path.stat(follow_symlinks=False)
    if found.st_mode & 0o777 != mode:
        path.chmod(mode)
    if owner is not None and os.geteuid() == 0 and found.st_uid != owner:
        os.chown(path, owner, owner, follow_symlinks=False)
