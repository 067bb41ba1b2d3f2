"""The operator's data folder (``FAIRLEAD_DATA``): read by grant, and what to tell a job that was given none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

VARIABLE = "FAIRLEAD_DATA"
CLOSED = "FAIRLEAD_DATA_CLOSED"
"""Set in a worker that cannot read the folder."""


def covers(folders: Sequence[str], data: str) -> bool:
    """Whether the folder lies in one of these, or some of it is granted."""
    place = PurePath(data)
    return any(place.is_relative_to(folder) or PurePath(folder).is_relative_to(place) for folder in folders)


def advice(said: str, environment: Mapping[str, str]) -> str:
    """What to do about an error, or a command, that has to do with a data folder closed to this worker; else empty."""
    folder, tenant = environment.get(VARIABLE, ""), environment.get("FAIRLEAD_TENANT", "TENANT")
    if not folder or CLOSED not in environment or not (VARIABLE in said or folder in said):
        return ""
    return f"{VARIABLE} ({folder}) is not granted to {tenant}: fairlead tenant update {tenant} --grant {folder}"
