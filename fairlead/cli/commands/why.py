"""The verb why: why a job waits, runs as it does, or ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, client
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.views.jobs import GenerationView, PlanView, Why


def why(
    job: JobRef,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Also predict its end and whether its SLA can be met.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain why a job waits, runs on its present devices, or ended; and when it will start."""
    answer = client().why(job, forecast=forecast)
    if as_json:
        output.print_json(answer)
        return
    _explain(answer)
    if answer.generations:
        output.line()
        _generations(answer.generations)


def _explain(answer: Why) -> None:
    job = answer.job
    verb = {"succeeded": "has", "failed": "has", "cancelled": "was"}.get(job.state, "is")
    output.line(f"{job.name} ({job.id}) of tenant {job.tenant} {verb} {job.state}")
    output.line(f"  reason: {output.clean(answer.reason.text)}")
    if job.message and job.message != answer.reason.text:
        output.line(f"  message: {output.clean(job.message)}")
    if job.state == "queued":
        done = "" if answer.expected_finish_s is None else f"    ends: {output.ahead(answer.expected_finish_s)}"
        output.line(f"  starts: {output.ahead(answer.expected_start_s)}{done}")
        if answer.unforeseen is not None:
            output.line(f"  no forecast: {output.clean(answer.unforeseen)}")
        if answer.promise is not None:
            output.line(f"  SLA: {output.clean(answer.promise.reason.text)}")
    if job.plan is not None:
        output.line(f"  plan: {output.clean(plan_summary(job.plan))}")
    if answer.profile:
        output.line(f"  workload: {_kind(answer.profile)}")
    for number, way in enumerate(answer.unblocks):
        output.line(f"  {'to start it sooner:' if number == 0 else '                   '} {output.clean(way)}")
    if answer.ahead:
        first = ", ".join(answer.ahead[:8])
        rest = f" and {len(answer.ahead) - 8} more" if len(answer.ahead) > 8 else ""
        output.line(f"  jobs ahead in the queue: {first}{rest}")


def _kind(profile: dict[str, Any]) -> str:
    network = profile["network"]
    lost = f", loses {output.percent(network)} of its speed to communication" if network >= 0.01 else ""
    cores, memory = output.percent(profile["compute"]), output.percent(profile["memory"])
    uses = f"each worker uses {cores} of a device's cores and {memory} of its memory{lost}"
    return f"{profile['purpose']}, {profile['bound']}-bound; {uses} (resource score {profile['score']:.2g}, at most 1)"


def plan_summary(plan: PlanView) -> str:
    """The plan's id, its predicted and measured time per step, and why it was chosen."""
    times = [
        f"{word} {seconds * 1000:.3g} ms per step"
        for word, seconds in (("predicted", plan.step_s), ("measured", plan.measured_step_s)) if seconds is not None
    ]  # fmt: skip
    return f"{', '.join([plan.id, *times])}; {plan.reason}"


def _generations(generations: list[GenerationView]) -> None:
    columns = [
        Column("GEN", right=True), Column("PHASE"), Column("WORKERS", right=True), Column("NODES", from_width=110),
        Column("PLAN", from_width=90), Column("SINCE"), Column("LASTED", right=True), Column("REASON", grows=True),
    ]  # fmt: skip
    rows = (
        [
            each.number, each.phase, _workers(each), ",".join(sorted({member.node for member in each.members})),
            each.plan.id if each.plan else "–", output.when(each.running_s or each.created_s),
            output.duration((each.ended_s or time.time()) - (each.running_s or each.created_s)),
            each.reason.text + (f" → {each.outcome}" if each.outcome else ""),
        ]
        for each in generations[-8:]
    )  # fmt: skip
    output.table(columns, rows, empty="")


def _workers(each: GenerationView) -> int | str:
    """The number of workers; where the plan leaves some idle (they are still charged), how many of them work."""
    held = len(each.members)
    working = held if each.plan is None else min(held, each.plan.workers_used)
    return held if working == held else f"{working} of {held}"
