"""Routes of logs: what a job's workers wrote, as a list or followed live."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, answer_list, event_stream
from fairlead.api.door import LogCursor, PlatformDoor
from fairlead.api.jobs import JobRef
from fairlead.api.sse import frame
from fairlead.control.records import Token
from fairlead.errors import InvalidSpec, NotFound
from fairlead.views import LogLine

POLL_S = 0.2  # logs are files, and files do not call
LINES = 100_000
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
ROUNDS = 1000

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEMS)


class LogsQuery(Query):
    """Which lines to read, and whether to go on."""

    follow: bool = Field(default=False, description="Stream as server-sent events until the job has ended.")
    worker: str | None = Field(default=None, max_length=40, description="Only this worker's lines.")
    rank: int | None = Field(default=None, ge=0, description="Only the lines of the worker with this rank now.")
    tail: int | None = Field(default=None, ge=0, le=LINES, description="Only so many of the last lines so far.")


LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="Where a stream broke off.")]


@router.get(
    "/{job}/logs",
    summary="Read or follow logs",
    response_model=list[LogLine],
    responses=NOT_FOUND
    | {200: {"content": {"text/event-stream": {}}, "description": "Lines; followed: events `line`, then `end`."}},
)
async def logs(
    request: Request,
    platform: Platform,
    who: Who,
    job: JobRef,
    query: Annotated[LogsQuery, QueryParameters()],
    last: LastEventId = None,
) -> Response:
    """What the job's workers wrote. Followed, each `line` event is one line and `end` says that no more will come."""
    worker = query.worker if query.rank is None else await _worker_of(platform, who, job, query)
    keep = LINES if query.tail is None else query.tail
    lines, cursor, ended = await _so_far(platform, who, job, _cursor(last), worker, keep)
    if not query.follow:
        return answer_list(lines)
    return event_stream(request, who, _follow(platform, who, job, worker, lines, cursor, ended))


async def _worker_of(platform: PlatformDoor, who: Token, job: str, query: LogsQuery) -> str:
    if query.worker is not None:
        raise InvalidSpec("worker and rank name the same thing twice", field="rank", value=query.rank, fix="keep one")
    detail = await platform.job(who, job)
    members = detail.generations[-1].members if detail.generations else []
    for member in members:
        if member.rank == query.rank:
            return member.worker
    fix = f"use 0 to {len(members) - 1}" if members else "wait until the job has started"
    raise NotFound("the job has no worker of this rank", field="rank", value=query.rank, fix=fix)


def _cursor(last: str | None) -> LogCursor:
    if not last:
        return {}
    try:
        return msgspec.json.decode(last, type=dict[str, Offset])
    except msgspec.DecodeError:
        fix = "send the id of the last event as it came, or none"
        raise InvalidSpec("is no event of a log", field="Last-Event-ID", value=last, fix=fix) from None


async def _so_far(
    platform: PlatformDoor, who: Token, job: str, cursor: LogCursor, worker: str | None, keep: int
) -> tuple[Sequence[LogLine], LogCursor, bool]:
    """All that is written by now, of which so many last lines are kept."""
    kept: deque[LogLine] = deque(maxlen=keep)
    for _ in range(ROUNDS):  # not for ever: a job may write as fast as we read
        lines, cursor, ended = await platform.logs(who, job, cursor, worker)
        kept.extend(lines)
        if not lines:
            break
    return kept, cursor, ended


async def _follow(
    platform: PlatformDoor,
    who: Token,
    job: str,
    worker: str | None,
    lines: Sequence[LogLine],
    cursor: LogCursor,
    ended: bool,
) -> AsyncGenerator[bytes, None]:
    while lines or not ended:
        if lines:
            yield _frames(lines, cursor)
        else:
            await asyncio.sleep(POLL_S)
        lines, cursor, ended = await platform.logs(who, job, cursor, worker)
    yield frame("{}", event="end")


def _frames(lines: Sequence[LogLine], cursor: LogCursor) -> bytes:
    """The lines as events; only the last carries the place, so that a broken stream repeats lines but loses none."""
    place = msgspec.json.encode(cursor).decode()
    last = len(lines) - 1
    return b"".join(
        frame(line.model_dump_json(), event="line", id=place if index == last else None)
        for index, line in enumerate(lines)
    )
