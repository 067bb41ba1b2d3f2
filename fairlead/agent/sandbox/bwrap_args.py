"""Builds bubblewrap's arguments for a worker's view of the machine.

Readable: the system's programs, the platform's Python, the folders granted to the tenant, the job's virtual
environment. Writable: the job's own folder (with its home and /tmp, on disk and under its quota) and its
snapshots in memory. Everything keeps its path. Nothing else exists.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fairlead
from fairlead.agent.node import job_folders
from fairlead.agent.sandbox import linux, tenant_access
from fairlead.agent.sandbox.etc_files import HOST_NAME, etc
from fairlead.home import Home
from fairlead.local_wire import PlacedSpec

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_HARDWARE = "/sys/devices/system"  # cpus and NUMA nodes
_GPUS = ("nvidia*", "dri", "kfd")
_OWN = ("/proc", "/sys", "/dev", "/dev/shm", "/tmp", "/usr", "/etc")  # the sandbox's own
_WHOLLY_OWN = ("/proc", "/sys", "/etc")  # including everything below
_SHARED_MEMORY_PART = 0.5  # of the node's memory, for jobs that request none


class CannotStart(Exception):
    """The worker cannot be started, and a retry cannot help; one line for the tenant."""


@dataclass(frozen=True, slots=True)
class View:
    """One worker's view of the machine."""

    arguments: bytes  # as bubblewrap reads them from a file descriptor
    mounts_later: bool  # the job's own folders are mounted after the sandbox is built
    frame: str  # equal for views that differ only in those folders; empty: for this job alone


@functools.cache
def pythons() -> list[Path]:
    """The folders of the platform's Python; of a source checkout the package only."""
    package = Path(fairlead.__file__).parent
    around = {package.parent, Path(os.path.realpath(package.parent))}
    if package.parent.name in ("site-packages", "dist-packages"):
        around = set()
    return [path for path in tenant_access.needed(None) if path not in around]


@functools.cache
def base() -> tuple[str, ...]:
    """The arguments common to all workers: namespaces, system folders, devices."""
    words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--hostname", HOST_NAME, "--new-session", "--cap-drop", "ALL", "--clearenv"]
    words += ["--ro-bind", "/usr", "/usr"]
    for place in map(Path, _SYSTEM):
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += reading([_HARDWARE])
    for device in (found for pattern in _GPUS for found in sorted(Path("/dev").glob(pattern))):
        words += ["--dev-bind-try", str(device), str(device)]
    return tuple(words)


def view(spec: PlacedSpec, home: Home, node_memory_bytes: int) -> View:
    """The view of this worker; raises CannotStart for an invalid venv or grant."""
    folder, granted = Path(spec.folder), grants(spec)
    shared_bytes = spec.memory_bytes or int(node_memory_bytes * _SHARED_MEMORY_PART)
    words = [*base(), *own_network(spec.network), "--size", str(shared_bytes), "--tmpfs", "/dev/shm"]
    words += ["--ro-bind", str(etc(home, spec)), "/etc"]
    seen = outermost([*pythons(), *granted, *virtual_environment(spec, granted, (home.root, home.memory))])
    mounts_later = job_mounted_later(seen)
    words += ["--dir", "/tmp"] if mounts_later else ["--bind", str(folder / "tmp"), "/tmp"]
    words += ["--symlink", "/tmp", "/var/tmp", *reading(map(str, seen))]
    for hidden in {home.root.absolute(), Path(os.path.realpath(home.root))}:
        if any(place in hidden.parents for place in seen):
            words += ["--perms", "0755", "--tmpfs", str(hidden)]
    words += [] if mounts_later else _job(folder, Path(spec.memory_folder).parent)
    words += ["--remount-ro", "/dev", *([] if mounts_later else ["--remount-ro", "/"])]
    arguments = b"\0".join(word.encode() for word in words) + b"\0"
    return View(arguments, mounts_later, _frame(spec, arguments, seen) if mounts_later and spec.venv is None else "")


def job_mounted_later(seen: Iterable[Path]) -> bool:
    """True when the job's folders are mounted into a finished sandbox; not possible if a visible folder is in /tmp."""
    return os.geteuid() == 0 and linux.can_move_mounts() and not any(Path("/tmp") in place.parents for place in seen)


def _frame(spec: PlacedSpec, arguments: bytes, seen: Iterable[Path]) -> str:
    """Digest of everything that shows in a sandbox before the job's folders are mounted."""
    places = [(found.st_dev, found.st_ino) for found in map(os.stat, filter(os.path.exists, seen))]
    mounts = Path("/proc/self/mountinfo").read_bytes()
    facts = repr((spec.uid, spec.network, spec.folders, places)).encode()
    return hashlib.sha256(b"\0".join((arguments, mounts, facts))).hexdigest()[:24]


def own_network(policy: str = "closed") -> list[str]:
    """As root the sandbox is built in a network made for it; without root bubblewrap makes the network."""
    return [] if os.geteuid() == 0 or policy == "open" else ["--unshare-net"]


