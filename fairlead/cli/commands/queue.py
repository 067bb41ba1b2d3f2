"""The verb queue: jobs that run or wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, client
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.cli.local_status import JobPage, JobRow
    from fairlead.views.jobs import JobView, Page

RANK = {"running": 0, "starting": 1, "stopping": 2, "queued": 3}
ENDED_RANK = 4
ACTIVE_STATES = "running,starting,stopping"
PIPED_ROWS = 40


def queue(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include ended jobs.")] = False,
    tenant: Tenant = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum rows; default: what fits the terminal.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List running and waiting jobs, running ones first."""
    states = None if everything else "active"
    if as_json:
        whole, total = _list_jobs(client().page, states, tenant, limit or 1_000_000)
        output.print_json({"jobs": whole, "total": total})
        return
    fitting = output.screen().lines - 4 if output.is_terminal() else PIPED_ROWS
    shown, total = _list_jobs(_page, states, tenant, limit or max(fitting, 5))
    columns = [
        Column("NAME", spare=True), Column("ID", ends=6), Column("TENANT"), Column("STATE"),
        Column("WORKERS", right=True), Column("PROGRESS", right=True), Column("ELAPSED", right=True),
        Column("STARTS IN", right=True, from_width=100), Column("LOSS", right=True, from_width=90),
        Column("NODES", from_width=110), Column("REASON", from_width=130),
    ]  # fmt: skip
    output.table(columns, map(_row, shown), empty="no jobs; submit one: fairlead submit job.yaml")
    if total > len(shown):
        output.line(f"… and {total - len(shown)} more (--limit N shows more, --json all)")


def _page(**params: Any) -> JobPage | Page:
    from fairlead.cli import local_status

    found = local_status.jobs(params)
    return client().page(**params) if found is None else found


def _list_jobs(
    ask: Callable[..., JobPage | Page], states: str | None, tenant: str | None, limit: int
) -> tuple[list[JobRow | JobView], int]:
    """The first ``limit`` jobs of the queue without duplicates, and the number of all jobs.

    A job that is preempted between two pages would be listed twice, and a job that starts would be missed. So
    duplicates are dropped, and running jobs are requested once more after more than one page.
    """
    shown: dict[str, JobRow | JobView] = {}
    total, pages = _collect(ask, states, tenant, limit, shown)
    if pages > 1:
        _collect(ask, ACTIVE_STATES, tenant, limit, shown)
    ordered = sorted(shown.values(), key=lambda job: RANK.get(job.state, ENDED_RANK))
    return ordered[:limit], max(total, len(shown))


def _collect(
    ask: Callable[..., JobPage | Page], states: str | None, tenant: str | None, limit: int,
    shown: dict[str, JobRow | JobView],
) -> tuple[int, int]:  # fmt: skip
    """Add jobs in these states to ``shown``; returns the number of matching jobs and of pages read."""
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
        job.name, job.id, job.tenant, output.state(job.state), f"{job.workers} of {bounds}",
        output.percent(job.step / job.total_steps) if job.total_steps else "–",
        output.duration(until - (begun or until)),
        output.duration(max(0.0, job.expected_start_s - time.time())) if job.expected_start_s is not None else "",
        output.number(job.loss), ",".join(job.nodes), (job.reason.text if job.reason else job.message or ""),
    ]  # fmt: skip
