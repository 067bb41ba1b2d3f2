"""Routes of logs: the output of a job's workers, as a list or streamed."""

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
    """Which lines to read, and whether to follow."""

    follow: bool = Field(default=False, description="Stream as server-sent events until the job has ended.")
    worker: str | None = Field(default=None, max_length=40, description="Only this worker's lines.")
    rank: int | None = Field(default=None, ge=0, description="Only the worker that has this rank now.")
    tail: int | None = Field(default=None, ge=0, le=LINES, description="Only the last N lines.")


LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="The id of the last event received.")]


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
    """The output of the job's workers. When followed, each `line` event is one line and `end` is the last event."""
    worker = query.worker if query.rank is None else await _worker_of(platform, who, job, query)
    reader = await platform.log(who, job, _cursor(last), worker, LINES if query.tail is None else query.tail)
    if not query.follow:
        return streamed(request, who, _listed(reader), JsonStream)
    return streamed(request, who, _followed(reader))


async def _worker_of(platform: service.Platform, who: Token, job: str, query: LogsQuery) -> str:
    if query.worker is not None:
        raise InvalidSpec("worker and rank exclude each other", field="rank", value=query.rank, fix="keep one")
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
        fix = "send the id of the last event unchanged, or none"
        raise InvalidSpec("is not the id of a log event", field="Last-Event-ID", value=last, fix=fix) from None


async def _listed(reader: LogReader) -> AsyncGenerator[bytes, None]:
    """All lines so far, as one JSON list."""
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
    """The lines as events; only the last has an id, so a broken stream may repeat lines but loses none."""
    *others, last = lines
    head = b"".join(b"event: line\ndata: %b\n\n" % line for line in others)
    return head + b"id: %b\nevent: line\ndata: %b\n\n" % (msgspec.json.encode(cursor), last)
