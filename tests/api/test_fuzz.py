"""The API under schemathesis, from its own OpenAPI document, as every role: it never fails, and tells no stranger's.

In the suite a fixed seed and few examples; ``make fuzz`` tries hundreds per operation with seeds that nobody chose.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi import checks

from fairlead.api.app import create_app
from fairlead.control import service
from tests.api.conftest import load_table, serving
from tests.waiting import until

EXAMPLES = int(os.environ.get("FAIRLEAD_FUZZ_EXAMPLES", "0"))  # 0: the short mode of the suite
SEED = None if EXAMPLES else 4
NAME, HIDDEN = "canary-5e7c1f", "c4n4ry-9b3d7a52e1"  # in what another tenant named its job; in what it keeps in it
DIGEST = "sha256:" + hashlib.sha256(HIDDEN.encode()).hexdigest()
ENDED_JOB, RUNNING_JOB, PIPELINE, TOKEN = "the-ended-job", "the-running-job", "the-pipeline", "the-token"
"""Stand for the ids of the stranger's things, which are not known yet when the requests are made up."""

ROLES = ("admin", "tenant-admin", "member", "viewer", "scraper", "cookie", "none")
LONGEST_S = 20.0
TOO_LONG = "Invalid HTTP request received."
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]


@dataclass(frozen=True)
class Target:
    """A platform to be fuzzed, with a stranger's things on it."""

    url: str
    tokens: dict[str, str | None]
    ids: dict[str, str]  # of the stranger's things, by what stands for them until they are known
    cookies: dict[str, str]  # of the one who came by the page

    def log_in(self) -> None:
        answer = httpx.post(f"{self.url}/api/v1/session", json={"token": self.tokens["cookie"]}, timeout=30.0)
        self.cookies.update(dict(answer.cookies))

    def headers(self, role: str) -> dict[str, str]:
        """How somebody of this role says who it is."""
        if role == "cookie":
            sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            return {"Cookie": sent, "Origin": self.url, "X-Fairlead-Page": "1"}
        return {"Authorization": f"Bearer {self.tokens[role]}"} if self.tokens[role] else {}

    def aimed(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The request with the stranger's real ids in it."""
        for stand_in, real in self.ids.items():
            asked["url"] = asked["url"].replace(stand_in, real)
            if isinstance(asked.get("params"), dict):
                asked["params"] = {k: real if v == stand_in else v for k, v in asked["params"].items()}
        return asked


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with serving("fairlead-fuzz-", "--patient") as served, served.caller(served.token) as admin:
        yield _furnish(admin, served.url, served.token)


def _furnish(admin: httpx.Client, url: str, token: str) -> Target:
    """Two tenants: a stranger whose things all hold a canary, and the one that the fuzzer belongs to."""
    made = admin.post("/api/v1/tenants", json={"name": "stranger"}).json()["token"]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {made['token']}"}, timeout=60.0) as caller:
        ids = _plant(caller) | {TOKEN: made["id"]}
    load_table(url, made["token"], NAME, column=HIDDEN)
    admin.post("/api/v1/nodes/node-0/cordon")  # nothing that the fuzzer submits is run
    admin.post("/api/v1/nodes/node-1/cordon")
    tokens: dict[str, str | None] = {"admin": token, "none": None}
    tokens["tenant-admin"] = admin.post("/api/v1/tenants", json={"name": "fuzzer"}).json()["token"]["token"]
    for role in ("member", "viewer"):
        tokens[role] = admin.post("/api/v1/tokens", json={"tenant": "fuzzer", "role": role}).json()["token"]
    tokens["scraper"] = admin.post("/api/v1/tokens", json={"role": "scraper"}).json()["token"]
    by_page = admin.post("/api/v1/tokens", json={"tenant": "fuzzer", "role": "tenant-admin"})
    tokens["cookie"] = by_page.json()["token"]
    own = admin.post("/api/v1/jobs", json={"name": "own", "tenant": "fuzzer", "command": ["true"]}).json()["id"]
    assert admin.get(f"/api/v1/jobs/{own}").json()["state"] == "queued"
    target = Target(url, tokens, ids, {})
    target.log_in()
    assert target.cookies
    return target


def _plant(caller: httpx.Client) -> dict[str, str]:
    """Everything that a tenant can have; the ids of those things that are known by one."""
    caller.put("/api/v1/secrets/CANARY", json={"value": HIDDEN}).raise_for_status()
    caller.put(f"/api/v1/bundles/{DIGEST}", content=HIDDEN.encode()).raise_for_status()
    script = f'echo {HIDDEN}; echo {HIDDEN} > "$FAIRLEAD_OUTPUT/{HIDDEN}.txt"; '
    common = {"name": NAME, "labels": {"canary": HIDDEN}, "env": {"CANARY": HIDDEN}}
    ended = caller.post("/api/v1/jobs", json=common | {"command": ["sh", "-c", script]}).json()["id"]
    until(lambda: caller.get(f"/api/v1/jobs/{ended}").json()["state"] == "succeeded", timeout_s=120.0)
    running = caller.post("/api/v1/jobs", json=common | {"command": ["sh", "-c", script + "sleep 86400"]}).json()["id"]
    until(lambda: caller.get(f"/api/v1/jobs/{running}").json()["state"] == "running", timeout_s=120.0)
    stages = {HIDDEN: {"command": ["true"]}}
    pipeline = caller.post("/api/v1/pipelines", json={"name": NAME, "stages": stages}).raise_for_status().json()["id"]
    until(lambda: caller.get(f"/api/v1/pipelines/{pipeline}").json()["state"] == "succeeded", timeout_s=120.0)
    return {ENDED_JOB: ended, RUNNING_JOB: running, PIPELINE: pipeline}


@schemathesis.serializer("application/gzip")  # type: ignore[arg-type]
def _any_bytes(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _document() -> Any:
    document = json.loads(json.dumps(create_app(cast(service.Platform, None)).openapi()))
    del document["paths"]["/api/v1/shutdown"]  # it would do as it is told
    return document


def _operations() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in _document()["paths"].items() for method in methods]


def _schema(systematic: bool) -> Any:
    """The document as schemathesis sees it; systematic: with every boundary and every omission, not only at random."""
    config: dict[str, Any] = {
        "base-url": "http://platform.invalid",
        "generation": {"max-examples": EXAMPLES or 4, "database": "none", "with-security-parameters": False},
        "phases": {"coverage": {"enabled": systematic}, "stateful": {"enabled": False}},
        "dictionaries": {
            "jobs": {"values": ["own", NAME, ENDED_JOB, RUNNING_JOB]},
            "pipelines": {"values": [NAME, PIPELINE]},
            "tokens": {"values": [TOKEN]},
            "data": {"values": [NAME, "CANARY", "stranger", f"{HIDDEN}.txt"]},
            "digests": {"values": [DIGEST]},
            "tenants": {"values": ["fuzzer", "stranger"]},
            "secrets": {"values": ["CANARY"]},
        },
        "parameters": {
            "path.job": {"dictionary": "jobs", "probability": 0.6},
            "path.pipeline": {"dictionary": "pipelines", "probability": 0.6},
            "path.id": {"dictionary": "tokens", "probability": 0.6},
            "path.name": {"dictionary": "data", "probability": 0.6},
            "path.digest": {"dictionary": "digests", "probability": 0.6},
            "body.code": {"dictionary": "digests", "probability": 0.3},
            "query.job": {"dictionary": "jobs", "probability": 0.6},
            "query.tenant": {"dictionary": "tenants", "probability": 0.6},
            "body.tenant": {"dictionary": "tenants", "probability": 0.6},
            "body.secrets[*]": {"dictionary": "secrets", "probability": 0.6},
        },
    }
    if SEED is not None:
        config["seed"] = SEED
    return schemathesis.openapi.from_dict(_document(), config=SchemathesisConfig.from_dict(config))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as kept:
        yield kept


@pytest.mark.parametrize("role", ROLES)
@_schema(systematic=bool(EXAMPLES)).parametrize()
def test_no_request_of_anybody_fails_the_platform_or_reads_a_stranger(
    case: schemathesis.Case, role: str, session: requests.Session, target: Target
) -> None:
    _try(case, role, session, target)


def _nested(deep: int, *, mapping: bool = False) -> str:
    return ('{"a":' if mapping else "[") * deep + "1" + ("}" if mapping else "]") * deep


HOSTILE = {
    "4,000 digits": "9" * 4000, "300 lists": _nested(300), "950 mappings": _nested(950, mapping=True),
    "100,000 lists": _nested(100_000), "5,000 digits": "9" * 5000, "beyond 64 bits": str(-(1 << 63) - 1),
    "1e999": "1e999", "100,000 mappings": _nested(100_000, mapping=True), "a long key": json.dumps({"k" * 100_000: 1}),
}  # fmt: skip
"""As JSON: nothing may take these, wherever they stand."""
CODE = b"code of the fuzzer"
PLACE = "<here>"
RUNS: dict[str, Any] = {"name": "fuzzed", "run": "a.py:f", "code": f"sha256:{hashlib.sha256(CODE).hexdigest()}"}
STAGED: dict[str, Any] = {"name": "fuzzed", "stages": {"s": {"run": "a.py:f"}}, "code": RUNS["code"]}
BODIES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("POST", "/jobs"): ("member", RUNS),
    ("POST", "/jobs/dry-run"): ("viewer", RUNS),
    ("POST", "/pipelines"): ("member", STAGED),
    ("POST", "/tenants"): ("admin", {"name": "fuzzed"}),
    ("PATCH", "/tenants/fuzzer"): ("admin", {"weight": 1}),
    ("POST", "/tokens"): ("tenant-admin", {"role": "viewer"}),
    ("PUT", "/secrets/FUZZED"): ("tenant-admin", {"value": "abcd"}),
    ("POST", "/session"): ("none", {"token": "fl_x"}),
}


