"""The outermost layers around any application: sizes of bodies, security headers, the last catch."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from fairlead.api.middleware import SECURITY_HEADERS, BodyLimit, OuterLayer, _headers
from fairlead.api.problems import problem_response
from fairlead.errors import FairleadError, TooLarge

LIMIT = 100


async def echo_size(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads all of its body, and answers errors as ours does."""
    try:
        body = await Request(scope, receive).body()
    except FairleadError as error:
        await problem_response(error)(scope, receive, send)
        return
    await Response(str(len(body)))(scope, receive, send)


def call(app: ASGIApp, *chunks: bytes, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes, int]:
    """Status, headers and body of the answer, and how many of the chunks were read."""
    sent: list[Any] = []
    left = list(chunks) or [b""]
    total = len(left)

    async def receive() -> Any:
        if not left:
            return {"type": "http.disconnect"}
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "POST", "path": "/x", "query_string": b"", "headers": raw}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    answer = {name.decode(): value.decode() for name, value in sent[0]["headers"]} if sent else {}
    body = b"".join(message.get("body", b"") for message in sent)
    return (sent[0]["status"] if sent else 0), answer, body, total - len(left)


limited = BodyLimit(echo_size, limit_bytes=lambda path: LIMIT)


def test_a_body_up_to_the_limit_passes() -> None:
    assert call(limited, b"x" * LIMIT, headers={"content-length": str(LIMIT)})[::2] == (200, b"100")
    assert call(limited, b"x" * 60, b"x" * 40)[::2] == (200, b"100")


def test_a_body_that_says_it_is_too_large_is_refused_before_the_application_sees_it() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("was called")

    status, headers, body, _ = call(
        BodyLimit(never, limit_bytes=lambda path: LIMIT), b"x" * 101, headers={"content-length": "101"}
    )
    problem = json.loads(body)
    assert status == 413 and headers["content-type"] == "application/problem+json"
    assert problem["code"] == "too-large" and problem["field"] == "body" and problem["value"] == 101 and problem["fix"]


def test_a_body_that_turns_out_too_large_is_refused_as_soon_as_it_is() -> None:
    status, _, body, read = call(limited, *[b"x" * 30] * 6)
    assert status == 413 and json.loads(body)["code"] == "too-large"
    assert read == 6  # the rest is read and dropped, so that the client comes to read the answer


def test_a_body_that_lies_about_its_length_is_refused_all_the_same() -> None:
    assert call(limited, b"x" * 101, headers={"content-length": "5"})[0] == 413


def test_an_endless_body_is_not_read_for_ever() -> None:
    chunk = b"x" * (1 << 20)
    status, _, _, read = call(limited, *[chunk] * 50)
    assert status == 413 and read < 15


def test_the_limit_may_depend_on_the_path() -> None:
    asked: list[str] = []

    def limit(path: str) -> int:
        asked.append(path)
        return LIMIT

    call(BodyLimit(echo_size, limit_bytes=limit), b"")
    assert asked == ["/x"]


def test_every_answer_carries_the_security_headers() -> None:
    _, headers, _, _ = call(OuterLayer(echo_size), b"abc")
    for name, value in SECURITY_HEADERS:
        assert headers[name.decode()] == value.decode()


def test_over_tls_browsers_are_told_to_insist_on_it() -> None:
    assert _headers({"path": "/", "scheme": "https"})[-1][0] == b"strict-transport-security"
    assert b"strict-transport-security" not in dict(_headers({"path": "/", "scheme": "http"}))


def test_a_failure_of_our_own_shows_an_id_and_no_trace() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret detail")

    with capture_logs() as logged:
        status, headers, body, _ = call(OuterLayer(broken))
    problem = json.loads(body)
    assert status == 500 and headers["content-type"] == "application/problem+json" and "x-frame-options" in headers
    assert b"secret detail" not in body and b"Traceback" not in body and b"RuntimeError" not in body
    (entry,) = logged
    assert (
        entry["error_id"] == problem["error_id"]
        and entry["error_id"] in problem["detail"]
        and "secret detail" in entry["trace"]
    )


def test_a_failure_in_the_middle_of_an_answer_sends_no_second_one() -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("too late")

    with capture_logs() as logged:
        status, _, body, _ = call(OuterLayer(half))
    assert status == 200 and body == b"" and len(logged) == 1


def test_a_client_that_goes_is_no_failure() -> None:
    async def left_alone(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    with capture_logs() as logged:
        call(OuterLayer(left_alone))
    assert [entry["log_level"] for entry in logged] == ["info"]


def test_cancelling_a_request_is_not_swallowed() -> None:
    async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        call(OuterLayer(cancelled))


def test_the_error_says_what_the_limit_is() -> None:
    _, _, body, _ = call(limited, b"x" * 500)
    error = FairleadError.from_problem(json.loads(body))
    assert isinstance(error, TooLarge) and "100" in error.message
