"""A job's folders on a node, each owned by whom it is for: the platform, or the tenant's own user."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from fairlead import wire

TENANT_FOLDERS = ("output", "snapshots", "code", "home", "tmp", "rendezvous")
MADE_FILES = ("passwd", "group", "hosts")  # what a sandbox shows in /etc, from the job's folder ``etc``
HOST_NAME = "fairlead"


def prepare(spec: wire.WorkerSpec) -> None:
    """Make the job's folders; other tenants may pass through the outermost, and look into none."""
    folder = logs(spec).parent
    for name in TENANT_FOLDERS:
        _make(folder / name, 0o700, spec.uid)
    memory = Path(spec.memory_folder)
    _make(memory.parent, 0o755)  # the platform's, so that a job cannot put a link there; a worker lists its nodes
    _make(memory, 0o700, spec.uid)
    _write_etc(spec, folder / "etc")


def logs(spec: wire.WorkerSpec) -> Path:
    """The folder of the job's logs, made if need be: the platform's own, which the job can neither read nor write."""
    folder = Path(spec.folder)
    _make(folder, 0o711)
    _make(folder / "logs", 0o700)
    return folder / "logs"


def _write_etc(spec: wire.WorkerSpec, etc: Path) -> None:
    """The few files by which programs find out who they are and where, telling nothing of this machine's people."""
    _make(etc, 0o755)
    uid = os.geteuid() if spec.uid is None else spec.uid
    known = Path("/etc/hosts").read_text() if spec.network == "open" and Path("/etc/hosts").is_file() else ""
    home, nobody = Path(spec.folder) / "home", "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"
    texts = (
        f"root:x:0:0:root:/:/usr/sbin/nologin\n{nobody}\n{spec.tenant}:x:{uid}:{uid}::{home}:/bin/sh\n",
        f"root:x:0:\nnogroup:x:65534:\n{spec.tenant}:x:{uid}:\n",
        f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost ip6-localhost ip6-loopback\n{known}",
    )
    for name, text in zip(MADE_FILES, texts, strict=True):
        path = etc / name
        if not path.exists() or path.read_text() != text:
            fresh = etc / f".{name}.{uuid.uuid4().hex}"  # another worker of the gang may do the same right now
            fresh.write_text(text)
            fresh.chmod(0o644)
            fresh.replace(path)


def _make(path: Path, mode: int, owner: int | None = None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    found = path.stat(follow_symlinks=False)
    if found.st_mode & 0o777 != mode:
        path.chmod(mode)
    if owner is not None and os.geteuid() == 0 and found.st_uid != owner:
        os.chown(path, owner, owner, follow_symlinks=False)
