"""Serves the API in the caller's event loop until it is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from fairlead.api.app import create_app
from fairlead.api.context import Context
from fairlead.control import service
from fairlead.errors import Refused

if TYPE_CHECKING:  # plain HTTP on loopback needs no cryptography
    from fairlead.api.tls import Tls

GRACE_S = 5  # for requests in progress when the server stops
DATE_S = 1.0  # maximum age of the Date header
IDLE_S = 75  # longer than clients keep idle connections, so that clients close them


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process and reports when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None], stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._listening, self._stopping = listening, stopping

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._listening()

    async def main_loop(self) -> None:
        """Ticks once a second to update the Date header: uvicorn's ten ticks cost a third of the idle CPU time."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._stopping.wait()
                    self.should_exit = True


async def serve(app: FastAPI, host: str, port: int, ready: Callable[[int], None], tls: Tls | None = None) -> None:
    """Serve until :func:`stop` or cancellation, then end open streams and finish requests in progress.

    ``ready`` is called once with the real port (for port 0) when the server accepts connections.
    """
    listener = _listen(host, port, app.state.context.limits.unread_s)
    real_port = int(listener.getsockname()[1])
    config = uvicorn.Config(
        app,
        http="httptools" if find_spec("httptools") else "h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    config.load()
    config.ssl = (
        tls.context if tls is not None else None
    )  # our own context, because its certificate is renewed while in use
    context: Context = app.state.context
    server = _Server(config, lambda: ready(real_port), context.stopping)
    renewing = asyncio.create_task(tls.keep_fresh()) if tls is not None else None
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stop_requested = asyncio.create_task(context.stopping.wait())
    try:
        await asyncio.wait({serving, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop_requested.cancel()
        if renewing is not None:
            renewing.cancel()
        stop(app)
        server.should_exit = True
        await serving


async def open_door(
    platform: service.Platform, host: str, port: int, opened: Callable[[int], None], *, tls: Tls | None = None,
    behind_https: bool = False,
) -> None:  # fmt: skip
    """Serve the API of this platform until cancelled; the control plane calls this when it starts."""
    await serve(create_app(platform, secure=behind_https or tls is not None), host, port, opened, tls)


def stop(app: FastAPI) -> None:
    """Stop :func:`serve` of this application; open streams end at once."""
    context: Context = app.state.context
    context.stopping.set()


def _listen(host: str, port: int, unread_s: float) -> socket.socket:
    """A listening socket, created with its protocol number because asyncio sets TCP_NODELAY only then.

    TCP_USER_TIMEOUT ends connections of clients that read nothing for ``unread_s``, to free their memory.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * unread_s))
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        fix = "choose another with --port, or stop the program that listens there"
        problem = getattr(error, "strerror", None) or str(error)
        raise Refused(f"cannot listen on {host}:{port}: {problem}", field="port", value=port, fix=fix) from None
    return listener
