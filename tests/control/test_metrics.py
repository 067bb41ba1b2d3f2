"""What Prometheus is told: names in its manner, all of them documented, and none invented by dashboard or alerts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairlead import wire
from fairlead.control.observability import live_metrics, metric_families
from fairlead.control.observability.disk_metrics import measure
from fairlead.control.observability.job_metrics import JobCounts
from fairlead.control.observability.metric_families import ALL, MetricFamily
from fairlead.control.observability.worker_metrics import WorkerMeter, worker_memory
from fairlead.control.records import LoggedEvent
from fairlead.home import Home
from fairlead.safe_removal import remove

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "fairlead.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
FOREIGN = re.compile(r"^(process|python)_\w+$|^up$")
FEW = {"tenant", "node", "state", "reason", "outcome", "result", "decision", "where", "route", "method", "status",
       "device_type", "isolation", "kind", "version", "python"}  # fmt: skip


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_a_metric_is_named_as_prometheus_names_them(family: MetricFamily) -> None:
    assert re.fullmatch(r"fairlead_[a-z][a-z0-9_]*[a-z]", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert (family.kind == "histogram") == bool(family.buckets)
    if family.kind == "histogram":
        assert family.name.endswith("_seconds") and list(family.buckets) == sorted(set(family.buckets))
    assert not re.search(r"_(ms|millis|minutes|hours|kb|mb|gb|percent)(_|$)", family.name), "base units only"
    assert family.help.endswith(".") and len(family.help) < 120


def test_names_are_unique_and_labels_have_few_values() -> None:
    assert len({family.name for family in ALL}) == len(ALL) > 60
    assert {label for family in ALL for label in family.labels} <= FEW, "jobs, workers and users are no labels"


def test_the_documents_tell_of_every_metric_as_it_is() -> None:
    rows = dict(re.findall(r"^\| `(fairlead_\w+)` \| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert set(rows) == {family.name for family in ALL}
    for family in ALL:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        assert rows[family.name] == f"{family.kind} | {labels} | {family.help}", family.name


# ---------------------------------------------------------------- dashboard and alerts


def _expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"dashboard: {panel['title']}", target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield f"annotation: {annotation['name']}", annotation["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable: {variable['name']}", variable["query"]["query"]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


def _exposed() -> dict[str, MetricFamily]:
    """Series as they can be asked for: a histogram has three."""
    found = {}
    for family in ALL:
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + end: family for end in ends}
    return found


@pytest.mark.parametrize(("place", "expression"), list(_expressions()), ids=[place for place, _ in _expressions()])
def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_exist(place: str, expression: str) -> None:
    exposed = _exposed()
    bare = re.sub(r"\"[^\"]*\"|\[[^\]]*\]", "", expression)
    names = set(re.findall(r"\b(?:fairlead|process|python)_\w+|\bup\b", bare))
    assert names and not [name for name in names if name not in exposed and not FOREIGN.match(name)]
    known = {label for name in names if name in exposed for label in exposed[name].labels} | {"le", "job", "instance"}
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    groups = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    grouped = [label.strip() for group in groups for label in group.split(",")]
    assert not [label for label in [*selected, *grouped] if label not in known]
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_the_dashboard_shows_every_metric_and_overlaps_nowhere() -> None:
    shown = " ".join(expression for _, expression in _expressions())
    assert not [family.name for family in ALL if family.name not in shown]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) > 40
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_says_how_bad_it_is_and_what_it_is() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 12
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info") and rule["annotations"]["summary"]


# ---------------------------------------------------------------- counting


def _value(name: str, **labels: str) -> float:
    return live_metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def _event(kind: str, time_s: float, **facts: Any) -> LoggedEvent:
    return LoggedEvent(1, time_s, kind, "text", tenant="counted", job="job-1", facts=facts)


def test_a_job_s_way_is_counted_from_its_events() -> None:
    counts = JobCounts()
    for event in (
        _event("job-submitted", 100.0),
        _event("job-starting", 130.0, reason="entitled"),
        _event("generation-running", 131.5, generation=1),
        _event("worker-lost", 140.0, workers=["w0", "w1"]),
        _event("job-recovered", 142.0, seconds=2.0),
        _event("job-preempted", 150.0, reason="reclaimed"),
        _event("job-queued", 151.0, outcome="preempted"),
        _event("job-starting", 161.0, reason="entitled"),
        _event("job-succeeded", 200.0),
    ):
        counts.take(event, None)
    who = {"tenant": "counted"}
    assert _value("fairlead_submitted_jobs_total", **who) == 1
    assert _value("fairlead_admitted_jobs_total", reason="entitled", **who) == 2
    assert _value("fairlead_admission_wait_time_seconds_sum", **who) == 30.0 + 10.0
    assert _value("fairlead_generation_start_time_seconds_sum", **who) == 1.5
    assert _value("fairlead_lost_workers_total", **who) == 2
    assert _value("fairlead_recovery_time_seconds_sum", **who) == 2.0
    assert _value("fairlead_preempted_jobs_total", reason="reclaimed", **who) == 1
    assert _value("fairlead_evicted_jobs_total", reason="preempted", **who) == 1
    assert _value("fairlead_finished_jobs_total", outcome="succeeded", **who) == 1
    assert "job-1" not in counts.tenants, "an ended job is forgotten"


def test_what_workers_use_never_goes_back_though_they_come_and_go() -> None:
    meter = WorkerMeter()
    meter.tenants = {"job-2": "metered"}

    def report(*usages: tuple[str, float, int]) -> float:
        workers = [wire.WorkerUsage("job-2", worker, cpu_s, 1, sent) for worker, cpu_s, sent in usages]
        meter.take("node-9", wire.Telemetry(0.5, 1, workers))
        return _value("fairlead_worker_cpu_seconds_total", tenant="metered", node="node-9")

    assert report(("w0", 10.0, 5), ("w1", 1.0, 5)) == 11.0
    assert report(("w0", 12.0, 5)) == 13.0, "w1 is gone, and what it used stays"
    assert report(("w0", 12.0, 5), ("w2", 0.5, 5)) == 13.5
    assert _value("fairlead_worker_network_bytes_total", tenant="metered", node="node-9") == 15
    meter.take("node-9", wire.Telemetry(0.5, 1, [wire.WorkerUsage("nobody", "w0", 99.0, 1, 1)]))
    assert report(("w2", 0.5, 5)) >= 13.5


def test_a_worker_counts_in_full_once_the_tenant_of_its_job_is_known() -> None:
    meter, seen = WorkerMeter(), wire.Telemetry(0.5, 1, [wire.WorkerUsage("job-3", "w0", 7.0, 1, 3)])
    meter.take("node-8", seen)
    meter.tenants = {"job-3": "late"}
    meter.take("node-8", seen)
    meter.take("node-8", seen)
    assert _value("fairlead_worker_cpu_seconds_total", tenant="late", node="node-8") == 7.0
    assert _value("fairlead_worker_network_bytes_total", tenant="late", node="node-8") == 3


def test_workers_of_the_same_name_are_told_apart_by_node_and_job() -> None:
    meter = WorkerMeter()
    meter.tenants = {"job-4": "twins", "job-5": "twins"}
    workers = [wire.WorkerUsage(job, "w0", 2.0, 10, 1) for job in ("job-4", "job-5")]
    for node in ("node-6", "node-7"):
        meter.take(node, wire.Telemetry(0.5, 1, workers))
        meter.take(node, wire.Telemetry(0.5, 1, workers))
    for node in ("node-6", "node-7"):
        assert _value("fairlead_worker_cpu_seconds_total", tenant="twins", node=node) == 4.0


def test_a_total_that_went_back_is_not_counted_again_on_its_way_up() -> None:
    meter = WorkerMeter()
    meter.tenants = {"job-6": "back"}
    for cpu_s in (10.0, 4.0, 9.0, 11.0):
        meter.take("node-5", wire.Telemetry(0.5, 1, [wire.WorkerUsage("job-6", "w0", cpu_s, 1, int(cpu_s))]))
    assert _value("fairlead_worker_cpu_seconds_total", tenant="back", node="node-5") == 11.0
    assert _value("fairlead_worker_network_bytes_total", tenant="back", node="node-5") == 11


def test_the_memory_of_workers_adds_up_by_tenant_and_node() -> None:
    nodes = {
        "n1": [wire.WorkerUsage("a", "w0", 1.0, 5), wire.WorkerUsage("a", "w1", 1.0, 7)],
        "n2": [wire.WorkerUsage("a", "w0", 1.0, 1), wire.WorkerUsage("b", "w0", 1.0, 2)],
    }
    seen = [(node, wire.Telemetry(0.5, 1, workers)) for node, workers in nodes.items()]
    assert worker_memory(seen, {"a": "x"}) == (
        {("x", "n1"): 2, ("x", "n2"): 1, ("unknown", "n2"): 1},
        {("x", "n1"): 12, ("x", "n2"): 1, ("unknown", "n2"): 2},
    )


def test_a_label_that_nobody_foresaw_cannot_make_series_without_end() -> None:
    for number in range(500):
        live_metrics.count(metric_families.LIMITED, f"made-up-{number}")
    reasons = [
        sample.labels["reason"]
        for family in text_string_to_metric_families(generate_latest(live_metrics.REGISTRY).decode())
        for sample in family.samples
        if sample.name == "fairlead_api_rate_limited_requests_total"
    ]
    assert len(reasons) <= live_metrics.MAX_LABEL_VALUES + 1 and "other" in reasons


def test_disk_use_is_told_by_tenant_and_kind_without_following_links(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    (home.job("job-a") / "logs").mkdir(parents=True)
    (home.job("job-a") / "logs" / "w0.log").write_bytes(b"x" * 100_000)
    (home.job("job-a") / "output").mkdir()
    (home.job("job-a") / "output" / "elsewhere").symlink_to("/usr")
    (home.job("stray") / "snapshots").mkdir(parents=True)
    found = measure(home, {"job-a": "alpha"})
    assert 100_000 <= found.by_tenant["alpha", "logs"] < 200_000
    assert found.by_tenant["alpha", "output"] < 10_000 and ("unknown", "snapshots") in found.by_tenant
    assert found.size > found.free > 0


def test_disk_use_is_told_however_deep_a_tenant_made_its_folders(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    (home.job("job-a") / "output").mkdir(parents=True)
    (home.job("job-a") / "logs").mkdir()
    (home.job("job-a") / "logs" / "w0.log").write_bytes(b"x" * 100_000)
    here = os.open(home.job("job-a") / "output", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    found = measure(home, {"job-a": "alpha"})
    remove(home.job("job-a") / "output")
    assert found.by_tenant["alpha", "logs"] >= 100_000