def _job(folder: Path, memory: Path) -> list[str]:
    """Mounts of the job's folders. Without root, read-only mounts protect what the platform keeps in them."""
    if os.geteuid() == 0:
        words = ["--bind", str(folder), str(folder)]
    else:
        words = ["--ro-bind", str(folder), str(folder)]
        for name in job_folders.TENANT_FOLDERS:
            words += ["--bind", str(folder / name), str(folder / name)]
    logs = str(folder / "logs")
    words += ["--perms", "0000", "--tmpfs", logs, "--remount-ro", logs]
    return [*words, "--bind", str(memory), str(memory)]


def grants(spec: PlacedSpec) -> list[Path]:
    """The existing folders granted to the tenant; raises CannotStart for one that the sandbox itself provides."""
    wanted = [Path(folder) for folder in spec.folders]
    for folder in wanted:
        covers = any(folder in (Path(place), *Path(place).parents) for place in _OWN)
        if covers or any(Path(place) in folder.parents for place in _WHOLLY_OWN):
            raise CannotStart(
                f"folder {folder}: every sandbox has its own; ask an administrator to grant another folder"
            )
    return [folder for folder in wanted if folder.is_dir()]


def closed(granted: Iterable[Path]) -> list[str]:
    """The granted folders that the tenant's user cannot reach because a parent folder is closed.

    Not those that lead through a link: the owner of the link could choose its target.
    """
    plain = [folder for folder in granted if os.path.realpath(folder) == str(folder)]
    return [str(folder) for folder in plain if tenant_access.closed_ancestor(folder) is not None]


# ---------------------------------------------------------------- a job's own Python


def virtual_environment(spec: PlacedSpec, granted: Sequence[Path], kept: Sequence[Path] = ()) -> list[Path]:
    """The folder of the job's virtual environment; raises CannotStart for one that the tenant may not use.

    The tenant chooses the path, so it must not lead into another tenant's folder, neither now nor when bubblewrap
    follows it a moment later. So a folder that is not granted must lie where no other user can replace it by a link,
    outside of the platform's own folders, where jobs write.
    """
    if spec.venv is None:
        return []
    named = Path(spec.venv)
    help_ = f"ask an administrator to grant its folder: fairlead tenant update {spec.tenant} --grant {named}"
    try:
        if ".." in named.parts:
            raise ValueError("contains ..")
        place = Path(os.path.realpath(spec.venv))
        owner, config = place.stat().st_uid, _small_file(place / "pyvenv.cfg")
        os.lstat(place / "bin" / "python")
    except (OSError, ValueError):  # ValueError: a zero byte
        raise CannotStart(f"venv: {named} is not a virtual environment on this machine; {help_}") from None
    if not _inside(place, granted) and owner not in (0, os.geteuid()):
        raise CannotStart(f"venv: {named} is neither the platform's nor in a folder granted to the tenant; {help_}")
    if not _inside(place, [*granted, *pythons()]) and tenant_access.closed_ancestor(place) is not None:
        raise CannotStart(f"venv: {named} is in a folder that the job's user cannot reach; {help_}")
    fields = dict(line.split("=", 1) for line in config.splitlines() if "=" in line)
    home = {name.strip(): value.strip() for name, value in fields.items()}.get("home", "")
    beneath = Path(os.path.realpath(home.replace("\0", ""))).parent
    if not home.startswith("/") or not _inside(beneath, [Path("/usr"), *pythons(), *granted]):
        raise CannotStart(f"venv: {named} uses the Python in {home or '?'}, which jobs cannot see; {help_}")
    if any(folder in (named, *named.parents) for folder in granted):
        return [named]  # visible with the granted folder
    if named != place:
        raise CannotStart(f"venv: {named} leads through a link; name the folder itself, or {help_}")
    if _inside(place, kept) or not _is_protected(place):
        raise CannotStart(f"venv: {named} is in a folder where other users could replace it; {help_}")
    return [place]


def _is_protected(place: Path) -> bool:
    """True when only root and the platform's user can change what this path leads to."""
    found = [folder.stat() for folder in (place, *place.parents)]
    return all(
        each.st_uid in (0, os.geteuid()) and (not each.st_mode & stat.S_IWOTH or each.st_mode & stat.S_ISVTX)
        for each in found
    )


def _small_file(path: Path) -> str:
    """The first 64 kB of a regular file; safe for an untrusted path (no FIFO blocks)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- paths


def reading(places: Iterable[str]) -> list[str]:
    """Arguments that show these paths read-only, if they exist."""
    return [word for place in places for word in ("--ro-bind-try", place, place)]


def outermost(places: Iterable[Path]) -> list[Path]:
    """The paths that are not inside another one or /usr, outer ones first."""
    kept = [Path("/usr")]
    for place in sorted(set(places), key=lambda path: (len(path.parts), path)):
        if not any(folder == place or folder in place.parents for folder in kept):
            kept.append(place)
    return kept[1:]


def _inside(place: Path, granted: Iterable[Path]) -> bool:
    around = {place, *place.parents}
    return any(folder in around or Path(os.path.realpath(folder)) in around for folder in granted)
