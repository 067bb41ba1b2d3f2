"""Builds the /etc that sandboxes show: the few files that programs need, and the tenant's user.

One folder per tenant, made by the platform and kept up to date, so that a sandbox mounts one folder, not twenty files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from fairlead.agent.node.job_folders import make
from fairlead.home import Home
from fairlead.local_wire import PlacedSpec

HOST_NAME = "fairlead"
_COPIED = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/openssl.cnf", "alternatives", "localtime", "nsswitch.conf",
    "mime.types",
)  # fmt: skip
_OF_THE_NETWORK = ("ssl/certs", "pki/tls/certs", "resolv.conf", "host.conf", "gai.conf", "services", "protocols")


def etc(home: Home, spec: PlacedSpec) -> Path:
    """The folder shown as /etc to this tenant's workers; a new one when the machine's files have changed."""
    names = (*_COPIED, *(_OF_THE_NETWORK if spec.network == "open" else ()))
    times = " ".join(_time(f"/etc/{name}") for name in names)
    digest = hashlib.sha256(f"{spec.uid} {spec.network} {times}".encode()).hexdigest()[:12]
    folder = home.etc / f"{spec.tenant}-{digest}"  # never changed: workers may be using it
    if not folder.exists():
        _make(folder, spec, names)
    return folder


def _time(path: str) -> str:
    try:
        return str(os.stat(path).st_mtime_ns)  # noqa: PTH116 (ten at every start of a worker)
    except OSError:
        return "-"


def _make(folder: Path, spec: PlacedSpec, names: tuple[str, ...]) -> None:
    """Build the folder under a temporary name and rename it."""
    make(folder.parent, 0o711)
    fresh = folder.with_name(f".{uuid.uuid4().hex}")
    make(fresh, 0o755)
    for name in names:
        _copy(Path("/etc") / name, fresh / name)
    for name, text in _texts(spec).items():
        (fresh / name).write_text(text)
        (fresh / name).chmod(0o644)
    try:
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh)
        if not folder.exists():  # otherwise another node was faster
            raise


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    elif source.exists():
        shutil.copyfile(source, target)
    _open(target)


def _open(path: Path) -> None:
    """Make everything readable for all users, whatever the platform's umask."""
    for each in (path, *path.rglob("*")):
        if not each.is_symlink() and each.exists():
            each.chmod(0o755 if each.is_dir() else 0o644)


def _texts(spec: PlacedSpec) -> dict[str, str]:
    uid = os.geteuid() if spec.uid is None else spec.uid
    nobody = "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"
    known = Path("/etc/hosts").read_text() if spec.network == "open" and Path("/etc/hosts").is_file() else ""
    return {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\n{nobody}\n{spec.tenant}:x:{uid}:{uid}::/tmp:/bin/sh\n",
        "group": f"root:x:0:\nnogroup:x:65534:\n{spec.tenant}:x:{uid}:\n",
        "hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost ip6-localhost ip6-loopback\n{known}",
    }
