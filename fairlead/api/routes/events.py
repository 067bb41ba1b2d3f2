"""Routes of events: listed or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, answer_list, streamed
from fairlead.api.routes.logs import LastEventId
from fairlead.api.sse import frame
from fairlead.control import service
from fairlead.control.records import Token
from fairlead.control.service.queries import EventFeed
from fairlead.errors import InvalidSpec
from fairlead.views.jobs import EventView

BEAT_S = 1.0
NEWEST = (1 << 63) - 1  # ids are 64-bit integers in every store

router = APIRouter(prefix="/events", tags=["events"], responses=PROBLEMS | NOT_FOUND)


class StreamQuery(Query):
    """Which events to read."""

    after: int = Field(default=0, ge=-1000, le=NEWEST, description="Only events after this id; -10: the ten newest.")
    job: str | None = Field(default=None, max_length=200, description="Only events of this job.")


class FollowQuery(StreamQuery):
    beats: bool = Field(
        default=False,
        description="Also send, at most once a second, `beat` events without an id: the changed fields of jobs and "
        "nodes by name; `gone` lists jobs that no longer hold devices.",
    )


class EventsQuery(StreamQuery):
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of events.")


@router.get("", summary="List events", response_model=list[EventView])
async def events(platform: Platform, who: Who, query: Annotated[EventsQuery, QueryParameters()]) -> Response:
    """Events visible to the token, oldest first; pass the last id as `after` to continue."""
    return answer_list(await platform.events(who, query.after, query.limit, query.job))


@router.get(
    "/stream",
    summary="Follow events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "One event each, with its id."}},
)
async def stream(
    request: Request,
    platform: Platform,
    who: Who,
    query: Annotated[FollowQuery, QueryParameters()],
    last: LastEventId = None,
) -> Response:
    """Events as they happen. After a lost connection, `Last-Event-ID` continues the stream."""
    feed = await platform.follow_events(who, _after(last) if last else query.after, query.job)
    pulse = FollowedState(platform, who) if query.beats else None
    return streamed(request, who, _follow(feed, pulse))


def _after(last: str) -> int:
    if last.isascii() and last.isdecimal() and int(last) <= NEWEST:
        return int(last)
    raise InvalidSpec(
        "is not an event id", field="Last-Event-ID", value=last, fix="send the last id unchanged, or none"
    )


class FollowedState:
    """The jobs and nodes last sent to one client, so that only changes are sent."""

    def __init__(self, platform: service.Platform, who: Token) -> None:
        self._platform, self._who = platform, who
        self._sent: dict[str, Any] = {"jobs": {}, "nodes": {}}
        self._due_s = 0.0

    async def beat(self) -> bytes:
        """The next `beat` event; empty if nothing changed or less than a second has passed."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return b""
        self._due_s = now_s + BEAT_S
        before, now = self._sent, await self._platform.beat(self._who)
        if now is before:
            return b""
        self._sent = now
        news = {kind: _changes(before[kind], now[kind]) for kind in ("jobs", "nodes")}
        gone = sorted(before["jobs"].keys() - now["jobs"].keys())
        decided = before.get("decided_s") != now["decided_s"]
        if not (news["jobs"] or news["nodes"] or gone or decided):
            return b""
        beat = {**news, "gone": gone, "decided_s": now["decided_s"]}
        return frame(msgspec.json.encode(beat, enc_hook=str), event="beat")


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The changed fields of each entry; all fields of a new entry."""
    changed = {}
    for name, fields in now.items():
        known = before.get(name, {})
        fresh = {field: value for field, value in fields.items() if field not in known or known[field] != value}
        if fresh:
            changed[name] = fresh
    return changed


async def _follow(feed: EventFeed, pulse: FollowedState | None) -> AsyncGenerator[bytes, None]:
    found = await feed.next(0.0)
    while True:
        chunk = b"".join(b"id: %d\nevent: %b\ndata: %b\n\n" % (e.id, e.kind.encode(), e.json) for e in found)
        del found  # frees the events while a slow client reads
        if pulse is not None:
            chunk += await pulse.beat()
        if chunk:
            yield chunk
        del chunk
        found = await feed.next(None if pulse is None else BEAT_S)
