"""Routes of pipelines: run a graph of stages, look at it, take it back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import BODY, CONFLICT, NOT_FOUND, PROBLEMS, Platform, Query, Who, answer, body_of, read_json
from fairlead.api.routes.jobs import IdempotencyKey, good_key
from fairlead.pipelines.graph import PipelineSpec, parse_pipeline
from fairlead.views.pipelines import PipelineDetail, PipelinePage

router = APIRouter(prefix="/pipelines", tags=["pipelines"], responses=PROBLEMS)

PipelineRef = Annotated[str, Path(max_length=200, description="Id, unique start of an id, or name (its newest).")]


class PipelinesQuery(Query):
    """Which pipelines to list."""

    tenant: str | None = Field(default=None, max_length=40, description="Only pipelines of this tenant.")
    limit: int = Field(default=100, ge=1, le=1000, description="At most so many, the newest first.")


@router.post(
    "",
    status_code=201,
    summary="Run a pipeline",
    response_model=PipelineDetail,
    responses=BODY
    | CONFLICT
    | NOT_FOUND
    | {200: {"model": PipelineDetail, "description": "This key's pipeline, submitted before."}},
    openapi_extra=body_of(PipelineSpec),
)
async def run_pipeline(request: Request, platform: Platform, who: Who, key: IdempotencyKey = None) -> Response:
    """Store the pipeline durably, then answer. Refused at once if it is no graph, or a stage can never run."""
    view, created = await platform.run_pipeline(who, parse_pipeline(await read_json(request)), good_key(key))
    return answer(view, 201 if created else 200)


@router.get("", summary="List pipelines", response_model=PipelinePage, responses=NOT_FOUND)
async def pipelines(platform: Platform, who: Who, query: Annotated[PipelinesQuery, QueryParameters()]) -> Response:
    """The newest pipelines that the token may see."""
    return answer(await platform.pipelines(who, query.tenant, query.limit))


@router.get("/{pipeline}", summary="Look at a pipeline", response_model=PipelineDetail, responses=NOT_FOUND)
async def pipeline(platform: Platform, who: Who, pipeline: PipelineRef) -> Response:
    """The graph with the state of every stage."""
    return answer(await platform.pipeline(who, pipeline))


@router.post(
    "/{pipeline}/cancel", summary="Cancel a pipeline", response_model=PipelineDetail, responses=NOT_FOUND | CONFLICT
)
async def cancel_pipeline(platform: Platform, who: Who, pipeline: PipelineRef) -> Response:
    """Start nothing more of it, and end the stages that run. What the others gave stays."""
    return answer(await platform.cancel_pipeline(who, pipeline))
