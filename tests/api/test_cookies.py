"""The page's cookie: whose it is, what TLS makes of it, and which origins are ours."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx
import pytest
from fastapi import Request, Response

from fairlead.api import cookies
from fairlead.api.app import create_app
from fairlead.control import service
from fairlead.control.records import Role, Token
from fairlead.errors import Forbidden
from fairlead.views.jobs import WhoAmI


def asked(url: str, **headers: str) -> Request:
    scheme, _, host = url.partition("://")
    sent = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    return Request({"type": "http", "method": "POST", "scheme": scheme, "path": "/", "query_string": b"",
                    "headers": raw, "server": ("10.0.0.1", 9)})  # fmt: skip


def test_over_tls_the_cookie_is_for_tls_and_for_this_host_only() -> None:
    request, response = asked("https://fair.example"), Response()
    cookies.give(request, response, "secret", 60.0)
    said = response.headers["set-cookie"]
    assert said.startswith("__Host-fairlead=secret;")
    assert all(word in said for word in ("Secure", "HttpOnly", "SameSite=strict", "Path=/", "Max-Age=60"))
    assert "Domain" not in said


def test_platforms_on_one_host_do_not_take_each_other_s_cookies() -> None:
    names = {cookies.cookie_name(asked(url)) for url in ("http://a", "http://a:81", "https://a", "https://a:81")}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8471", "http://127.0.0.1:8471"),
        ("https://fair.example", "https://fair.example"),
        ("https://fair.example", "https://fair.example:443"),
        ("http://fair.example", "https://fair.example"),  # a proxy ends TLS
        ("http://[::1]:8471", "http://[::1]:8471"),
    ],
)
def test_our_own_page_may_change_things(url: str, origin: str) -> None:
    cookies.require_our_page(asked(url, origin=origin, x_fairlead_page="1"))


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://fair.example", "http://fair.example"),  # who listens on the wire could have made that page
        ("http://fair.example", "http://fair.example.evil"),
        ("http://fair.example", "http://evil@fair.example:81"),
        ("http://fair.example", "http://fair.example:81"),
        ("http://fair.example:81", "http://fair.example"),
        ("http://fair.example", "null"),
        ("http://fair.example", ""),
        ("http://fair.example", "fair.example"),
        ("http://fair.example", "http://fair.example:port"),
        ("http://fair.example", "file://fair.example"),
    ],
)
def test_no_other_page_may(url: str, origin: str) -> None:
    with pytest.raises(Forbidden):
        cookies.require_our_page(asked(url, origin=origin, x_fairlead_page="1"))


def test_a_form_of_ours_is_not_enough_without_the_header() -> None:
    with pytest.raises(Forbidden, match="header"):
        cookies.require_our_page(asked("http://a", origin="http://a"))


class OneUser:
    """As much of a platform as it takes to log in."""

    bundle_limit_bytes = 0
    who = Token("tok", "alpha", Role.VIEWER, "", "digest", 0.0)

    async def authenticate(self, secret: str) -> Token:
        return self.who

    async def open_session(self, who: Token) -> tuple[str, float]:
        return "secret", 60.0

    async def session(self, secret: str) -> Token:
        return self.who

    async def close_session(self, who: Token, secret: str) -> None:
        return None

    async def whoami(self, who: Token) -> WhoAmI:
        return WhoAmI(token=who.id, role=str(who.role), tenant=who.tenant, version="1")


def _through_a_proxy(secure: bool, origin: str, **headers: str) -> list[httpx.Response]:
    """What a browser is told that logs in and out; the proxy speaks plainly to us."""
    app = create_app(cast(service.Platform, OneUser()), secure=secure)

    async def browse() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fair.example") as proxy:
            proxy.headers.update({"origin": origin, "x-fairlead-page": "1"} | headers)
            made = await proxy.post("/api/v1/session", json={"token": "fl_x"})
            cookie = made.headers.get("set-cookie", "").partition(";")[0]
            return [made, await proxy.delete("/api/v1/session", headers={"cookie": cookie})]

    return asyncio.run(browse())


def test_behind_a_proxy_that_speaks_tls_the_cookie_is_for_tls_only() -> None:
    made, gone = _through_a_proxy(True, "https://fair.example")
    assert made.status_code == 201 and made.headers["set-cookie"].startswith("__Host-fairlead=secret;")
    assert "Secure" in made.headers["set-cookie"] and "max-age" in made.headers["strict-transport-security"]
    assert gone.status_code == 204 and "Secure" in gone.headers["set-cookie"], "it is known again, and taken back"


def test_behind_a_proxy_that_speaks_tls_a_plain_page_is_not_ours() -> None:
    made, _ = _through_a_proxy(True, "http://fair.example")
    assert made.status_code == 403 and "set-cookie" not in made.headers


def test_no_header_makes_a_plain_platform_believe_in_tls() -> None:
    says_so = {"x-forwarded-proto": "https", "forwarded": "proto=https"}
    made, _ = _through_a_proxy(False, "http://fair.example", **says_so)
    assert made.headers["set-cookie"].startswith("fairlead=") and "Secure" not in made.headers["set-cookie"]
    assert "strict-transport-security" not in made.headers
