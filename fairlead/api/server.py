"""Serving the API inside the caller's event loop, on a port of choice, until it is told to stop."""

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

if TYPE_CHECKING:  # most platforms speak plain HTTP on loopback, and need no cryptography
    from fairlead.api.tls import Tls

GRACE_S = 5  # for requests that are under way when the server stops
DATE_S = 1.0  # how old the date in an answer may be
IDLE_S = 75  # longer than clients keep a connection, so that it is they who let go of it


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is part of, and says when it listens."""

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
        """Once a second, for the date in the answers: the usual ten times would be a third of what idling costs."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._stopping.wait()
                    self.should_exit = True


async def serve(app: FastAPI, host: str, port: int, ready: Callable[[int], None], tls: Tls | None = None) -> None:
    """Serve until :func:`stop` or until cancelled, then end open streams and finish what is under way.

    ``ready`` is called once with the real port (which matters for port 0), when connections are taken.
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
    config.ssl = tls.context if tls is not None else None  # ours, because it is renewed while it is in use
    context: Context = app.state.context
    server = _Server(config, lambda: ready(real_port), context.stopping)
    renewing = asyncio.create_task(tls.keep_fresh()) if tls is not None else None
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    told = asyncio.create_task(context.stopping.wait())
    try:
        await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if renewing is not None:
            renewing.cancel()
        stop(app)
        server.should_exit = True
        await serving


async def open_door(
    platform: service.Platform, host: str, port: int, opened: Callable[[int], None], *, tls: Tls | None = None,
    behind_https: bool = False,
) -> None:  # fmt: skip
    """Serve the API over this platform until cancelled: the door that the control plane is started with."""
    await serve(create_app(platform, secure=behind_https or tls is not None), host, port, opened, tls)


def stop(app: FastAPI) -> None:
    """Let :func:`serve` of this application come to its end; open streams end at once."""
    context: Context = app.state.context
    context.stopping.set()


def _listen(host: str, port: int, unread_s: float) -> socket.socket:
    """A bound socket. It names its protocol, because only then does asyncio send small answers without delay.

    Its connections end when their client takes nothing of an answer for so long: who does not read holds no memory.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * unread_s))
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        fix = "choose another with --port, or end what listens there"
        said = getattr(error, "strerror", None) or str(error)
        raise Refused(f"cannot listen on {host}:{port}: {said}", field="port", value=port, fix=fix) from None
    return listener
