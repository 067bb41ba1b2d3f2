"""Routes of bytes: code bundles on their way in, artifacts on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameters
from fastapi.responses import StreamingResponse
from pydantic import Field

from fairlead.api.context import BODY, NOT_FOUND, PROBLEMS, Platform, Query, Who
from fairlead.api.routes.jobs import JobRef
from fairlead.errors import NotFound

CHUNK_BYTES = 256 * 1024

router = APIRouter(responses=PROBLEMS)

Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="`sha256:` and the bundle's hash in hex.")]
ArtifactName = Annotated[str, Path(max_length=1000, description="One of the result's `artifacts`.")]


class BundleQuery(Query):
    tenant: str | None = Field(default=None, max_length=40, description="Whose bundle; only an admin may say so.")


Bundle = Annotated[BundleQuery, QueryParameters()]
_TAR = {"requestBody": {"required": True, "content": {"application/gzip": {"schema": {"type": "string"}}}}}


@router.head("/bundles/{digest}", tags=["bundles"], summary="Ask for a code bundle", responses=NOT_FOUND)
async def has_bundle(platform: Platform, who: Who, digest: Digest, query: Bundle) -> Response:
    """Whether the tenant has this bundle already, so that it need not be sent again."""
    if not await platform.has_bundle(who, digest, query.tenant):
        raise NotFound("there is no such bundle", field="digest", value=digest, fix="send it with PUT")
    return Response()


@router.put(
    "/bundles/{digest}",
    tags=["bundles"],
    status_code=204,
    response_class=Response,
    summary="Send a code bundle",
    responses=BODY | NOT_FOUND,
    openapi_extra=_TAR,
)
async def put_bundle(request: Request, platform: Platform, who: Who, digest: Digest, query: Bundle) -> Response:
    """Store a packed folder under its hash; what does not have this hash is refused."""
    await platform.put_bundle(who, digest, request.stream(), query.tenant)
    return Response(status_code=204)


@router.get(
    "/jobs/{job}/artifacts/{name:path}",
    tags=["jobs"],
    response_class=Response,
    summary="Download an artifact",
    responses=NOT_FOUND | {200: {"content": {"application/octet-stream": {}}, "description": "The file's bytes."}},
)
async def artifact(platform: Platform, who: Who, job: JobRef, name: ArtifactName) -> Response:
    """One file that the job left behind."""
    if "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise NotFound("there is no such artifact", field="name", value=name, fix="see the artifacts of the result")
    file, size = await platform.artifact(who, job, name)
    shown = quote(name.rpartition("/")[2], safe="")
    headers = {"Content-Length": str(size), "Content-Disposition": f"attachment; filename*=UTF-8''{shown}"}
    return StreamingResponse(_chunks(file, size), headers=headers, media_type="application/octet-stream")


async def _chunks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """The file's first ``size`` bytes: it may still grow, but its length was announced."""
    try:
        while size > 0:
            chunk = await asyncio.to_thread(file.read, min(CHUNK_BYTES, size))
            if not chunk:
                return
            size -= len(chunk)
            yield chunk
    finally:
        file.close()
