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
