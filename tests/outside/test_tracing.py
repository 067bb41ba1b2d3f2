"""Traces by option, received over real OTLP/HTTP: requests, rounds and the lives of jobs, linked to each other."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.control.observability import tracing
from fairlead.errors import InvalidSpec
from tests.api.conftest import run_to_its_end
from tests.outside.collector import told
from tests.outside.conftest import Busy, fairlead
from tests.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def job(busy: Busy) -> str:
    """A job that was submitted and has ended."""
    with busy.caller() as admin:
        admin.post("/api/v1/tenants", json={"name": "traced"}).raise_for_status()
        spec = {"name": "traced", "tenant": "traced", "command": ["true"], "workers": 2}
        found = run_to_its_end(admin, spec)
    until(lambda: busy.traces.named("job", fairlead_job=found["id"]))
    return str(found["id"])


def test_a_job_s_life_is_one_trace(busy: Busy, job: str) -> None:
    (root,) = busy.traces.named("job", fairlead_job=job)
    assert root.trace_id == hashlib.sha256(job.encode()).digest()[:16], "found from the job alone"
    facts = told(root)
    assert facts["fairlead.tenant"] == "traced" and facts["fairlead.state"] == "succeeded"
    parts = [span for span in busy.traces.spans if span.trace_id == root.trace_id]
    assert sorted(span.name for span in parts) == ["generation", "job", "queued", "start"]
    by_name = {span.name: span for span in parts}
    assert by_name["queued"].parent_span_id == by_name["generation"].parent_span_id == root.span_id
    assert by_name["start"].parent_span_id == by_name["generation"].span_id
    assert root.start_time_unix_nano <= by_name["queued"].end_time_unix_nano == by_name["start"].start_time_unix_nano
    assert by_name["generation"].end_time_unix_nano <= root.end_time_unix_nano
    generation = told(by_name["generation"])
    assert generation["fairlead.workers"] == 2 and generation["fairlead.outcome"] == "finished"
    assert generation["fairlead.nodes"] == ["node-0", "node-1"]


def test_a_job_points_back_to_its_request_and_a_generation_to_its_round(busy: Busy, job: str) -> None:
    (root,) = busy.traces.named("job", fairlead_job=job)
    (request,) = [span for span in busy.traces.spans if span.span_id == root.links[0].span_id]
    assert request.name == "POST /api/v1/jobs" and told(request)["http.response.status_code"] == 201
    generation = next(s for s in busy.traces.spans if s.name == "generation" and s.trace_id == root.trace_id)
    rounds = [span for span in busy.traces.named("decision round") if span.span_id == generation.links[0].span_id]
    assert job in told(rounds[0])["fairlead.jobs"] and told(rounds[0])["fairlead.decisions.start"] >= 1


def test_a_request_goes_on_with_its_caller_s_trace(busy: Busy) -> None:
    with busy.caller() as admin:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "traced-request"}
        admin.get("/api/v1/whoami", headers=headers)
    (span,) = until(lambda: busy.traces.named("GET /api/v1/whoami", fairlead_request_id="traced-request"))
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == "00f067aa0ba902b7"
    assert told(span)["http.route"] == "/api/v1/whoami" and busy.traces.services == {"fairlead"}


def test_no_secret_and_no_query_is_in_a_span(busy: Busy, job: str) -> None:
    with busy.caller() as admin:
        admin.get("/api/v1/jobs", params={"name": "in-the-query"})
        admin.get("/api/v1/whoami", headers={"X-Request-Id": "the-last-one"})
    until(lambda: busy.traces.named("GET /api/v1/whoami", fairlead_request_id="the-last-one"))
    every = "\n".join(str(span) for span in busy.traces.spans)
    assert busy.token.rpartition("_")[2] not in every and "in-the-query" not in every


def test_without_an_endpoint_no_exporter_is_even_imported() -> None:
    """FastAPI itself brings OpenTelemetry's small API along; the SDK and the exporter are ours to load."""
    load = (
        "import sys, fairlead.api.app, fairlead.control.serve, fairlead.control.observability.tracing as t\n"
        "with t.request_span('GET', []) as span: span.answered('/', 200, 'x')\n"
        "with t.round_span(): t.record_round([], [], 0.0)\n"
        "mine = ('opentelemetry.sdk', 'opentelemetry.exporter', 'fairlead.control.observability.otel',\n"
        "        'google.protobuf')\n"
        "sys.exit(any(name.startswith(mine) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", load], timeout=60, check=False).returncode == 0


def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    """As if it were not installed: its modules cannot be found."""
    hide = "import sys; sys.modules['opentelemetry.sdk'] = sys.modules['opentelemetry.exporter'] = None\n"
    verb = ["up", "--otlp", "http://localhost:4318", "--home", str(tmp_path)]
    run = f"from fairlead.cli.main import main\nmain({verb})"
    done = subprocess.run([sys.executable, "-c", hide + run], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "traces need OpenTelemetry" in done.stderr
    assert "fix: pip install 'fairlead[otel]'" in done.stderr and not list(tmp_path.iterdir())


def test_a_wrong_endpoint_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        tracing.check_endpoint("localhost:4318")
    assert caught.value.field == "--otlp" and "http://localhost:4318" in str(caught.value.fix)
    done = fairlead(tmp_path / "home", "up", "--otlp", "localhost:4318")
    assert done.code == 2 and "--otlp" in done.err and not (tmp_path / "home" / "fairlead.db").exists()
