"""Routes of code bundles: check and upload."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import BODY, NOT_FOUND, PROBLEMS, Platform, Query, Who
from fairlead.errors import NotFound

router = APIRouter(responses=PROBLEMS)

Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="`sha256:` and the bundle's hash in hex.")]


class BundleQuery(Query):
    tenant: str | None = Field(default=None, max_length=40, description="The tenant; needed only with an admin token.")


Bundle = Annotated[BundleQuery, QueryParameters()]
_TAR = {"requestBody": {"required": True, "content": {"application/gzip": {"schema": {"type": "string"}}}}}


@router.head("/bundles/{digest}", tags=["bundles"], summary="Check for a code bundle", responses=NOT_FOUND)
async def has_bundle(platform: Platform, who: Who, digest: Digest, query: Bundle) -> Response:
    """200 if the tenant has this bundle, so that it need not be uploaded; else 404."""
    if not await platform.has_bundle(who, digest, query.tenant):
        raise NotFound("no such bundle", field="digest", value=digest, fix="upload it with PUT")
    return Response()


@router.put(
    "/bundles/{digest}",
    tags=["bundles"],
    status_code=204,
    response_class=Response,
    summary="Upload a code bundle",
    responses=BODY | NOT_FOUND,
    openapi_extra=_TAR,
)
async def put_bundle(request: Request, platform: Platform, who: Who, digest: Digest, query: Bundle) -> Response:
    """Store a packed folder under its hash; refused if the hash does not match."""
    await platform.put_bundle(who, digest, request.stream(), query.tenant)
    return Response(status_code=204)
