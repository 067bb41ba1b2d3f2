"""The verb report: figures of the platform, per tenant and per job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.options import Json, client
from fairlead.cli.text_tables import FIXED_SPACE, Column

if TYPE_CHECKING:
    from fairlead.views.reports import JobReport, Report

LEAST_SLOWDOWN = 0.1


def report(as_json: Json = False) -> None:
    """Show figures of the platform, its tenants and jobs."""
    answer = client().report()
    if as_json:
        output.print_json(answer)
        return
    figures = {
        "training time (TT)": output.duration(answer.training_time_s),
        "utilisation (RU)": output.percent(answer.utilisation),
        "devices in use": output.percent(answer.allocation),
        "throughput (TP)": f"{output.number(answer.throughput_per_s)} samples/s",
        "fairness (FI)": output.number(answer.fairness),
        "recent fairness (FI)": output.number(None if answer.balance is None else answer.balance.index),
        "mean recovery (FRT)": output.duration(answer.recovery_s),
        "SLA met (SSR)": output.percent(answer.sla_satisfaction),
    }
    if answer.energy:
        figures["energy (estimated)"] = f"{output.number(answer.energy['kwh'])} kWh"
    if answer.energy.get("asleep_s"):
        figures["saved by sleep"] = f"{output.number(answer.energy['saved_kwh'])} kWh"
    for name, figure in figures.items():
        output.line(f"{name:<22} {figure:>14}")
    if answer.balance is not None and answer.balance.corrects:
        output.line(output.clean(answer.balance.text))
    output.line()
    _neighbours(answer)
    _tenants(answer)
    output.line()
    _jobs(answer)


def _neighbours(answer: Report) -> None:
    """Measured slowdowns of workload classes that share a node. Placement ignores slowdowns below 10 %."""
    slowed = [pair for pair in answer.neighbours if pair["slowdown"] >= LEAST_SLOWDOWN]
    if slowed:
        columns = [Column("WORKLOAD", grows=True), Column("NEXT TO", grows=True), Column("SLOWDOWN", right=True),
                   Column("SAMPLES", right=True)]  # fmt: skip
        rows = ([pair["class"], pair["beside"], output.percent(pair["slowdown"]), pair["seen"]] for pair in slowed)
        output.table(columns, rows, empty="")
        output.line()


def _tenants(answer: Report) -> None:
    columns = [
        Column("TENANT"), Column("WEIGHT", right=True), Column("ENTITLED", right=True), Column("SHARE", right=True),
        Column("USED", right=True), Column("JOBS", right=True), Column("WAIT", right=True), Column("JCT", right=True),
        Column("SLA MET", right=True),
    ]  # fmt: skip
    rows = (
        [
            each.tenant, output.number(each.weight), output.percent(each.entitlement), output.percent(each.share),
            output.duration(each.device_s), f"{each.finished}/{each.jobs}", output.duration(each.mean_wait_s),
            output.duration(each.mean_jct_s), output.percent(each.sla_satisfaction),
        ]
        for each in answer.tenants
    )  # fmt: skip
    output.table(columns, rows, empty="no tenants")
    output.legend(
        "ENTITLED: share by weight; SHARE: share of all device time used; USED: device time; JOBS: ended/all; "
        "WAIT: mean time in the queue; JCT: mean completion time from submission; SLA MET: jobs in time"
    )


def _jobs(answer: Report) -> None:
    lost = any(each.recoveries for each in answer.jobs)
    columns = [
        Column("JOB", ends=6), Column("TENANT"), Column("STATE"), Column("WAIT", right=True), Column("JCT", right=True),
        Column("SAMPLES/S", right=True, from_width=90 if lost else 0),
        Column("RECOVERIES", right=True, from_width=0 if lost else 90),
        Column("METRICS", grows=True),
    ]  # fmt: skip
    rows = (
        [
            each.job, each.tenant, output.state(each.state), output.duration(each.wait_s), output.duration(each.jct_s),
            output.number(each.samples_per_s),
            f"{each.recoveries} in {output.duration(each.recovery_s)}" if each.recoveries else "–",
            _metrics(each),
        ]
        for each in answer.jobs
    )  # fmt: skip
    output.table(columns, rows, empty="no jobs")
    if answer.jobs:
        output.legend("WAIT: time in the queue; JCT: completion time from submission; METRICS: last values")


def _metrics(job: JobReport) -> str:
    shown = [f"{name}{FIXED_SPACE}{output.number(value)}" for name, value in job.metrics.items()]
    if job.metrics_left_out:
        shown.append(f"and{FIXED_SPACE}{job.metrics_left_out}{FIXED_SPACE}more")
    return " ".join(shown) or "–"
