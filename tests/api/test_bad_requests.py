"""Bad requests: each gets a 4xx problem that names what is wrong, and none gets further."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served, Team

GOOD: dict[str, Any] = {"name": "good", "command": ["true"]}
DIGEST = "sha256:" + "0" * 64


def _spec(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


BAD_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"command": ["true"]}, "name"),
    (_spec(name=""), "name"),
    (_spec(name="Has Spaces"), "name"),
    (_spec(name="x" * 41), "name"),
    (_spec(name=5), "name"),
    (_spec(name=None), "name"),
    (_spec(name="../../etc"), "name"),
    (_spec(name="a\nb"), "name"),
    (_spec(colour="red"), "colour"),
    (_spec(apiVersion="fairlead/v9"), "apiVersion"),
    (_spec(kind="Tenant"), "kind"),
    ({"name": "nothing"}, "run"),
    (_spec(run="train.py:training"), "command"),
    (_spec(command=[]), "command"),
    (_spec(command=[""]), "command"),
    (_spec(command="python train.py"), "command"),
    (_spec(command=[1, 2]), "command.0"),
    ({"name": "a", "run": "train.py"}, "run"),
    ({"name": "a", "run": "/etc/x.py:f"}, "run"),
    ({"name": "a", "run": "../x.py:f"}, "run"),
    ({"name": "a", "run": "x.py:not a name"}, "run"),
    ({"name": "a", "run": "x.py:f"}, "code"),
    (_spec(params={"lr": 1}), "params"),
    ({"name": "a", "run": "x.py:f", "params": {"seed": 10**3999}}, "params.seed"),
    ({"name": "a", "run": "x.py:f", "params": {"a": {"k" * 300: 1}}}, "params.a"),
    (_spec(env={"A" * 300: "x"}), "env"),
    (_spec(command=["x" * 200_000]), "command.0"),
    (_spec(venv="/nowhere/at/all"), "venv"),
    (_spec(venv="/etc"), "venv"),
    (_spec(venv="/" + 300 * "x"), "venv"),
    (_spec(workers=0), "workers.min"),
    (_spec(workers=-1), "workers.min"),
    (_spec(workers="4:1"), "workers"),
    (_spec(workers="many"), "workers"),
    (_spec(workers=True), "workers"),
    (_spec(workers=1.5), "workers"),
    (_spec(workers={"min": 1, "most": 4}), "workers.most"),
    (_spec(workers=5000), "workers"),
    (_spec(resources={"cpu": -1}), "resources.cpu"),
    (_spec(resources={"cpu": "much"}), "resources.cpu"),
    (_spec(resources={"memory": "12 parsecs"}), "resources.memory"),
    (_spec(resources={"gpu": -1}), "resources.gpu"),
    (_spec(resources={"disk": 1}), "resources.disk"),
    (_spec(resources={"device": "a100"}), "resources.device"),
    (_spec(resources={"memory": "900TB"}), "resources.memory"),
    (_spec(resources=[]), "resources"),
    (_spec(sla={"class": "platinum"}), "sla.class"),
    (_spec(sla={"class": "gold", "deadline": "2h"}), "sla"),
    (_spec(sla={"deadline": "soon"}), "sla.deadline"),
    (_spec(sla={"deadline": "2030-01-01T00:00:00"}), "sla"),
    (_spec(sla={"deadline": "0s"}), "sla"),
    (_spec(sla={"deadline": "2020-01-01T00:00:00Z"}), "sla.deadline"),
    (_spec(env={"FAIRLEAD_JOB": "x"}), "env.FAIRLEAD_JOB"),
    (_spec(secrets=["lower"]), "secrets.0"),
    (_spec(priority=1001), "priority"),
    (_spec(priority="high"), "priority"),
    (_spec(env={"9LIVES": "x"}), "env"),
    (_spec(env={"A": 1}), "env.A"),
    (_spec(env=["A=1"]), "env"),
    (_spec(retries=-1), "retries"),
    (_spec(retries=101), "retries"),
    (_spec(silence_timeout="a while"), "silence_timeout"),
    (_spec(labels={"k" * 64: "v"}), "labels"),
    (_spec(labels={str(n): "v" for n in range(65)}), "labels"),
    (_spec(labels={"a": 1}), "labels.a"),
    (_spec(code="md5:abc"), "code"),
    (_spec(code=DIGEST), "code"),
    (_spec(tenant="nobody"), "tenant"),
    (_spec(tenant="UPPER"), "tenant"),
]


@pytest.mark.parametrize(("spec", "field"), BAD_SPECS, ids=lambda part: str(part)[:60])
def test_a_bad_spec_is_refused_with_the_field_that_is_wrong(alpha: Team, spec: dict[str, Any], field: str) -> None:
    response = alpha.member.post("/api/v1/jobs", json=spec)
    problem = _problem(response)
    assert problem["field"].startswith(field), problem
    assert problem["fix"] and problem["detail"], problem


def test_no_bad_spec_became_a_job(alpha: Team) -> None:
    for spec, _ in BAD_SPECS:
        alpha.member.post("/api/v1/jobs", json=spec)
    listed = alpha.member.get("/api/v1/jobs", params={"limit": 1000}).json()["items"]
    assert not {job["name"] for job in listed} & {"good", "a", "nothing"}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"5", b"name: yaml", b'{"name": NaN}', b"\xff\xfe", b'{"name": "\xff"}',
        b'{"name": "a"} trailing', b'{"name": "a", "priority": 1e999}', b"[" * 100_000, b'{"a":' * 50_000,
        b'{"name": "a", "command": ["tr\\u0000ue"]}',
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
@pytest.mark.parametrize(
    "place", ["POST /jobs", "POST /jobs/dry-run", "POST /tenants", "POST /tokens", "PATCH /tenants/alpha"]
)
def test_what_is_no_json_object_is_refused_wherever_one_is_expected(
    admin: httpx.Client, alpha: Team, place: str, body: bytes
) -> None:
    method, path = place.split()
    problem = _problem(admin.request(method, f"/api/v1{path}", content=body))
    assert problem["status"] in (400, 422) and problem["detail"]


BAD_PARAMETERS = [
    ("GET", "/jobs?limit=0", "limit"),
    ("GET", "/jobs?limit=1001", "limit"),
    ("GET", "/jobs?limit=ten", "limit"),
    ("GET", "/jobs?limit=", "limit"),
    ("GET", "/jobs?limt=10", "limt"),
    ("GET", "/jobs?state=sleeping", "state"),
    ("GET", "/jobs?order=random", "order"),
    ("GET", "/jobs?tenant=beta", "tenant"),
    ("GET", "/jobs?name=" + "x" * 300, "name"),
    ("GET", "/jobs/" + "x" * 300, "job"),
    ("GET", "/jobs/no-such-job/logs?tail=-1", "tail"),
    ("GET", "/jobs/no-such-job/logs?rank=-1", "rank"),
    ("GET", "/jobs/no-such-job/logs?rank=0&worker=w0", "rank"),
    ("GET", "/jobs/no-such-job/logs?follow=perhaps", "follow"),
    ("GET", "/events?after=x", "after"),
    ("GET", "/events?after=99999999999999999999999", "after"),
    ("GET", "/events?limit=100000", "limit"),
    ("GET", "/events/stream?after=1.5", "after"),
    ("GET", "/events/stream?since=3", "since"),
    ("PUT", "/bundles/md5:abc", "digest"),
    ("PUT", f"/bundles/{DIGEST}?owner=x", "owner"),
    ("PUT", f"/bundles/{DIGEST}", "digest"),
    ("PUT", f"/bundles/{DIGEST}?tenant=beta", "tenant"),
]


@pytest.mark.parametrize(("method", "path", "field"), BAD_PARAMETERS, ids=lambda part: str(part)[:50])
def test_a_bad_parameter_is_refused_by_name(alpha: Team, method: str, path: str, field: str) -> None:
    content = b"not what the digest says" if method == "PUT" else None
    assert _problem(alpha.member.request(method, f"/api/v1{path}", content=content))["field"] == field


@pytest.mark.parametrize(
    ("headers", "path", "field"),
    [
        ({"Idempotency-Key": ""}, "/jobs", "Idempotency-Key"),
        ({"Idempotency-Key": "k" * 256}, "/jobs", "Idempotency-Key"),
        ({"Idempotency-Key": "caf\xe9"}, "/jobs", "Idempotency-Key"),
        ({"Idempotency-Key": ""}, "/jobs/{job}/rerun", "Idempotency-Key"),
        ({"Idempotency-Key": "k" * 256}, "/jobs/{job}/rerun", "Idempotency-Key"),
        ({"Last-Event-ID": "x"}, "/events/stream", "Last-Event-ID"),
        ({"Last-Event-ID": "-4"}, "/events/stream", "Last-Event-ID"),
        ({"Last-Event-ID": "9" * 30}, "/events/stream", "Last-Event-ID"),
        ({"Last-Event-ID": "x"}, "/jobs/{job}/logs?follow=true", "Last-Event-ID"),
        ({"Last-Event-ID": '{"w0": -1}'}, "/jobs/{job}/logs?follow=true", "Last-Event-ID"),
        ({"Last-Event-ID": '["w0"]'}, "/jobs/{job}/logs?follow=true", "Last-Event-ID"),
    ],
)
def test_a_bad_header_is_refused_by_name(
    alpha: Team, waiting: dict[str, Any], headers: dict[str, str], path: str, field: str
) -> None:
    method = "POST" if path.endswith(("/jobs", "/rerun")) else "GET"
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    place = f"/api/v1{path}".replace("{job}", waiting["id"])
    content = json.dumps(GOOD).encode() if method == "POST" else None
    assert _problem(alpha.member.request(method, place, headers=raw, content=content))["field"] == field


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/tenants", {"name": "gamma", "weight": 0}, "weight"),
        ("POST", "/tenants", {"name": "gamma", "weight": -1}, "weight"),
        ("POST", "/tenants", {"name": "gamma", "weight": "heavy"}, "weight"),
        ("POST", "/tenants", {"name": "gamma", "quota": 0}, "quota"),
        ("POST", "/tenants", {"name": "gamma", "quota": 1.5}, "quota"),
        ("POST", "/tenants", {"name": "gamma", "sla": {"class": "wood"}}, "sla.class"),
        ("POST", "/tenants", {"name": "Gamma!"}, "name"),
        ("POST", "/tenants", {"weight": 1}, "name"),
        ("POST", "/tenants", {"name": "gamma", "colour": "red"}, "colour"),
        ("PATCH", "/tenants/alpha", {}, "body"),
        ("PATCH", "/tenants/alpha", {"name": "omega"}, "name"),
        ("PATCH", "/tenants/alpha", {"weight": None}, "weight"),
        ("PATCH", "/tenants/alpha", {"quota": "all"}, "quota"),
        ("PATCH", "/tenants/nobody", {"weight": 2}, "tenant"),
        ("POST", "/tokens", {"tenant": "alpha", "role": "king"}, "role"),
        ("POST", "/tokens", {"tenant": "nobody", "role": "member"}, "tenant"),
        ("POST", "/tokens", {"role": "member"}, "tenant"),
        ("POST", "/tokens", {"tenant": "alpha", "role": "admin"}, "role"),
        ("POST", "/tokens", {"tenant": "alpha", "label": "x" * 101}, "label"),
        ("POST", "/tokens", {"tenant": "alpha", "expires_s": 0}, "expires_s"),
        ("POST", "/tokens", {"tenant": "alpha", "expires_s": "later"}, "expires_s"),
        ("POST", "/tokens", {"tenant": "alpha", "secret": "mine"}, "secret"),
    ],
)  # fmt: skip
def test_bad_tenants_and_tokens_are_refused_by_field(
    admin: httpx.Client, alpha: Team, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    problem = _problem(admin.request(method, f"/api/v1{path}", json=body))
    assert problem["field"] == field and problem["fix"], problem


def test_a_cursor_that_is_none_of_ours_is_refused(alpha: Team) -> None:
    problem = _problem(alpha.member.get("/api/v1/jobs?cursor=nonsense"))
    assert problem["status"] == 422 and "nonsense" in json.dumps(problem)


def test_a_second_tenant_of_the_same_name_is_a_conflict(admin: httpx.Client, alpha: Team) -> None:
    assert _problem(admin.post("/api/v1/tenants", json={"name": alpha.name}))["status"] == 409


@pytest.mark.parametrize(
    "path",
    ["/jobs/nothing", "/jobs/nothing/why", "/jobs/nothing/logs", "/jobs/nothing/logs?follow=true",
     "/jobs/nothing/metrics", "/jobs/nothing/result", "/jobs/nothing/artifacts/x", "/tenants/nobody",
     "/events?job=nothing", "/events/stream?job=nothing"],
)  # fmt: skip
def test_what_is_not_there_is_a_404(admin: httpx.Client, path: str) -> None:
    assert _problem(admin.get(f"/api/v1{path}"))["status"] == 404


@pytest.mark.parametrize("path", ["/jobs/nothing/cancel", "/nodes/nowhere/cordon", "/nodes/nowhere/drain"])
def test_what_is_not_there_cannot_be_changed(admin: httpx.Client, path: str) -> None:
    assert _problem(admin.post(f"/api/v1{path}"))["status"] == 404


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "..%2f..%2fsecret", "/etc/passwd", "no-such-file", "%2e%2e", "a/b"]
)
def test_an_artifact_s_name_leads_nowhere_else(alpha: Team, finished: dict[str, Any], name: str) -> None:
    response = alpha.member.get(f"/api/v1/jobs/{finished['id']}/artifacts/{name}")
    assert 400 <= response.status_code < 500 and "root:" not in response.text


def test_a_huge_json_body_is_refused_whether_announced_or_not(alpha: Team) -> None:
    huge = json.dumps(_spec(labels={"a": "x" * 3_000_000})).encode()
    assert _problem(alpha.member.post("/api/v1/jobs", content=huge))["status"] == 413

    def pieces() -> Any:
        for start in range(0, len(huge), 65536):
            yield huge[start : start + 65536]

    problem = _problem(alpha.member.post("/api/v1/jobs", content=pieces()))
    assert problem["status"] == 413 and problem["field"] == "body"


def test_a_long_value_is_not_sent_back_whole(alpha: Team) -> None:
    response = alpha.member.post("/api/v1/jobs", json=_spec(name="x" * 500_000))
    assert _problem(response)["field"] == "name" and len(response.content) < 5000


def test_a_token_over_its_rate_is_told_when_to_come_again(platform_server: Served, alpha: Team, beta: Team) -> None:
    with platform_server.caller(alpha.tokens["viewer"], tight=True) as hasty:
        answers = [hasty.get("/api/v1/whoami") for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and {answer.status_code for answer in answers} == {200, 429}
    assert refused[0].json()["code"] == "rate-limited" and int(refused[0].headers["Retry-After"]) >= 1
    with platform_server.caller(beta.tokens["viewer"], tight=True) as calm:
        assert calm.get("/api/v1/whoami").status_code == 200


def _problem(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:500])
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code and problem["type"].startswith("urn:fairlead:error:")
    assert "Traceback" not in response.text
    return problem
