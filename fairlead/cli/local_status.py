"""Reads a platform on this machine with one plain GET, without importing the client.

Importing the client takes longer than the rest of ``fairlead queue``. Everything else (another machine, TLS, an error,
no answer) is left to the client.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from fairlead.sdk.profile import Profile, locate

TIMEOUT_S = 30.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Reason:
    text: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of the queue, with the fields of the same names in views.jobs.JobView."""

    id: str
    name: str
    tenant: str
    state: str
    submitted_s: float
    workers: int = 0
    min_workers: int = 1
    max_workers: int = 1
    nodes: Sequence[str] = ()
    started_s: float | None = None
    finished_s: float | None = None
    expected_start_s: float | None = None
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    reason: Reason | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    items: list[JobRow]
    next: str | None
    total: int


def jobs(params: Mapping[str, Any]) -> JobPage | None:
    """One page of jobs, or None if the client has to fetch it."""
    page = look("/jobs", params)
    try:
        return None if page is None else JobPage([_job(item) for item in page["items"]], page["next"], page["total"])
    except (KeyError, TypeError):  # the answer of another version
        return None


def _job(item: Mapping[str, Any]) -> JobRow:
    reason = item.get("reason")
    known = {name: item[name] for name in JobRow.__slots__ if name in item}
    return JobRow(**known | {"reason": reason and Reason(reason["text"])})


def look(path: str, params: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> Any:
    """The answer to a GET below /api/v1, or None if the client has to fetch it or explain the failure."""
    body = _get(locate(), path, params, timeout_s)
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return None


def _get(profile: Profile, path: str, params: Mapping[str, Any], timeout_s: float) -> bytes | None:
    place = urlsplit(profile.url)
    if place.scheme != "http" or place.hostname not in LOOPBACK or not profile.token.isascii():
        return None
    given = urlencode({name: value for name, value in params.items() if value is not None})
    try:
        connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=timeout_s)
        connection.request("GET", f"/api/v1{path}?{given}", headers={"Authorization": f"Bearer {profile.token}"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return body if response.status == 200 else None
