"""The demonstration's report: figures of the platform's own report, results and events, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from fairlead.cli.output import duration, number, percent
from fairlead.demo.participants import JOBS, TENANTS, data_summary
from fairlead.demo.scenario import Scenario
from fairlead.sdk.client import Client
from fairlead.views.jobs import GenerationView, JobDetail
from fairlead.views.reports import Report

LEGEND = """
  ENTITLED, USED: part of all devices (of the device time); WHILE ALL COMPETED: used while every tenant held some
  WAIT: from submission to the first worker; JCT: from submission to the end; both are means for a tenant
  WORKERS: in each generation; TO NEXT STEP: from the kill of the node to the next training step"""

WIDE = 118  # terminal columns from which the job table has a description column


def collect_report(scenario: Scenario, admin: Client) -> dict[str, Any]:
    """Collect all figures in one document. They are the platform's own, except for the time of the kill."""
    report = admin.report()
    details = [admin.detail(job) for job in scenario.names]
    jobs = [_job(scenario, admin, detail) for detail in details]
    kill = _kill(scenario, admin)
    document: dict[str, Any] = {
        "data": data_summary(),
        "quick": scenario.quick,
        "started_s": scenario.started_s,
        "took_s": max((detail.finished_s or 0.0 for detail in details), default=0.0) - scenario.started_s,
        "devices": sum(node.devices for node in admin.nodes()),
        "platform": report.model_dump(mode="json", exclude={"tenants", "jobs", "shares"}),
        "tenants": [tenant | {"contended_share": _contended(report, tenant["tenant"])} for tenant in _tenants(report)],
        "jobs": jobs,
        "kill": kill,
        "why": scenario.whys,
        "shares": report.shares,
    }
    document["checks"] = {
        "every job finished": all(job["state"] == "succeeded" for job in jobs),
        "a job grew into free devices": any(job["grew"] for job in jobs),
        "a job was preempted by one of higher priority, and resumed": "preemption" in scenario.whys,
        "the job on the killed node recovered": kill is not None and kill["to_next_step_s"] is not None,
    }
    return document


def _tenants(report: Report) -> list[dict[str, Any]]:
    order = [tenant.name for tenant in TENANTS]
    lines = [each.model_dump(mode="json") for each in report.tenants]
    return sorted(lines, key=lambda line: order.index(line["tenant"]))


def _contended(report: Report, tenant: str) -> float | None:
    """The tenant's part of the devices in use while every tenant held some."""
    moments = [point["devices"] for point in report.shares]
    contended = [held for held in moments if all(held.get(each.name, 0) > 0 for each in TENANTS)]
    whole = sum(sum(held.values()) for held in contended)
    return sum(held[tenant] for held in contended) / whole if whole else None


def _job(scenario: Scenario, admin: Client, detail: JobDetail) -> dict[str, Any]:
    result = admin.result(detail.id)
    work = next(work for work in JOBS if work.name == scenario.names[detail.id])
    grown = [
        {"from": len(before.members), "to": len(after.members), "time_s": after.created_s, "why": after.reason.text}
        for before, after in pairwise(detail.generations)
        if after.reason.code == "spare-devices" and len(after.members) > len(before.members)
    ]
    lines = [line.text for line in admin.logs(detail.id)] if work.command else []
    return {
        "job": detail.id, "name": detail.name, "tenant": detail.tenant, "state": detail.state,
        "what": f"{work.what} on {work.data.name_in_use()}",
        "wait_s": _span(detail.submitted_s, detail.started_s), "jct_s": _span(detail.submitted_s, detail.finished_s),
        "sla_met": detail.sla_met, "metrics": result.metrics, "figures": result.figures,
        "recoveries": detail.recoveries, "recovery_s": detail.recovery_s, "resizes": detail.resizes, "grew": grown,
        "log": lines, "generations": [_generation(generation) for generation in detail.generations],
    }  # fmt: skip


def _generation(generation: GenerationView) -> dict[str, Any]:
    return {
        "number": generation.number, "workers": len(generation.members), "nodes": [m.node for m in generation.members],
        "running_s": generation.running_s, "ended_s": generation.ended_s, "outcome": generation.outcome,
        "reason": generation.reason.text,
    }  # fmt: skip


