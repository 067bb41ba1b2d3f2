"""Routes of lineage: where a result came from, and reruns."""

from __future__ import annotations

from fastapi import APIRouter, Response

from fairlead.api.context import CONFLICT, NOT_FOUND, PROBLEMS, Platform, Who, answer
from fairlead.api.routes.jobs import IdempotencyKey, JobRef, check_key
from fairlead.views.datasets import LineageView, RerunView

router = APIRouter(tags=["data"], responses=PROBLEMS)


@router.get("/jobs/{job}/lineage", summary="Read a result's lineage", response_model=LineageView,
            responses=NOT_FOUND)  # fmt: skip
async def lineage(platform: Platform, who: Who, job: JobRef) -> Response:
    """Data set versions, recipe, blocks, code, parameters, seed, plans and nodes by generation, weights."""
    return answer(await platform.lineage(who, job))


@router.post("/jobs/{job}/rerun", status_code=201, summary="Rerun a job", response_model=RerunView,
             responses=NOT_FOUND | CONFLICT)  # fmt: skip
async def rerun(platform: Platform, who: Who, job: JobRef, key: IdempotencyKey = None) -> Response:
    """Run a job again with the same code, seed, data and plan; the answer says how close the weights will be."""
    return answer(await platform.rerun(who, job, check_key(key)), 201)
