"""Routes of logs: what a job's workers wrote, as a list or followed live."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, streamed
from fairlead.api.routes.jobs import JobRef
from fairlead.api.sse import JsonStream, frame
from fairlead.control import service
from fairlead.control.observability.log_tails import LogReader
from fairlead.control.records import Token
from fairlead.errors import InvalidSpec, NotFound
from fairlead.views.jobs import LogLine

LINES = 100_000
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]

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
    reader = await platform.log(who, job, _cursor(last), worker, LINES if query.tail is None else query.tail)
    if not query.follow:
        return streamed(request, who, _listed(reader), JsonStream)
    return streamed(request, who, _followed(reader))


async def _worker_of(platform: service.Platform, who: Token, job: str, query: LogsQuery) -> str:
    if query.worker is not None:
        raise InvalidSpec("worker and rank name the same thing twice", field="rank", value=query.rank, fix="keep one")
    detail = await platform.job(who, job)
    members = detail.generations[-1].members if detail.generations else []
    for member in members:
        if member.rank == query.rank:
            return member.worker
    fix = f"use 0 to {len(members) - 1}" if members else "wait until the job has started"
    raise NotFound("the job has no worker of this rank", field="rank", value=query.rank, fix=fix)


def _cursor(last: str | None) -> dict[str, int]:
    if not last:
        return {}
    try:
        return msgspec.json.decode(last, type=dict[str, Offset])
    except msgspec.DecodeError:
        fix = "send the id of the last event as it came, or none"
        raise InvalidSpec("is no event of a log", field="Last-Event-ID", value=last, fix=fix) from None


async def _listed(reader: LogReader) -> AsyncGenerator[bytes, None]:
    """All that is written by now, as one JSON list."""
    before = b"["
    async with aclosing(reader.written()) as pieces:
        async for piece in pieces:
            yield before + b",".join(piece.lines)
            before = b","
    yield b"[]" if before == b"[" else b"]"


async def _followed(reader: LogReader) -> AsyncGenerator[bytes, None]:
    async with aclosing(reader.follow()) as pieces:
        async for piece in pieces:
            yield _frames(piece.lines, reader.cursor)
    yield frame("{}", event="end")


def _frames(lines: Sequence[bytes], cursor: dict[str, int]) -> bytes:
    """The lines as events; only the last carries the place, so that a broken stream repeats lines but loses none."""
    *others, last = lines
    head = b"".join(b"event: line\ndata: %b\n\n" % line for line in others)
    return head + b"id: %b\nevent: line\ndata: %b\n\n" % (msgspec.json.encode(cursor), last)
