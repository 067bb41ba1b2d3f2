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
        bool, typer.Option("--forecast", help="Also when it is done, and whether its promise can be kept.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Why a job waits, runs as it does, or ended as it did; and when it will start."""
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
    output.line(f"{job.name} ({job.id}) of {job.tenant} {verb} {job.state}")
    output.line(f"  why: {output.clean(answer.reason.text)}")
    if job.message and job.message != answer.reason.text:
        output.line(f"  said: {output.clean(job.message)}")
    if job.state == "queued":
        done = "" if answer.expected_finish_s is None else f"    done: {output.ahead(answer.expected_finish_s)}"
        output.line(f"  starts: {output.ahead(answer.expected_start_s)}{done}")
        if answer.unforeseen is not None:
            output.line(f"  no forecast: {output.clean(answer.unforeseen)}")
        if answer.promise is not None:
            output.line(f"  promise: {output.clean(answer.promise.reason.text)}")
    if job.plan is not None:
        output.line(f"  plan: {output.clean(plan_summary(job.plan))}")
    if answer.profile:
        output.line(f"  kind: {_kind(answer.profile)}")
    for number, way in enumerate(answer.unblocks):
        output.line(f"  {'would help:' if number == 0 else '           '} {output.clean(way)}")
    if answer.ahead:
        first = ", ".join(answer.ahead[:8])
        rest = f" and {len(answer.ahead) - 8} more" if len(answer.ahead) > 8 else ""
        output.line(f"  ahead of it: {first}{rest}")


def _kind(profile: dict[str, Any]) -> str:
    lost = f", {output.percent(profile['network'])} of its speed lost to exchange" if profile["network"] >= 0.01 else ""
    cores, memory = output.percent(profile["compute"]), output.percent(profile["memory"])
    takes = f"takes {cores} of the cores and {memory} of the memory that come with a device{lost}"
    return f"{profile['purpose']}, {profile['bound']}-bound; {takes} (score {profile['score']:.2g})"


def plan_summary(plan: PlanView) -> str:
    """What it runs, what a step was expected to take and took, and why."""
    times = [
        f"{word} {seconds * 1000:.3g} ms a step"
        for word, seconds in (("predicted", plan.step_s), ("measured", plan.measured_step_s)) if seconds is not None
    ]  # fmt: skip
    return f"{', '.join([plan.id, *times])}; {plan.reason}"


def _generations(generations: list[GenerationView]) -> None:
    columns = [
        Column("GEN", right=True), Column("PHASE"), Column("WORKERS", right=True), Column("NODES", from_width=110),
        Column("PLAN", from_width=90), Column("FROM"), Column("FOR", right=True), Column("WHY", grows=True),
    ]  # fmt: skip
    rows = (
        [
            each.number, each.phase, _working(each), ",".join(sorted({member.node for member in each.members})),
            each.plan.id if each.plan else "–", output.when(each.running_s or each.created_s),
            output.duration((each.ended_s or time.time()) - (each.running_s or each.created_s)),
            each.reason.text + (f" → {each.outcome}" if each.outcome else ""),
        ]
        for each in generations[-8:]
    )  # fmt: skip
    output.table(columns, rows, empty="")


def _working(each: GenerationView) -> int | str:
    """Its workers; of a plan that lets some of them rest how many work, as all are held and charged."""
    held = len(each.members)
    working = held if each.plan is None else min(held, each.plan.workers_used)
    return held if working == held else f"{working} of {held}"
