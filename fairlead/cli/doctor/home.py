"""Checks the platform's home: owner, permissions, free space, file locks, keys and certificate."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fairlead.cli.doctor.finding import Finding, fail, graded, ok, warn
from fairlead.cli.output import size
from fairlead.home import Home

NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "lustre", "beegfs")
JOB_BYTES = 10 * 1024**3  # default disk limit of a job
EXPIRES_SOON_DAYS = 30


def existing_parent(home: Path) -> Path:
    """The home, or the closest existing parent folder."""
    return next(place for place in (home, *home.parents) if place.exists())


def owner_and_modes(home: Path) -> Iterator[Finding]:
    place = existing_parent(home)
    if place != home:
        usable = os.access(place, os.W_OK | os.X_OK)
        fix = "choose another with --home or FAIRLEAD_HOME, or create it and chown it to this user"
        yield graded("home", f"{home} does not exist and {'can' if usable else 'cannot'} be created", fix,
                     fails=not usable, warns=False)  # fmt: skip
        return
    status = home.stat()
    if status.st_uid != os.geteuid():
        fix = f"use the user who started the platform, or chown -R {os.geteuid()} {home}"
        yield fail("home", f"{home} belongs to user {status.st_uid}, not to {os.geteuid()}", fix)
        return
    open_to = _open_to(Home(home))
    if open_to:
        fix = "; ".join(f"chmod {mode:o} {path}" for path, mode in open_to)
        yield fail("home", f"other users can read or write {', '.join(str(path) for path, _ in open_to)}", fix)
        return
    closed = [parent for parent in home.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if closed and os.geteuid() == 0:
        text = f"the tenants' users have no access to {closed[-1]}, a parent of {home}"
        yield warn("home", text, f"chmod o+x {closed[-1]}, or use another home")
        return
    yield ok("home", f"{home} belongs to this user; others have no access")


def _open_to(home: Home) -> list[tuple[Path, int]]:
    """Paths that other users can access but should not, with the mode they should have."""
    wanted = {
        home.root: 0o711, home.profile: 0o600, home.database: 0o600, home.secret_key: 0o600, home.bundles: 0o700,
        home.logs: 0o700, home.run: 0o700,
    }  # fmt: skip
    present = {path: stat.S_IMODE(path.stat().st_mode) for path in wanted if path.exists()}
    return [(path, wanted[path]) for path, mode in present.items() if mode & 0o066 & ~wanted[path]]


def room(home: Path) -> Iterator[Finding]:
    disk = os.statvfs(existing_parent(home))
    free, whole = disk.f_frsize * disk.f_bavail, disk.f_frsize * disk.f_blocks
    text = f"{size(free)} free of {size(whole)} where {home} is"
    fix = (
        "free space, use a home on a larger disk, or shorten retention: fairlead tenant update NAME --keep-results 30d"
    )
    yield graded("disk", text, fix, fails=free < 1e9, warns=free < JOB_BYTES or free < 0.05 * whole)
    if disk.f_files:
        part = disk.f_favail / disk.f_files
        text = f"{disk.f_favail:,} free of {disk.f_files:,} ({part:.0%})"
        fix = "remove small files, or use another file system"
        yield graded("inodes", text, fix, fails=part < 0.01, warns=part < 0.05)


def file_system(home: Path) -> Iterator[Finding]:
    """Check that file locks exclude each other; SQLite and the nodes rely on it."""
    place = existing_parent(home)
    kind = mount_kind(place, Path("/proc/self/mountinfo").read_text())
    fix = "use a home on a local disk; for several machines put the store into PostgreSQL (--store)"
    if not os.access(place, os.W_OK):
        yield warn("file system", f"{kind}; locks cannot be tested because {place} is not writable", fix)
        return
    if not _locks_hold(place):
        yield fail("file system", f"{kind}: file locks do not work", fix)
    elif kind.startswith(NETWORK):
        yield warn(
            "file system", f"{kind}: file locks work, but SQLite's write-ahead log is not safe over a network", fix
        )
    else:
        yield ok("file system", f"{kind}, file locks work")


def _locks_hold(place: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as first, Path(first.name).open("rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def mount_kind(place: Path, mountinfo: str) -> str:
    """The file system type of a folder, from the text of /proc/self/mountinfo."""
    found = ("", "unknown")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, right.split()[0])
    return found[1]


def secrets_key(home: Path) -> Iterator[Finding]:
    path = Home(home).secret_key
    if not path.exists():
        yield ok("secrets key", "none in the home; created with the first secret unless another key is given")
        return
    status = path.stat()
    open_to = stat.S_IMODE(status.st_mode) & 0o077
    text = f"{path.name} has mode {stat.S_IMODE(status.st_mode):o} and belongs to user {status.st_uid}"
    yield graded("secrets key", text, f"chmod 600 {path}; then set all secrets again: others may have read them",
                 fails=bool(open_to) or status.st_uid != os.geteuid(), warns=False)  # fmt: skip


def certificate(home: Path) -> Iterator[Finding]:
    """Check when the platform's TLS certificate expires; no finding without TLS."""
    from fairlead.sdk.profile import read

    profile = read(home)
    if profile is None or profile.certificate is None:
        return
    from cryptography import x509

    try:
        leaf = x509.load_pem_x509_certificates(Path(profile.certificate).read_bytes())[0]
    except (OSError, ValueError) as error:
        yield fail("certificate", f"{profile.certificate} cannot be read: {error}", "restart the platform")
        return
    days = (leaf.not_valid_after_utc - datetime.now(UTC)).days
    text = f"{'expired' if days < 0 else 'valid until'} {leaf.not_valid_after_utc:%Y-%m-%d} ({abs(days)} days)"
    yield graded("certificate", text, "renew it; the platform reads the new file while running or at the next start",
                 fails=days < 0, warns=days < EXPIRES_SOON_DAYS)  # fmt: skip
