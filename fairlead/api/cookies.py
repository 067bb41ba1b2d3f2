"""The web page's session cookie, and the check that a request by cookie comes from our own page (CSRF)."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request, Response

from fairlead.errors import Forbidden

PAGE_HEADER = "X-Fairlead-Page"
"""Only scripts of our own origin can set this header: for other sites the browser would need permission (CORS)."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443}


def cookie_name(request: Request) -> str:
    """The cookie's name, which includes the port: cookies ignore ports, and one machine may run several platforms.

    Over TLS, the ``__Host-`` prefix makes browsers refuse cookies set by other hosts.
    """
    port = request.url.port
    name = "fairlead" if port is None else f"fairlead_{port}"
    return f"__Host-{name}" if request.url.scheme == "https" else name


def session_secret(request: Request) -> str | None:
    """The session secret from the cookie, not yet verified; None without a cookie."""
    secret = request.cookies.get(cookie_name(request), "")
    return secret if 0 < len(secret) <= 128 and secret.isascii() else None


def give(request: Request, response: Response, secret: str, seconds: float) -> None:
    """Set the session cookie: unreadable for scripts and sent only from our own page."""
    response.set_cookie(
        cookie_name(request), secret, max_age=int(seconds), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def take_back(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def require_our_page(request: Request) -> None:
    """Raise Forbidden unless a script of our own page sent this changing request."""
    require_our_origin(request, needed=True)
    if PAGE_HEADER not in request.headers:
        raise Forbidden("changes by cookie need this header", field=PAGE_HEADER, fix=f"send {PAGE_HEADER}: 1")


def require_our_origin(request: Request, *, needed: bool) -> None:
    """Raise Forbidden if the Origin header names another site, or is needed and missing."""
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
    except ValueError:  # an invalid port
        return False
    # Behind a TLS proxy the browser sends https where we see http, never the reverse.
    if theirs.scheme not in {"https", ours.scheme} or theirs.hostname != ours.hostname:
        return False
    return their_port in {ours.port or _PORTS.get(ours.scheme), ours.port or _PORTS.get(theirs.scheme)}
