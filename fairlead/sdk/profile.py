"""Finds the platform of a client: arguments, environment, or the profile that ``fairlead up`` writes in its home."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.errors import Unauthenticated, Unavailable
from fairlead.home import Home, default_home


@dataclass(frozen=True, slots=True)
class Profile:
    """A platform's address and the token for it."""

    url: str
    token: str
    pid: int | None = None  # of the control plane, when it was started on this machine
    version: str | None = None
    certificate: str | None = None  # file with the certificate of a TLS platform on this machine
    ca: str | None = None  # trusted instead of the system's CAs: a PEM file, or sha256:... of the certificate


def read(home: Path) -> Profile | None:
    """The profile in this home, or None if no platform was started there."""
    path = Home(home).profile
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "url" not in data:  # a restored home that was not started yet
            return None
        found = (data.get(name) for name in ("pid", "version", "certificate"))
        return Profile(str(data["url"]), str(data["token"]), *found)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Unavailable(
            f"{path} belongs to another user",
            fix="set FAIRLEAD_URL and FAIRLEAD_TOKEN; ask the platform's admin for them",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"{path} cannot be read: {error}", fix="restart the platform: fairlead down, then fairlead up"
        ) from None


def locate(url: str | None = None, token: str | None = None, home: str | Path | None = None) -> Profile:
    """The platform to use: from arguments, else the environment, else the profile.

    A home given as argument overrides the environment, which may name another platform. The profile's token is sent
    only to the profile's own address.
    """
    if home is None:
        url = url or os.environ.get("FAIRLEAD_URL") or None
        token = token or os.environ.get("FAIRLEAD_TOKEN") or None
    if url and token:
        return Profile(url.rstrip("/"), token, ca=os.environ.get("FAIRLEAD_CA") or None)
    folder = Path(home).expanduser().absolute() if home is not None else default_home()
    found = read(folder)
    if url:
        if found is not None and found.url.rstrip("/") == url.rstrip("/"):
            return found
        raise Unauthenticated(f"no token for {url}", fix="set FAIRLEAD_TOKEN, or pass token=")
    if found is None:
        raise Unavailable(
            f"no platform was started under {folder}",
            fix="start one with fairlead up, or set FAIRLEAD_URL and FAIRLEAD_TOKEN for a remote one",
        )
    return replace(found, url=found.url.rstrip("/"), token=token or found.token)


def alive(pid: int | None) -> bool:
    """True if a process with this id runs on this machine; zombies do not count."""
    if pid is None:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass  # no such process, or a system without /proc: ask the kernel instead
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