def _span(begin_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else end_s - begin_s


def _kill(scenario: Scenario, admin: Client) -> dict[str, Any] | None:
    """The kill, and the time to the next training step as the platform recorded it."""
    if scenario.kill is None:
        return None
    kill = scenario.kill
    steps = [
        event.time_s - kill.time_s
        for event in admin.events(job=kill.job, limit=1000)
        if event.kind == "job-recovered" and event.time_s > kill.time_s
    ]
    return {
        "node": kill.node, "pid": kill.pid, "job": scenario.names[kill.job], "time_s": kill.time_s,
        "to_next_step_s": min(steps, default=None),
    }  # fmt: skip


# ---------------------------------------------------------------- on screen


def print_report(console: Console, document: dict[str, Any]) -> None:
    """Print the tables, the explanations and the checks."""
    console.print()
    console.print(_tenant_table(document["tenants"]))
    console.print()
    console.print(_job_table(document, wide=console.width >= WIDE))
    console.print(LEGEND, style="dim", highlight=False)
    console.print()
    for job in document["jobs"]:
        for line in job["log"]:
            console.print(f"  {job['name']} printed: {line}", highlight=False, markup=False)
    for asked in document["why"].values():
        console.print(f"  [bold]fairlead why {asked['job']}[/]", highlight=False)
        console.print(f"    {asked['why']}", highlight=False, markup=False, soft_wrap=True)
    figures = document["platform"]
    console.print(
        f"  devices held {percent(figures.get('allocation'))}   cores busy {percent(figures['utilisation'])}"
        f"   fairness (Jain) {number(figures['fairness'])}"
        f"   SLAs met {percent(figures['sla_satisfaction'])}   took {duration(document['took_s'])}",
        highlight=False,
    )
    console.print()
    for check, good in document["checks"].items():
        console.print(f"  [green]✓[/] {check}" if good else f"  [bold red]✗ failed: {check}[/]", highlight=False)


def _table(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in columns:
        table.add_column(name, justify="right" if side == ">" else "left", no_wrap=True, header_style="dim")
    return table


def _tenant_table(tenants: list[dict[str, Any]]) -> Table:
    table = _table(
        "Tenants", (("TENANT", "<"), ("WEIGHT", ">"), ("ENTITLED", ">"), ("USED", ">"), ("WHILE ALL COMPETED", ">"),
                    ("WAIT", ">"), ("JCT", ">"), ("SLA MET", ">")),
    )  # fmt: skip
    for each in tenants:
        table.add_row(
            each["tenant"], f"{each['weight']:g}", percent(each["entitlement"]), percent(each["share"]),
            percent(each["contended_share"]), duration(each["mean_wait_s"]), duration(each["mean_jct_s"]),
            percent(each["sla_satisfaction"]),
        )  # fmt: skip
    return table


def _job_table(document: dict[str, Any], *, wide: bool) -> Table:
    what = (("WHAT", "<"),) if wide else ()
    table = _table(
        "Jobs", (("JOB", "<"), *what, ("ACCURACY", ">"), ("SAMPLES/S", ">"), ("WORKERS", "<"), ("WAIT", ">"),
                 ("JCT", ">"), ("RECOVERED", ">"), ("TO NEXT STEP", ">")),
    )  # fmt: skip
    kill = document["kill"]
    for job in document["jobs"]:
        hit = kill is not None and kill["job"] == job["name"] and kill["to_next_step_s"] is not None
        table.add_row(
            job["name"], *((job["what"],) if wide else ()), percent(job["metrics"].get("accuracy")),
            number(job["figures"].get("TP")), "→".join(str(each["workers"]) for each in job["generations"]),
            duration(job["wait_s"]), duration(job["jct_s"]), _times(job["recoveries"]),
            f"{kill['to_next_step_s']:.2f} s" if hit else "–",
        )  # fmt: skip
    return table


def _times(count: int) -> str:
    return {0: "–", 1: "once", 2: "twice"}.get(count, f"{count} times")
