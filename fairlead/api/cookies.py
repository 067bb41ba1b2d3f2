"""The page's cookie, and how a request by cookie proves that our own page sent it (no other site may use it)."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request, Response

from fairlead.errors import Forbidden

PAGE_HEADER = "X-Fairlead-Page"
"""Only a script of our own origin can set it: for another site's the browser would have to be told that it may."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443}


def cookie_name(request: Request) -> str:
    """Cookies know no ports, and several platforms may live on one machine: each has a name of its own.

    Over TLS the prefix lets the browser refuse a cookie that anything but this very host has set.
    """
    port = request.url.port
    name = "fairlead" if port is None else f"fairlead_{port}"
    return f"__Host-{name}" if request.url.scheme == "https" else name


def session_secret(request: Request) -> str | None:
    """What the browser brought along, if anything; a proof of nothing yet."""
    secret = request.cookies.get(cookie_name(request), "")
    return secret if 0 < len(secret) <= 128 and secret.isascii() else None


def give(request: Request, response: Response, secret: str, seconds: float) -> None:
    """Let the browser keep the session where no script can read it, and bring it along from our own page only."""
    response.set_cookie(
        cookie_name(request), secret, max_age=int(seconds), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def take_back(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def require_our_page(request: Request) -> None:
    """Raise Forbidden unless this request, which changes something, comes from a script of our own page."""
    require_our_origin(request, needed=True)
    if PAGE_HEADER not in request.headers:
        raise Forbidden("a change by cookie needs this header", field=PAGE_HEADER, fix=f"send {PAGE_HEADER}: 1")


def require_our_origin(request: Request, *, needed: bool) -> None:
    """Raise Forbidden if the browser says that another site's page sent this, or if it must say and does not."""
    origin = request.headers.get("origin")
    if origin is None and not needed:
        return
    if origin is None or not _same(origin, request):
        fix = "use the page at the platform's own address, or a token in the Authorization header"
        raise Forbidden("does not match the address of this platform", field="Origin", value=origin, fix=fix)


def _same(origin: str, request: Request) -> bool:
    try:
        theirs, ours = urlsplit(origin), request.url
        their_port = theirs.port or _PORTS.get(theirs.scheme)
    except ValueError:  # a port that is none
        return False
    # Behind a proxy that ends TLS the browser says https where we hear http; never the other way round.
    if theirs.scheme not in {"https", ours.scheme} or theirs.hostname != ours.hostname:
        return False
    return their_port in {ours.port or _PORTS.get(ours.scheme), ours.port or _PORTS.get(theirs.scheme)}
