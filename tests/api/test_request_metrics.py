"""What is seen of a request from outside: its id in answer, problem and header; and the metrics of a live platform."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from fairlead.control.observability.metric_families import ALL
from tests.api.conftest import Served, Team, run_to_its_end
from tests.waiting import until

RARE = {  # there is nothing to tell of on a platform where all goes well and nobody asks for it
    "fairlead_pending_jobs", "fairlead_evicted_jobs_total", "fairlead_preempted_jobs_total",
    "fairlead_resized_jobs_total", "fairlead_failed_attempts_total", "fairlead_abandoned_generations_total",
    "fairlead_lost_workers_total", "fairlead_planner_blind_jobs_total", "fairlead_sla_decided_jobs_total",
    "fairlead_first_step_time_seconds", "fairlead_recovery_time_seconds", "fairlead_snapshot_time_seconds",
    "fairlead_snapshot_wait_time_seconds",
    "fairlead_api_rate_limited_requests_total", "fairlead_internal_errors_total",
    "fairlead_node_losses_total", "fairlead_fairness_index", "fairlead_tenant_quota_devices",
    "fairlead_tenant_guaranteed_devices", "fairlead_tenant_most_devices",
    "fairlead_tenant_budget_device_seconds", "fairlead_tenant_budget_used_device_seconds",
    "fairlead_node_temperature_celsius", "fairlead_node_power_watts",
}  # fmt: skip


def scrape(admin: httpx.Client) -> dict[str, Metric]:
    response = admin.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = list(text_string_to_metric_families(response.text))
    assert len({family.name for family in found}) == len(found), "no family is told twice"
    return {family.name: family for family in found}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    family = found[name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")]
    return sum(
        sample.value for sample in family.samples if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_the_exposition_parses_and_holds_every_metric_as_declared(
    admin: httpx.Client, waiting: dict[str, Any], finished: dict[str, Any]
) -> None:
    until(lambda: admin.get(f"/api/v1/jobs/{waiting['id']}").json()["state"] == "running")
    until(lambda: "fairlead_worker_memory_bytes" in scrape(admin))  # told by the nodes about once a second
    found = scrape(admin)
    for family in ALL:
        told = found.get(family.name.removesuffix("_total"))
        if told is None or not told.samples:
            assert family.name in RARE, f"{family.name} is missing"
            continue
        assert told.type == family.kind and told.documentation == family.help
        labels = {label for sample in told.samples for label in sample.labels} - {"le"}
        assert labels == set(family.labels), family.name
    foreign = [name for name in found if not name.startswith("fairlead_")]
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= set(foreign)
    assert all(re.match(r"(process|python)_", name) for name in foreign)


def test_counters_follow_what_happens(admin: httpx.Client, alpha: Team) -> None:
    before = scrape(admin)
    run_to_its_end(alpha.member, {"name": "counted", "command": ["true"]})
    run_to_its_end(alpha.member, {"name": "counted", "command": ["false"]})
    after = scrape(admin)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - (value(before, name, **labels) if name in str(before) else 0.0)

    assert grown("fairlead_submitted_jobs_total", tenant="alpha") == 2
    assert grown("fairlead_admitted_jobs_total", tenant="alpha") == 2
    assert value(after, "fairlead_finished_jobs_total", tenant="alpha", outcome="failed") >= 1
    assert value(after, "fairlead_job_completion_time_seconds_count", tenant="alpha", outcome="succeeded") >= 1
    assert value(after, "fairlead_decision_rounds_total") > value(before, "fairlead_decision_rounds_total")
    assert value(after, "fairlead_store_write_duration_seconds_count") > 0
    assert grown("fairlead_api_requests_total", route="/api/v1/jobs", method="POST", status="201") == 2


def test_routes_are_told_by_their_pattern_and_nonsense_by_one_word(admin: httpx.Client) -> None:
    for number in range(20):
        admin.get(f"/api/v1/jobs/no-such-{number}")
        admin.get(f"/no/such/place/{number}")
        admin.request("BREW", f"/coffee/{number}")
    routes = {sample.labels["route"] for sample in scrape(admin)["fairlead_api_requests"].samples}
    methods = {sample.labels["method"] for sample in scrape(admin)["fairlead_api_requests"].samples}
    assert "/api/v1/jobs/{job}" in routes and "unmatched" in routes and "/healthz" in routes | {"/healthz"}
    assert not [route for route in routes if "no-such" in route or "coffee" in route or "place" in route]
    assert "BREW" not in methods and "other" in methods


def test_streams_and_refusals_for_haste_are_counted(platform_server: Served, admin: httpx.Client, alpha: Team) -> None:
    def streams() -> float:
        return value(scrape(admin), "fairlead_api_event_streams")

    before = streams()
    with alpha.viewer.stream("GET", "/api/v1/events/stream"):
        until(lambda: streams() == before + 1)
    until(lambda: streams() == before)
    with platform_server.caller(alpha.tokens["viewer"], tight=True) as hasty:
        until(lambda: hasty.get("/api/v1/whoami").status_code == 429, every_s=0.0)
    assert value(scrape(admin), "fairlead_api_rate_limited_requests_total", reason="rate") >= 1


# ---------------------------------------------------------------- request ids


def test_a_request_s_own_id_comes_back_and_stands_in_its_problem(alpha: Team) -> None:
    mine = {"X-Request-Id": "ci-run-42.retry:1"}
    assert alpha.viewer.get("/api/v1/whoami", headers=mine).headers["x-request-id"] == "ci-run-42.retry:1"
    wrong = alpha.viewer.get("/api/v1/jobs/no-such-job", headers=mine)
    assert wrong.headers["x-request-id"] == wrong.json()["request_id"] == "ci-run-42.retry:1"


def test_every_answer_has_an_id_of_its_own(platform_server: Served, alpha: Team) -> None:
    answers = [alpha.viewer.get("/api/v1/whoami") for _ in range(3)]
    with platform_server.caller(None) as stranger:
        answers += [stranger.get("/healthz"), stranger.get("/api/v1/jobs"), stranger.get("/nowhere")]
        answers += [stranger.get("/api/v1/jobs?a=%00"), stranger.post("/healthz")]
    ids = [response.headers["x-request-id"] for response in answers]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[0-9a-f]{32}", each) for each in ids)


@pytest.mark.parametrize("bad", ["", "two words", "x" * 129, "tab\tted", 'quote"d', "<script>", "-starts-badly"])
def test_what_cannot_be_an_id_is_replaced(alpha: Team, bad: str) -> None:
    given = alpha.viewer.get("/api/v1/whoami", headers={"X-Request-Id": bad}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", given)


def test_two_ids_are_none(platform_server: Served, alpha: Team) -> None:
    headers = [("X-Request-Id", "one"), ("X-Request-Id", "two"), ("Authorization", f"Bearer {alpha.tokens['viewer']}")]
    response = httpx.get(f"{platform_server.url}/api/v1/whoami", headers=headers)
    assert response.status_code == 200 and re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
