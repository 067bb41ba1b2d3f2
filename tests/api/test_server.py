"""The server itself: its port, its answers to strangers, and its end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import cast

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from fairlead.api.app import create_app
from fairlead.api.limits import Limits
from fairlead.api.server import serve, stop
from fairlead.api.sse import EventStream
from fairlead.control import service
from fairlead.errors import Refused


@asynccontextmanager
async def _served(app: FastAPI, port: int = 0) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, "127.0.0.1", port, listening.set_result))
    try:
        async with asyncio.timeout(10):
            await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            yield f"http://127.0.0.1:{await listening}", task
    finally:
        stop(app)
        await asyncio.gather(task, return_exceptions=True)


def _app() -> FastAPI:
    return create_app(cast(service.Platform, None))  # what is asked here is answered before the platform


def test_port_0_means_any_and_the_real_one_is_told() -> None:
    async def check() -> None:
        async with _served(_app()) as (url, _), httpx.AsyncClient() as client:
            assert not url.endswith(":0")
            assert (await client.get(f"{url}/api/v1/openapi.json")).json()["info"]["title"] == "Fairlead"

    asyncio.run(check())


def test_a_port_that_is_taken_is_refused_with_a_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused) as caught:
            asyncio.run(serve(_app(), "127.0.0.1", port, lambda port: None))
    assert caught.value.field == "port" and caught.value.value == port and "--port" in str(caught.value.fix)
    assert caught.value.message == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_stopping_ends_the_server_and_frees_the_port() -> None:
    async def check() -> None:
        app = _app()
        async with _served(app) as (url, task):
            stop(app)
            await task
        async with _served(_app(), int(url.rpartition(":")[2])) as (again, _):
            assert again == url

    asyncio.run(check())


def test_cancelling_ends_the_server_in_order() -> None:
    async def check() -> None:
        async with _served(_app()) as (url, task):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(url)

    asyncio.run(check())


def test_signals_stay_with_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def check() -> None:
        async with _served(_app()):
            assert signal.getsignal(signal.SIGTERM) == before[0]

    asyncio.run(check())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_small_answers_are_sent_without_delay() -> None:
    """Ten requests on one connection, body and head in one go: 40 ms of delayed acknowledgement each would show."""

    async def check() -> float:
        loop = asyncio.get_running_loop()
        async with _served(_app()) as (url, _), httpx.AsyncClient(base_url=url) as client:
            await client.get("/nothing")
            started_s = loop.time()
            for _ in range(20):
                assert (await client.get("/nothing")).status_code == 404
            return loop.time() - started_s

    assert asyncio.run(check()) < 20 * 0.040


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/api/v1/jobs/a/b/c/d", 404, "not-found"),
        ("GET", "/api/v1/jobs/", 404, "not-found"),
        ("GET", "/api/v2/jobs", 404, "not-found"),
        ("GET", "/docs", 404, "not-found"),
        ("DELETE", "/api/v1/jobs", 405, "method-not-allowed"),
        ("PUT", "/api/v1/whoami", 405, "method-not-allowed"),
        ("GET", "/api/v1/shutdown", 405, "method-not-allowed"),
        ("GET", "/api/v1/jobs/%00", 400, "invalid-spec"),
        ("GET", "/api/v1/jobs?name=%00", 400, "invalid-spec"),
        ("GET", "/api/v1/whoami", 401, "unauthenticated"),
        ("POST", "/api/v1/jobs", 401, "unauthenticated"),
        ("GET", "/metrics", 401, "unauthenticated"),
        ("GET", "/api/v1/events/stream", 401, "unauthenticated"),
    ],
)
def test_a_stranger_gets_a_problem_and_nothing_else(method: str, path: str, status: int, code: str) -> None:
    async def check() -> httpx.Response:
        async with _served(_app()) as (url, _), httpx.AsyncClient() as client:
            return await client.request(method, url + path)

    response = asyncio.run(check())
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-content-type-options"] == "nosniff"
    if status == 401:
        assert response.headers["www-authenticate"].startswith("Bearer")
    if status == 405:
        assert method not in response.headers["allow"].split(", ") and response.headers["allow"]


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "fl_a_b", "Bearer " + "x" * 600, "Token fl_a_b"])
def test_what_is_not_a_bearer_token_does_not_reach_the_platform(header: str) -> None:
    async def check() -> httpx.Response:
        async with _served(_app()) as (url, _), httpx.AsyncClient() as client:
            return await client.get(f"{url}/api/v1/whoami", headers={"Authorization": header})

    response = asyncio.run(check())
    assert response.status_code == 401 and response.json()["field"] == "Authorization"


def test_a_failure_behind_the_door_is_a_500_with_an_id_over_http() -> None:
    async def check() -> httpx.Response:  # there is no platform behind this application at all
        async with _served(_app()) as (url, _), httpx.AsyncClient() as client:
            return await client.get(f"{url}/healthz")

    response = asyncio.run(check())
    assert response.status_code == 500 and response.json()["error_id"] in response.json()["detail"]
    assert "Traceback" not in response.text and "NoneType" not in response.text


def test_a_client_that_takes_nothing_is_let_go_and_one_that_reads_slowly_is_not() -> None:
    async def check() -> None:
        app = create_app(cast(service.Platform, None), limits=Limits(unread_s=0.5, keep_alive_s=0.1))
        ended: dict[str, bool] = {}

        async def endless(request: Request) -> Response:
            async def source() -> AsyncGenerator[bytes, None]:
                ended[request.url.query] = False
                try:
                    while True:
                        yield b"x" * 65_536
                finally:
                    ended[request.url.query] = True

            stopping = app.state.context.stopping
            return EventStream(source(), stopping=stopping, keep_alive_s=0.1, check=_good, held=nullcontext())

        app.add_route("/endless", endless)
        async with _served(app) as (url, _):
            port = int(url.rpartition(":")[2])
            (_, deaf), (reader, slow) = [
                await asyncio.open_connection("127.0.0.1", port, limit=1 << 16) for _ in range(2)
            ]
            for writer, name in ((deaf, b"deaf"), (slow, b"slow")):
                writer.write(b"GET /endless?%b HTTP/1.1\r\nHost: a\r\n\r\n" % name)
            async with asyncio.timeout(60):
                while not ended.get("deaf"):
                    await reader.readexactly(1 << 16)
                    await asyncio.sleep(0.02)
                assert ended["slow"] is False
                await reader.readexactly(1 << 20)
            for writer in (deaf, slow):
                writer.transport.abort()

    asyncio.run(check())


async def _good() -> None:
    return None
