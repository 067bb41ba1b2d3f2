"""Routes of artifacts: download of result files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Who
from fairlead.api.routes.jobs import JobRef
from fairlead.errors import NotFound

router = APIRouter(responses=PROBLEMS)

CHUNK_BYTES = 256 * 1024


ArtifactName = Annotated[str, Path(max_length=1000, description="One of the result's `artifacts`.")]


@router.get(
    "/jobs/{job}/artifacts/{name:path}",
    tags=["jobs"],
    response_class=Response,
    summary="Download an artifact",
    responses=NOT_FOUND | {200: {"content": {"application/octet-stream": {}}, "description": "The file's bytes."}},
)
async def artifact(platform: Platform, who: Who, job: JobRef, name: ArtifactName) -> Response:
    """Download one result file of the job."""
    if "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise NotFound("no such artifact", field="name", value=name, fix="see the artifacts of the result")
    file, size = await platform.artifact(who, job, name)
    shown = quote(name.rpartition("/")[2], safe="")
    headers = {"Content-Length": str(size), "Content-Disposition": f"attachment; filename*=UTF-8''{shown}"}
    return StreamingResponse(_chunks(file, size), headers=headers, media_type="application/octet-stream")


async def _chunks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """The file's first ``size`` bytes, as announced in Content-Length; the file may still grow."""
    try:
        while size > 0:
            chunk = await asyncio.to_thread(file.read, min(CHUNK_BYTES, size))
            if not chunk:
                return
            size -= len(chunk)
            yield chunk
    finally:
        file.close()