def _spots(base: dict[str, Any], fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The body with a place for a value in each field, plain, in a mapping and in a list."""
    for field in fields:
        for value in (PLACE, {"a": PLACE}):
            yield {**base, field: value}
    if "stages" in base:
        yield {**base, "stages": {"s": {"run": "a.py:f", "args": {"a": [PLACE]}}}}


@pytest.mark.parametrize(("method", "path"), BODIES, ids=str)
def test_no_deep_or_huge_value_is_taken_anywhere(
    method: str, path: str, session: requests.Session, target: Target
) -> None:
    role, base = BODIES[method, path]
    url, headers = f"{target.url}/api/v1{path}", target.headers(role)
    if "code" in base:
        put = session.put(f"{target.url}/api/v1/bundles/{base['code']}", data=CODE, headers=target.headers("member"))
        assert put.ok, put.text
        good = session.request(method, url, json=base, headers=headers, timeout=LONGEST_S)
        assert good.ok, f"refused for something else: {good.text}"
    kind = _document()["components"]["schemas"][KINDS[path.split("/")[1]]]
    for body in [*_spots(base, kind["properties"]), PLACE]:
        for name, value in list(HOSTILE.items())[: len(HOSTILE) if EXAMPLES else 4]:
            sent = json.dumps(body).replace(json.dumps(PLACE), value)
            answer = session.request(method, url, data=sent, headers=headers, timeout=LONGEST_S)
            said = f"{name} in {json.dumps(body)}: {answer.status_code} {answer.text[:300]}"
            assert 400 <= answer.status_code < 500 and len(answer.text) < 5000 and answer.json()["detail"], said


KINDS = {"jobs": "JobSpec", "pipelines": "PipelineSpec", "tenants": "TenantSpec", "tokens": "TokenSpec",
         "secrets": "SecretSpec", "session": "SessionSpec"}  # fmt: skip


@pytest.fixture(scope="module")
def boundaries() -> Any:
    return _schema(systematic=True)


@pytest.mark.parametrize(("method", "path"), _operations(), ids=str)
def test_no_boundary_and_no_omission_fails_the_platform(
    method: str, path: str, boundaries: Any, session: requests.Session, target: Target
) -> None:
    """What is tried is worked out here, not when tests are looked for, which every process of the suite does."""

    def as_a_tenant_admin(case: schemathesis.Case) -> None:
        _try(case, "tenant-admin", session, target)

    chosen = boundaries.include(method=method, path=path)
    (found,) = get_all_tests(schema=chosen, test_func=as_a_tenant_admin, settings=None, given_kwargs=None)
    _, attempts = found.ok()
    attempts()


def _try(case: schemathesis.Case, role: str, session: requests.Session, target: Target) -> None:
    asked = case.as_transport_kwargs(base_url=target.url, headers=target.headers(role))
    if role != "admin":  # who may do everything would take the stranger's things away
        asked = target.aimed(asked)
    response, text = _send(session, asked)
    assert response.status_code < 500, f"{response.status_code}: {text[:500]}"
    if response.status_code == 400 and text == TOO_LONG:
        return  # not even HTTP to the server: an address of more than 16 KiB
    assert response.headers["x-request-id"]
    if role != "admin":
        said = str(asked)
        if response.ok and case.operation.path == "/api/v1/audit":
            text = _without_refusals(text)
        assert HIDDEN not in text or HIDDEN in said, f"a stranger's secret: {text[:500]}"
        assert NAME not in text or NAME in said, f"a stranger's job: {text[:500]}"
        named = any(real in asked["url"] for real in (*target.ids.values(), DIGEST[7:]))
        assert not named or response.status_code >= 400, f"{case.method} {asked['url']}: {response.status_code}"
    if role == "cookie" and (case.method, case.operation.path) == ("DELETE", "/api/v1/session"):
        target.log_in()
    case.validate_response(response, checks=CHECKS)


def _without_refusals(text: str) -> str:
    """The audit log without what was refused to the fuzzer: these lines hold the addresses that it wrote itself."""
    return json.dumps([entry for entry in json.loads(text) if entry["action"] != "refused"])


def _send(session: requests.Session, asked: dict[str, Any]) -> tuple[requests.Response, str]:
    """The answer and its text; a stream is read up to the first silence."""
    response = session.request(**asked, stream=True, timeout=LONGEST_S, allow_redirects=False)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return response, response.text
    lines = []
    for line in response.iter_lines(chunk_size=1):
        if line.startswith(b":"):
            break
        lines.append(line.decode())
    response.close()
    response._content = b""  # read already: else the checks would wait for its end
    return response, "\n".join(lines)
