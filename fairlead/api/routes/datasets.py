"""Routes of data sets: list, read and drop versions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import CONFLICT, NOT_FOUND, PROBLEMS, Platform, Query, Who, answer, answer_list
from fairlead.views.datasets import DataSetDetail, DataSetView

router = APIRouter(tags=["data"], responses=PROBLEMS)

DataName = Annotated[str, Path(max_length=40, description="The data set's name.")]


class DataQuery(Query):
    """The tenant whose data sets are meant."""

    tenant: str | None = Field(default=None, max_length=40, description="The tenant; needed only with an admin token.")


class VersionQuery(DataQuery):
    """Which version of a data set."""

    version: str | None = Field(
        default=None,
        min_length=6,
        max_length=64,
        pattern="^[0-9a-f]+$",
        description="Its hash, or the first characters.",
    )


@router.get("/datasets", summary="List data sets", response_model=list[DataSetView], responses=NOT_FOUND)
async def datasets(platform: Platform, who: Who, query: Annotated[DataQuery, QueryParameters()]) -> Response:
    """The newest version of each data set, with the nodes that hold it in memory."""
    return answer_list(await platform.datasets(who, query.tenant))


@router.get("/datasets/{name}", summary="Read a data set", response_model=DataSetDetail, responses=NOT_FOUND)
async def dataset(
    platform: Platform, who: Who, name: DataName, query: Annotated[VersionQuery, QueryParameters()]
) -> Response:
    """One version (default: the newest) with its manifest, all versions, and the jobs that read them."""
    return answer(await platform.dataset(who, name, query.version, query.tenant))


@router.delete(
    "/datasets/{name}", summary="Drop a data set", response_model=list[DataSetView], responses=NOT_FOUND | CONFLICT
)
async def drop_dataset(
    platform: Platform, who: Who, name: DataName, query: Annotated[VersionQuery, QueryParameters()]
) -> Response:
    """Remove one version, or all. Models trained on them stay, with their lineage."""
    return answer_list(await platform.drop_dataset(who, name, query.version, query.tenant))
