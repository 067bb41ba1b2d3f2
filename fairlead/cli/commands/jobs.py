"""Verbs that look at jobs: queue, logs, why, result, metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, Tenant, client
from fairlead.cli.text_tables import Column, most_columns

if TYPE_CHECKING:
    from fairlead.cli.local_status import JobPage, JobRow
    from fairlead.views.jobs import GenerationView, JobView, Page, PlanView, ResultView, Why

RANK = {"running": 0, "starting": 1, "stopping": 2, "queued": 3}
ENDED_RANK = 4
ON_THEIR_WAY = "running,starting,stopping"
PIPED_ROWS = 40


def queue(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    tenant: Tenant = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Rows; default: what fits.")] = None,
    as_json: Json = False,
) -> None:
    """Jobs that run and wait, running ones first."""
    states = None if everything else "active"
    if as_json:
        whole, total = _jobs(client().page, states, tenant, limit or 1_000_000)
        output.print_json({"jobs": whole, "total": total})
        return
    fitting = output.screen().lines - 4 if output.is_terminal() else PIPED_ROWS
    shown, total = _jobs(_page, states, tenant, limit or max(fitting, 5))
    columns = [
        Column("NAME", spare=True), Column("ID", ends=6), Column("TENANT"), Column("STATE"),
        Column("WORKERS", right=True), Column("DONE", right=True), Column("FOR", right=True),
        Column("STARTS IN", right=True, from_width=100), Column("LOSS", right=True, from_width=90),
        Column("NODES", from_width=110), Column("WHY", from_width=130),
    ]  # fmt: skip
    output.table(columns, map(_row, shown), empty="no jobs; submit one: fairlead submit job.yaml")
    if total > len(shown):
        output.line(f"… and {total - len(shown)} more (--limit N shows more of them, --json all)")


def _page(**params: Any) -> JobPage | Page:
    from fairlead.cli import local_status

    found = local_status.jobs(params)
    return client().page(**params) if found is None else found


def _jobs(
    ask: Callable[..., JobPage | Page], states: str | None, tenant: str | None, limit: int
) -> tuple[list[JobRow | JobView], int]:
    """The first so many jobs of the queue, each once, and how many there are.

    A page is of one moment. Between two of them a job may go back into the queue, which would list it twice, or begin
    to run, which would leave it out: so those that run are asked for once more after several pages.
    """
    shown: dict[str, JobRow | JobView] = {}
    total, pages = _collect(ask, states, tenant, limit, shown)
    if pages > 1:
        _collect(ask, ON_THEIR_WAY, tenant, limit, shown)
    ordered = sorted(shown.values(), key=lambda job: RANK.get(job.state, ENDED_RANK))
    return ordered[:limit], max(total, len(shown))


def _collect(
    ask: Callable[..., JobPage | Page], states: str | None, tenant: str | None, limit: int,
    shown: dict[str, JobRow | JobView],
) -> tuple[int, int]:  # fmt: skip
    """Add the jobs in these states that are not shown yet; how many there are, and how many pages that took."""
    total, pages, seen = 0, 0, 0
    cursor: str | None = None
    while not pages or (cursor is not None and seen < limit):
        page = ask(state=states, tenant=tenant, limit=min(limit, 1000), cursor=cursor, order="queue")
        total, pages, seen, cursor = page.total, pages + 1, seen + len(page.items), page.next
        shown |= {job.id: job for job in page.items if job.id not in shown}
    return total, pages


def _row(job: JobRow | JobView) -> list[object]:
    bounds = str(job.max_workers) if job.min_workers == job.max_workers else f"{job.min_workers}:{job.max_workers}"
    begun = job.started_s if job.state == "running" else job.submitted_s
    until = job.finished_s if job.finished_s is not None else time.time()
    return [
        job.name, job.id, job.tenant, output.state(job.state), f"{job.workers}/{bounds}",
        output.percent(job.step / job.total_steps) if job.total_steps else "–",
        output.duration(until - (begun or until)),
        output.duration(max(0.0, job.expected_start_s - time.time())) if job.expected_start_s is not None else "",
        output.number(job.loss), ",".join(job.nodes), (job.reason.text if job.reason else job.message or ""),
    ]  # fmt: skip


def logs(
    job: JobRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    worker: Annotated[str | None, typer.Option("--worker", help="Only this worker's.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="Only the last so many lines.")] = None,
    as_json: Json = False,
) -> None:
    """What the workers of a job wrote. With --json one object per line."""
    silent = True
    try:
        for written in client().logs(job, follow=follow, worker=worker, tail=tail):
            silent = False
            if as_json:
                output.print_json(written)
            else:
                output.line(
                    output.clean(written.text) if worker else f"{written.worker} | {output.clean(written.text)}"
                )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None  # who follows a log ends it that way
    if silent:
        output.note(f"{worker or job} has written nothing")


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
        output.line(f"  plan: {output.clean(_plan(job.plan))}")
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


def _plan(plan: PlanView) -> str:
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


def result(
    job: JobRef,
    download: Annotated[Path | None, typer.Option("--download", "-d", help="Put its files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """What an ended job left behind. Exit code 100 if it failed, 101 if it still runs, 103 if it was cancelled.

    With --download nothing that is there is replaced, unless --force says so. Files that the platform does not give
    are left out and named, and the exit code is 1.
    """
    platform = client()
    answer = platform.result(job, download=download, force=force)
    left_out: dict[str, str] = getattr(answer, "left_out", {})
    if as_json:
        output.print_json(answer)
    else:
        _result(answer, download, left_out)
    code = {"failed": 100, "cancelled": 103}.get(answer.state, 1 if left_out else 0)
    if code:
        raise typer.Exit(code)


def _result(answer: ResultView, download: Path | None, left_out: dict[str, str]) -> None:
    output.line(f"{answer.spec.get('name', answer.job)} ({answer.job}) {answer.state}")
    if answer.message:
        output.line(f"  {output.clean(answer.message)}")
    for name, value in answer.metrics.items():
        output.line(f"  {name:<20} {output.number(value, 4)}")
    told = {name: value for name, value in answer.figures.items() if value is not None}
    if told:
        output.line("  " + "  ".join(f"{name} {output.number(value)}" for name, value in told.items()))
    if answer.plan is not None:
        output.line(f"  plan: {output.clean(_plan(answer.plan))}")
    if answer.artifacts:
        place = f"in {download}" if download else f"(fairlead result {answer.job} --download DIR)"
        given = [name for name in answer.artifacts if name not in left_out]
        output.line(f"  files: {', '.join(given) or 'none'} {place}")
    for name, now in getattr(answer, "renamed", {}).items():
        output.line(f"  {name!r} is called {now} here")
    for name, why in left_out.items():
        output.line(f"  left out: {name!r}: {output.clean(why)}", style="yellow")


def metrics(
    job: JobRef,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="How many of the last steps.")] = None,
    as_json: Json = False,
) -> None:
    """A job's history per step: the last 20, with --json all of it."""
    steps = client().metrics(job)
    if as_json:
        output.print_json({"job": job, "steps": steps[-tail:] if tail else steps})
        return
    tail = tail or 20
    names = list(dict.fromkeys(name for step in steps for name in step))
    shown = names[: most_columns(output.screen().columns)]
    rows = ([_figure(name, step.get(name)) for name in shown] for step in steps[-tail:])
    output.table([Column(name, right=True) for name in shown], rows, empty="no steps yet")
    if len(steps) > tail:
        output.line(f"the last {tail} of {len(steps)} steps")
    if len(names) > len(shown):
        output.line(f"the first {len(shown)} of {len(names)} metrics; --json has all")


def _figure(name: str, value: float | None) -> str:
    """A step's moment is told in milliseconds of the day: ten digits of seconds since 1970 tell nobody anything."""
    if name != "time_s" or value is None or not abs(value) < 1e11:
        return output.number(value, 5)
    return f"{output.when(value)}.{int(value % 1 * 1000):03d}"
