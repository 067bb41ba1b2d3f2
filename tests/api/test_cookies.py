"""The page's cookie: whose it is, what TLS makes of it, and which origins are ours."""

from __future__ import annotations

import pytest
from fastapi import Request, Response

from fairlead.api import cookies
from fairlead.errors import Forbidden


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
