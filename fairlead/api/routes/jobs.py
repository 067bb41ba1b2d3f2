"""Routes of jobs: submit, list, explain, cancel; read metrics and results."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import (
    BODY,
    CONFLICT,
    NOT_FOUND,
    PROBLEMS,
    Platform,
    Query,
    Who,
    answer,
    body_of,
    read_json,
    read_spec,
)
from fairlead.errors import InvalidSpec
from fairlead.specs import JobSpec, Spec, parse_job
from fairlead.views.jobs import CancelledView, DryRun, JobDetail, JobView, MetricsView, Page, ResultView, Why

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEMS)

JobRef = Annotated[str, Path(max_length=200, description="Id, unique start of an id, or name (its newest job).")]


class JobsQuery(Query):
    """Which jobs to list."""

    state: str | None = Field(
        default=None, max_length=200, description="Only jobs in these states (a,b), or all `active` or `ended` jobs."
    )
    tenant: str | None = Field(default=None, max_length=40, description="Only jobs of this tenant.")
    name: str | None = Field(default=None, max_length=40, description="Only jobs of this name.")
    ids: str | None = Field(default=None, max_length=20_000, description="Only jobs with these ids (a,b).")
    limit: int = Field(default=100, ge=1, le=1000, description="Jobs per page.")
    cursor: str | None = Field(default=None, max_length=200, description="`next` of the previous page.")
    order: Literal["newest", "oldest", "queue"] = Field(
        default="newest",
        description="Sort order. `queue`: running jobs, waiting jobs (oldest first), ended jobs.",
    )


class MetricsQuery(Query):
    """How much of the history to read."""

    points: int | None = Field(
        default=None, ge=1, le=100_000, description="Maximum number of points; each is the mean of consecutive steps."
    )


class WhyQuery(Query):
    """Whether to include a forecast."""

    forecast: bool = Field(
        default=False,
        description="Also simulate the policy: predicted start, end, and whether the SLA can be met.",
    )


class CancelSpec(Spec):
    """Which jobs to cancel: unfinished jobs that match every given field."""

    all: bool = False  # required if no other field is given
    tenant: Annotated[str, Field(max_length=40)] | None = None  # None: the token's tenant; for an admin all tenants
    state: Annotated[str, Field(max_length=200)] | None = None  # queued, starting, running, stopping (a,b), or active
    name: Annotated[str, Field(min_length=1, max_length=40)] | None = None  # * matches any characters: sweep-*
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict, max_length=8
    )
    dry_run: bool = False  # only count the jobs


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", description="Repeating key and body returns the same job instead of creating another."
    ),
]


def check_key(key: str | None) -> str | None:
    """The key; :class:`InvalidSpec` if it is malformed."""
    if key is not None and not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise InvalidSpec(
            "is not a valid key", field="Idempotency-Key", value=key, fix="use 1 to 255 printable characters"
        )
    return key


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    response_model=JobView,
    responses=BODY | CONFLICT | {200: {"model": JobView, "description": "The job submitted earlier with this key."}},
    openapi_extra=body_of(JobSpec),
)
async def submit(request: Request, platform: Platform, who: Who, key: IdempotencyKey = None) -> Response:
    """Store the job durably, then answer. Refused if it can never run."""
    view, created = await platform.submit(who, parse_job(await read_json(request)), check_key(key))
    return answer(view, 201 if created else 200)


@router.post(
    "/dry-run",
    summary="Try out a job without submitting it",
    response_model=DryRun,
    responses=BODY | CONFLICT,
    openapi_extra=body_of(JobSpec),
)
async def dry_run(request: Request, platform: Platform, who: Who) -> Response:
    """Whether the job would be admitted, where it would run and when it would start; nothing is stored."""
    return answer(await platform.dry_run(who, parse_job(await read_json(request))))


@router.post(
    "/cancel",
    summary="Cancel many jobs",
    response_model=CancelledView,
    responses=BODY | NOT_FOUND,
    openapi_extra=body_of(CancelSpec),
)
async def cancel_jobs(request: Request, platform: Platform, who: Who) -> Response:
    """Cancel all unfinished jobs that match every given field, in one transaction; at most 20,000."""
    selection = await read_spec(request, CancelSpec)
    if not (selection.all or selection.state or selection.name or selection.labels):
        raise InvalidSpec("selects no jobs", field="body", fix='name state, name or labels, or "all": true')
    chosen = selection.model_dump(exclude={"all"})
    return answer(await platform.cancel_jobs(who, **chosen))


@router.get("", summary="List jobs", response_model=Page, responses=NOT_FOUND)
async def jobs(platform: Platform, who: Who, query: Annotated[JobsQuery, QueryParameters()]) -> Response:
    """One page of the jobs visible to the token; its `next` is the `cursor` of the following page."""
    ids = None if query.ids is None else query.ids.split(",")
    return answer(
        await platform.jobs(who, query.state, query.tenant, query.name, query.limit, query.cursor, query.order, ids)
    )


@router.get("/{job}", summary="Read a job", response_model=JobDetail, responses=NOT_FOUND)
async def job(platform: Platform, who: Who, job: JobRef) -> Response:
    """The job with its spec and all its generations."""
    return answer(await platform.job(who, job))


@router.post("/{job}/cancel", summary="Cancel a job", response_model=JobView, responses=NOT_FOUND | CONFLICT)
async def cancel(platform: Platform, who: Who, job: JobRef) -> Response:
    """Stop the job and its workers. Files and logs written so far are kept."""
    return answer(await platform.cancel(who, job))


@router.get("/{job}/why", summary="Explain a job's state", response_model=Why, responses=NOT_FOUND)
async def why(platform: Platform, who: Who, job: JobRef, query: Annotated[WhyQuery, QueryParameters()]) -> Response:
    """Why the job waits, runs on its present devices, or ended; and what would let it start."""
    return answer(await platform.why(who, job, forecast=query.forecast))


@router.get("/{job}/metrics", summary="Read a job's history", response_model=MetricsView, responses=NOT_FOUND)
async def metrics(
    platform: Platform, who: Who, job: JobRef, query: Annotated[MetricsQuery, QueryParameters()]
) -> Response:
    """Loss and metrics per step."""
    return answer(await platform.metrics(who, job, query.points))


@router.get("/{job}/result", summary="Read a result", response_model=ResultView, responses=NOT_FOUND | CONFLICT)
async def result(platform: Platform, who: Who, job: JobRef) -> Response:
    """Final metrics, figures and names of the artifacts; error `still-running` until the job has ended."""
    return answer(await platform.result(who, job))
