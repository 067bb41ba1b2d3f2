"""The page: what a browser gets at ``/``, served as it lies here, with no build step and nothing from elsewhere."""

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
    """Serve the page at ``/`` and its parts below ``/ui/``.

    Not the whole at ``/``: that would answer for every path and method that no route has.
    """
    app.add_route("/", _index, methods=["GET"], include_in_schema=False)
    app.mount("/ui", StaticFiles(directory=STATIC), name="ui")
