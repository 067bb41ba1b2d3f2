"""The operator's data folder (``FAIRLEAD_DATA``), which jobs read by grant: checks and advice. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

VARIABLE = "FAIRLEAD_DATA"
CLOSED = "FAIRLEAD_DATA_CLOSED"
"""Environment variable of workers that cannot read the folder."""


def covers(folders: Sequence[str], data: str) -> bool:
    """True if one of the granted folders contains the data folder or lies inside it."""
    place = PurePath(data)
    return any(place.is_relative_to(folder) or PurePath(folder).is_relative_to(place) for folder in folders)


def advice(text: str, environment: Mapping[str, str]) -> str:
    """The fix for an error text or command that mentions a data folder closed to this worker; else empty."""
    folder, tenant = environment.get(VARIABLE, ""), environment.get("FAIRLEAD_TENANT", "TENANT")
    if not folder or CLOSED not in environment or not (VARIABLE in text or folder in text):
        return ""
    return f"{VARIABLE} ({folder}) is not granted to {tenant}: fairlead tenant update {tenant} --grant {folder}"
