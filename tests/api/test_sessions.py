"""Sessions of the page: a cookie that no script reads, that no other site can use, and that ends with its token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fairlead.api.limits import Limits
from tests.api.conftest import Served, Team
from tests.waiting import until

OURS = {"X-Fairlead-Page": "1"}


@pytest.fixture
def browser(platform_server: Served) -> Iterator[httpx.Client]:
    """A client as a browser is: it keeps cookies and says where its page is from."""
    with platform_server.caller(None) as client:
        client.headers["Origin"] = platform_server.url
        yield client


def log_in(browser: httpx.Client, token: str) -> httpx.Response:
    return browser.post("/api/v1/session", json={"token": token})


def cookie_of(response: httpx.Response) -> dict[str, str]:
    parts = (part.partition("=") for part in response.headers["set-cookie"].split("; "))
    return {name.lower(): value for name, _, value in parts}


def test_a_token_becomes_a_cookie_that_opens_what_the_token_opens(browser: httpx.Client, alpha: Team) -> None:
    assert browser.get("/api/v1/session").status_code == 401
    made = log_in(browser, alpha.tokens["member"])
    assert made.status_code == 201 and made.json()["role"] == "member" and made.json()["tenant"] == "alpha"
    assert browser.get("/api/v1/session").json() == made.json()
    assert {job["tenant"] for job in browser.get("/api/v1/jobs").json()["items"]} <= {"alpha"}
    assert browser.get("/api/v1/audit").status_code == 403


def test_the_cookie_is_closed_to_scripts_and_to_other_sites_and_is_not_the_token(
    browser: httpx.Client, alpha: Team
) -> None:
    made = log_in(browser, alpha.tokens["viewer"])
    cookie = cookie_of(made)
    assert "httponly" in cookie and cookie["samesite"] == "strict" and cookie["path"] == "/" and "domain" not in cookie
    assert 0 < int(cookie["max-age"]) <= 12 * 3600 and "secure" not in cookie  # no TLS here: else it would be lost
    assert alpha.tokens["viewer"] not in str(made.headers) and made.headers["cache-control"] == "no-store"
    assert len(next(iter(browser.cookies.jar)).value or "") >= 40


def test_logging_out_ends_the_session_for_whoever_kept_the_cookie(browser: httpx.Client, alpha: Team) -> None:
    log_in(browser, alpha.tokens["viewer"])
    kept = dict(browser.cookies)
    gone = browser.delete("/api/v1/session", headers=OURS)
    assert gone.status_code == 204 and cookie_of(gone)["max-age"] == "0" and not dict(browser.cookies)
    browser.cookies.update(kept)
    assert browser.get("/api/v1/session").status_code == 401


def test_a_session_ends_with_its_token(browser: httpx.Client, admin: httpx.Client) -> None:
    made = admin.post("/api/v1/tokens", json={"tenant": None, "role": "admin", "label": "short"}).json()
    log_in(browser, made["token"])
    with browser.stream("GET", "/api/v1/events/stream", params={"after": -1}) as stream:
        assert admin.delete(f"/api/v1/tokens/{made['id']}").status_code == 200
        assert browser.get("/api/v1/nodes").status_code == 401
        assert '"code":"unauthenticated"' in "".join(stream.iter_text())  # it ends by itself


def test_a_token_that_expires_takes_its_sessions_with_it(browser: httpx.Client, admin: httpx.Client) -> None:
    made = admin.post("/api/v1/tokens", json={"role": "admin", "label": "brief", "expires_s": 1.5}).json()
    assert int(cookie_of(log_in(browser, made["token"]))["max-age"]) <= 1
    secret = dict(browser.cookies)
    browser.cookies.clear()
    with httpx.Client(base_url=browser.base_url, cookies=secret) as kept:  # a browser that ignores the age
        until(lambda: kept.get("/api/v1/session").status_code == 401)


CHANGES: list[dict[str, Any]] = [
    {"headers": {}},
    {"headers": OURS, "origin": None},
    {"headers": OURS, "origin": "null"},
    {"headers": OURS, "origin": "http://evil.example"},
    {"headers": OURS, "origin": "http://127.0.0.1:1"},
    {"headers": OURS, "origin": "http://127.0.0.1:none"},
]


@pytest.mark.parametrize("attempt", CHANGES, ids=str)
def test_a_change_by_cookie_must_come_from_our_own_page(
    browser: httpx.Client, alpha: Team, attempt: dict[str, Any]
) -> None:
    log_in(browser, alpha.tokens["member"])
    if "origin" in attempt:
        del browser.headers["Origin"]
        if attempt["origin"]:
            browser.headers["Origin"] = attempt["origin"]
    body = {"name": "forged", "command": ["true"]}
    assert browser.post("/api/v1/jobs", json=body, headers=attempt["headers"]).status_code == 403
    assert not alpha.member.get("/api/v1/jobs", params={"name": "forged"}).json()["items"]


def test_our_own_page_may_change_what_its_role_may(browser: httpx.Client, alpha: Team) -> None:
    log_in(browser, alpha.tokens["member"])
    made = browser.post("/api/v1/jobs", json={"name": "by-page", "command": ["true"]}, headers=OURS)
    assert made.status_code == 201
    assert browser.post("/api/v1/nodes/node-0/cordon", headers=OURS).status_code == 403


def test_a_bearer_request_needs_neither_header_nor_origin(alpha: Team) -> None:
    body = {"name": "by-bearer", "command": ["true"]}
    assert alpha.member.post("/api/v1/jobs", json=body, headers={"Origin": "http://evil.example"}).status_code == 201


def test_another_site_cannot_log_a_browser_in(browser: httpx.Client, alpha: Team) -> None:
    browser.headers["Origin"] = "http://evil.example"
    refused = log_in(browser, alpha.tokens["viewer"])
    assert refused.status_code == 403 and "set-cookie" not in refused.headers


def test_a_cookie_that_nobody_gave_out_opens_nothing(browser: httpx.Client, platform_server: Served) -> None:
    name = f"fairlead_{platform_server.url.rpartition(':')[2]}"
    for value in ("x", "A" * 43, "A" * 5000, "%00", '"'):
        assert browser.get("/api/v1/nodes", headers={"Cookie": f"{name}={value}"}).status_code == 401


def test_who_guesses_tokens_is_slowed_down_and_who_logs_in_is_not(platform_server: Served, alpha: Team) -> None:
    with platform_server.caller(None, tight=True) as guesser:
        for _ in range(20):
            assert log_in(guesser, alpha.tokens["viewer"]).status_code in (201, 429)  # its token's own rate
        answers = [log_in(guesser, f"fl_{'a' * 10}_{'b' * 48}") for _ in range(12)]
        assert [answer.status_code for answer in answers][:10] == [401] * 10
        assert answers[-1].status_code == 429 and int(answers[-1].headers["retry-after"]) >= 1
        assert log_in(guesser, alpha.tokens["viewer"]).status_code == 429


def test_logins_stand_in_the_audit_log(browser: httpx.Client, admin: httpx.Client, alpha: Team) -> None:
    made = alpha.admin.post("/api/v1/tokens", json={"role": "viewer"}).json()
    who = log_in(browser, made["token"]).json()["token"]
    browser.delete("/api/v1/session", headers=OURS)
    last = max(entry["id"] for entry in admin.get("/api/v1/audit", params={"limit": 1000}).json())
    entries = admin.get("/api/v1/audit", params={"after": last - 2}).json()
    assert [(entry["actor"], entry["action"]) for entry in entries] == [(who, "session.open"), (who, "session.close")]


def test_who_logs_in_and_out_all_the_time_does_not_fill_the_audit_log(
    browser: httpx.Client, admin: httpx.Client, alpha: Team
) -> None:
    made = alpha.admin.post("/api/v1/tokens", json={"role": "viewer"}).json()
    for _ in range(20):
        assert log_in(browser, made["token"]).status_code == 201
        assert browser.delete("/api/v1/session", headers=OURS).status_code == 204
    entries = admin.get("/api/v1/audit", params={"actor": made["id"]}).json()
    assert [entry["action"] for entry in entries] == ["session.open", "session.close"]


def test_no_token_logs_in_more_often_than_a_person_would(
    browser: httpx.Client, alpha: Team, platform_server: Served
) -> None:
    made = alpha.admin.post("/api/v1/tokens", json={"role": "viewer"}).json()
    answers = [log_in(browser, made["token"]) for _ in range(2 * Limits().logins)]
    assert answers[0].status_code == 201 and answers[-1].status_code == 429
    assert "too many logins with this token" in answers[-1].text and "set-cookie" not in answers[-1].headers
    with platform_server.caller(made["token"]) as caller:
        assert caller.get("/api/v1/whoami").status_code == 200, "the token itself works on"


def test_the_page_and_its_parts_are_served_with_a_strict_policy(browser: httpx.Client) -> None:
    for place, kind in (("/", "text/html"), ("/ui/main.js", "text/javascript"), ("/ui/css/base.css", "text/css")):
        response = browser.get(place)
        assert response.status_code == 200 and response.headers["content-type"].startswith(kind), place
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "http" not in policy and response.headers["cache-control"] == "no-cache"
        again = browser.get(place, headers={"If-None-Match": response.headers["etag"]})
        assert again.status_code == 304 or place == "/"
    for place in ("/ui/../__init__.py", "/ui/%2e%2e/__init__.py", "/ui/nothing.js", "/ui/", "/nothing"):
        missing = browser.get(place)
        assert missing.status_code == 404 and missing.headers["content-type"] == "application/problem+json", place


def test_every_answer_carries_the_strict_headers(browser: httpx.Client) -> None:
    for place in ("/", "/ui/main.js", "/healthz", "/api/v1/jobs", "/nothing"):
        headers = browser.get(place).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and "camera=()" in headers["permissions-policy"]
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert "strict-transport-security" not in headers  # no TLS here
