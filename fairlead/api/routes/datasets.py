"""Routes of data sets and lineage: versions, what a result came from, and running a job once more."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import CONFLICT, NOT_FOUND, PROBLEMS, Platform, Query, Who, answer, answer_list
from fairlead.api.routes.jobs import IdempotencyKey, JobRef, good_key
from fairlead.views.datasets import DataSetDetail, DataSetView, LineageView, RerunView

router = APIRouter(tags=["data"], responses=PROBLEMS)

DataName = Annotated[str, Path(max_length=40, description="The data set's name.")]


class DataQuery(Query):
    """Whose data sets."""

    tenant: str | None = Field(default=None, max_length=40, description="Whose; only an admin has to say so.")


class VersionQuery(DataQuery):
    """Which version of a data set."""

    version: str | None = Field(
        default=None, min_length=6, max_length=64, pattern="^[0-9a-f]+$", description="Its hash, or how that begins."
    )


@router.get("/datasets", summary="List data sets", response_model=list[DataSetView], responses=NOT_FOUND)
async def datasets(platform: Platform, who: Who, query: Annotated[DataQuery, QueryParameters()]) -> Response:
    """The newest version of each data set, with where it is in memory. A job that loads one adds a version."""
    return answer_list(await platform.datasets(who, query.tenant))


@router.get("/datasets/{name}", summary="Look at a data set", response_model=DataSetDetail, responses=NOT_FOUND)
async def dataset(
    platform: Platform, who: Who, name: DataName, query: Annotated[VersionQuery, QueryParameters()]
) -> Response:
    """One version (the newest, if none is named) with its manifest, all versions, and the jobs that read them."""
    return answer(await platform.dataset(who, name, query.version, query.tenant))


@router.delete(
    "/datasets/{name}", summary="Drop a data set", response_model=list[DataSetView], responses=NOT_FOUND | CONFLICT
)
async def drop_dataset(
    platform: Platform, who: Who, name: DataName, query: Annotated[VersionQuery, QueryParameters()]
) -> Response:
    """Forget one version, or all; what was trained on them stays, and says what it was trained on."""
    return answer_list(await platform.drop_dataset(who, name, query.version, query.tenant))


@router.get("/jobs/{job}/lineage", summary="Ask where a result came from", response_model=LineageView,
            responses=NOT_FOUND)  # fmt: skip
async def lineage(platform: Platform, who: Who, job: JobRef) -> Response:
    """Data set versions, recipe, blocks, code, parameters, seed, plans and nodes by generation, weights."""
    return answer(await platform.lineage(who, job))


@router.post("/jobs/{job}/rerun", status_code=201, summary="Run a job once more", response_model=RerunView,
             responses=NOT_FOUND | CONFLICT)  # fmt: skip
async def rerun(platform: Platform, who: Who, job: JobRef, key: IdempotencyKey = None) -> Response:
    """The same code, parameters, seed and data, under the same plan where one was kept; it says what that gives."""
    return answer(await platform.rerun(who, job, good_key(key)), 201)
