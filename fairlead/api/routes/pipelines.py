"""Routes of pipelines: run, read and cancel a graph of stages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import BODY, CONFLICT, NOT_FOUND, PROBLEMS, Platform, Query, Who, answer, body_of, read_json
from fairlead.api.routes.jobs import IdempotencyKey, check_key
from fairlead.pipelines.graph import PipelineSpec, parse_pipeline
from fairlead.views.pipelines import PipelineDetail, PipelinePage

router = APIRouter(prefix="/pipelines", tags=["pipelines"], responses=PROBLEMS)

PipelineRef = Annotated[str, Path(max_length=200, description="Id, unique start of an id, or name (its newest).")]


class PipelinesQuery(Query):
    """Which pipelines to list."""

    tenant: str | None = Field(default=None, max_length=40, description="Only pipelines of this tenant.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number, newest first.")


@router.post(
    "",
    status_code=201,
    summary="Run a pipeline",
    response_model=PipelineDetail,
    responses=BODY
    | CONFLICT
    | NOT_FOUND
    | {200: {"model": PipelineDetail, "description": "The pipeline submitted earlier with this key."}},
    openapi_extra=body_of(PipelineSpec),
)
async def run_pipeline(request: Request, platform: Platform, who: Who, key: IdempotencyKey = None) -> Response:
    """Store the pipeline durably, then answer. Refused if the graph is invalid or a stage can never run."""
    view, created = await platform.run_pipeline(who, parse_pipeline(await read_json(request)), check_key(key))
    return answer(view, 201 if created else 200)


@router.get("", summary="List pipelines", response_model=PipelinePage, responses=NOT_FOUND)
async def pipelines(platform: Platform, who: Who, query: Annotated[PipelinesQuery, QueryParameters()]) -> Response:
    """The newest pipelines visible to the token."""
    return answer(await platform.pipelines(who, query.tenant, query.limit))


@router.get("/{pipeline}", summary="Read a pipeline", response_model=PipelineDetail, responses=NOT_FOUND)
async def pipeline(platform: Platform, who: Who, pipeline: PipelineRef) -> Response:
    """The pipeline with the state of every stage."""
    return answer(await platform.pipeline(who, pipeline))


@router.post(
    "/{pipeline}/cancel", summary="Cancel a pipeline", response_model=PipelineDetail, responses=NOT_FOUND | CONFLICT
)
async def cancel_pipeline(platform: Platform, who: Who, pipeline: PipelineRef) -> Response:
    """Stop running stages and start no others. Results of finished stages are kept."""
    return answer(await platform.cancel_pipeline(who, pipeline))
