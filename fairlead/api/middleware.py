"""ASGI middleware around the routes: body size limit, security headers, and answers to internal errors."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable

import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.api.problems import MalformedBody, failure_response, problem_response
from fairlead.errors import TooLarge

DRAINED_BYTES = 8 * 1024 * 1024
"""Bytes of an oversized body that are still read: most clients read the answer only after sending their body."""

_EVERYWHERE = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
    (b"permissions-policy", b"camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
SECURITY_HEADERS = (
    *_EVERYWHERE,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
PAGE_HEADERS = (
    *_EVERYWHERE,
    # No inline scripts, no other origins, no eval, and no strings as markup.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"cache-control", b"no-cache"),  # cached, but revalidated: the page must match the API's version
)
OVER_TLS = ((b"strict-transport-security", b"max-age=31536000"),)

log = structlog.get_logger(__name__)


class OuterLayer:
    """Adds security headers, refuses null characters, and answers internal errors with an id.

    ``secure``: browsers use TLS, directly or through a proxy. Configured by the operator and not read from headers,
    which any client can send. Cookies are then for TLS only, and only https counts as our own origin.
    """

    def __init__(self, app: ASGIApp, *, secure: bool = False) -> None:
        self._app, self._secure = app, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        if self._secure:
            scope["scheme"] = "https"

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_headers(scope)]
            await send(message)

        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            error = MalformedBody("holds a null character", field="url", fix="remove %00 from the URL")
            await problem_response(error)(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.info("client disconnected", method=scope["method"], path=scope["path"])
        except Exception:  # noqa: BLE001 (the edge of the process: every failure gets an answer)
            error_id = uuid.uuid4().hex[:12]
            trace = traceback.format_exc()  # formatted here: a log renderer may add local variables, such as secrets
            log.error("request failed", error_id=error_id, method=scope["method"], path=scope["path"], trace=trace)
            if not started:
                await failure_response(error_id)(scope, receive, send_with_headers)


def _headers(scope: Scope) -> tuple[tuple[bytes, bytes], ...]:
    path = scope["path"]
    chosen = PAGE_HEADERS if path == "/" or path.startswith("/ui/") else SECURITY_HEADERS
    return chosen + OVER_TLS if scope.get("scheme") == "https" else chosen


class BodyLimit:
    """Refuses oversized bodies: at once by Content-Length, else when the limit is exceeded."""

    def __init__(self, app: ASGIApp, limit_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._limit_bytes = limit_bytes  # of a path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, seen = self._limit_bytes(scope["path"]), 0
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            await _drain(receive)
            await problem_response(_too_large(limit, int(declared)))(scope, receive, send)
            return

        async def counted_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                if message.get("more_body"):
                    await _drain(receive)
                raise _too_large(limit, None)
            return message

        await self._app(scope, counted_receive, send)


def _too_large(limit: int, size: int | None) -> TooLarge:
    given = f"{size} bytes" if size is not None else "the body"
    fix = "send less; exclude data and results of a folder with .fairleadignore"
    return TooLarge(f"{given} exceeds the limit of {limit} bytes", field="body", value=size, fix=fix)


async def _drain(receive: Receive) -> None:
    drained = 0
    while drained <= DRAINED_BYTES:
        message = await receive()
        drained += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return
