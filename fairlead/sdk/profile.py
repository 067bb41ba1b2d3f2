"""How a client finds its platform: arguments, environment, or the profile that ``fairlead up`` leaves in its home."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.errors import Unauthenticated, Unavailable
from fairlead.home import Home, default_home


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a platform answers, and who we are to it."""

    url: str
    token: str
    pid: int | None = None  # of the control plane, when it was started on this machine
    version: str | None = None
    certificate: str | None = None  # a file: exactly what a platform of this machine answers with, when it speaks TLS
    ca: str | None = None  # instead of the system's authorities: a PEM file, or sha256:... of the server's certificate


def read(home: Path) -> Profile | None:
    """The profile in this home, or None where no platform was ever started."""
    path = Home(home).profile
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "url" not in data:  # a home that was restored and not started since
            return None
        found = (data.get(name) for name in ("pid", "version", "certificate"))
        return Profile(str(data["url"]), str(data["token"]), *found)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Unavailable(
            f"{path} belongs to another user",
            fix="set FAIRLEAD_URL and FAIRLEAD_TOKEN to what the platform's admin gave you",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"{path} cannot be read: {error}", fix="start the platform again: fairlead down, then fairlead up"
        ) from None


def locate(url: str | None = None, token: str | None = None, home: str | Path | None = None) -> Profile:
    """The platform that is meant: arguments before environment before profile.

    A home given as an argument is asked first, so that the variables of another platform do not interfere. The
    profile's token is for the profile's own address only: it never goes to another one.
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
        raise Unauthenticated(f"there is no token for {url}", fix="set FAIRLEAD_TOKEN, or pass token=")
    if found is None:
        raise Unavailable(
            f"no platform was started under {folder}",
            fix="start one: fairlead up; or set FAIRLEAD_URL and FAIRLEAD_TOKEN to reach one elsewhere",
        )
    return replace(found, url=found.url.rstrip("/"), token=token or found.token)


def alive(pid: int | None) -> bool:
    """Whether a process of this id lives on this machine; a zombie, which only waits to be collected, does not."""
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
