"""Serves the web page at ``/``: static files without a build step and without other origins."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"


async def _index(request: Request) -> FileResponse:
    return FileResponse(STATIC / "index.html", media_type="text/html")


def install(app: Starlette) -> None:
    """Serve the page at ``/`` and its files below ``/ui/``.

    Mounting the files at ``/`` would answer every unknown path and method.
    """
    app.add_route("/", _index, methods=["GET"], include_in_schema=False)
    app.mount("/ui", StaticFiles(directory=STATIC), name="ui")
