"""Shows a job's progress until it has ended: a live line in a terminal, else a line per change."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.errors import FairleadError, StillRunning
from fairlead.sdk.jobs import ENDED, Job, check
from fairlead.terminal import plain

if TYPE_CHECKING:
    from fairlead.views.jobs import JobView

POLL_S = 0.3


def watch(job: Job, *, as_json: bool = False) -> int:
    """Follow the job and return its exit code. Ctrl-C stops watching, not the job."""
    try:
        if as_json:
            job.wait()
        elif output.is_terminal():
            _live(job)
        else:
            _lines(job)
    except KeyboardInterrupt:
        if as_json:
            output.print_json(job.view)
            return StillRunning.exit_code
        output.line()
        output.line(f"{job.name} keeps {'waiting' if job.state == 'queued' else 'running'}")
        output.line(f"  follow: fairlead logs {job.id} -f    cancel: fairlead cancel {job.id}")
        return StillRunning.exit_code
    if as_json:
        output.print_json(job.view)
    else:
        summary(job.view)
    return exit_code(job.view)


def exit_code(view: JobView) -> int:
    """0 for success, else the exit code of the job's end."""
    try:
        check(view)
    except FairleadError as error:
        return error.exit_code
    return 0


def summary(view: JobView) -> None:
    """Print how the job ended."""
    took_s = None if view.finished_s is None else view.finished_s - view.submitted_s
    output.line(f"{view.name} ({view.id}) {view.state} after {output.duration(took_s)}")
    if view.message:
        output.line(f"  {output.clean(view.message)}")
    if view.metrics:
        output.line("  " + "  ".join(f"{name} {output.number(value, 4)}" for name, value in view.metrics.items()))
    counts = {"recoveries": view.recoveries, "preemptions": view.preemptions, "resizes": view.resizes}
    if any(counts.values()):
        output.line("  " + "  ".join(f"{name} {count}" for name, count in counts.items() if count))


def figures(view: JobView) -> str:
    """Loss, speed and workers of a running job; the reason of a waiting one."""
    if view.state in ("queued", "starting"):
        return output.clean(view.reason.text) if view.reason else ""
    parts = [f"loss {output.number(view.loss, 4)}"] if view.loss is not None else []
    if view.samples_per_s:
        parts.append(f"{output.number(view.samples_per_s)} samples/s")
    if view.state not in ENDED:
        parts.append(f"{view.workers} worker{'' if view.workers == 1 else 's'}")
    return "  ".join(parts)


def _live(job: Job) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    name = plain(job.name)
    fixed = Column(no_wrap=True, min_width=min(len(name), 20), overflow="ellipsis")
    state = Column(no_wrap=True, min_width=len("succeeded"))
    rest = Column(no_wrap=True, ratio=1, overflow="ellipsis")  # a long reason is cut, not the name before it
    words = functools.partial(TextColumn, markup=False)  # markup=False: names are not markup
    columns = (
        words("{task.description}", table_column=fixed),
        words("{task.fields[state]}", style="cyan", table_column=state), BarColumn(bar_width=12),
        words("{task.completed:.0f}/{task.fields[steps]}", table_column=Column(no_wrap=True, min_width=7)),
        TimeElapsedColumn(), words("{task.fields[figures]}", table_column=rest),
    )  # fmt: skip
    with Progress(*columns, console=output.console(), transient=True, expand=True) as progress:
        task = progress.add_task(name, total=None, state="", steps="?", figures="")
        while True:
            view = job.view
            progress.update(
                task, total=view.total_steps or None, completed=view.step, state=plain(view.state),
                steps=str(view.total_steps or "?"), figures=plain(figures(view)),
            )  # fmt: skip
            if view.state in ENDED:
                return
            time.sleep(POLL_S)
            job.refresh()


def _lines(job: Job) -> None:
    """Print a line when the state, the number of workers or the tenth of the steps changes."""
    shown: object = None
    while True:
        view = job.view
        tenth = view.step * 10 // view.total_steps if view.total_steps else 0
        now = (view.state, view.workers, tenth)
        if now != shown:
            steps = f"step {view.step}/{view.total_steps or '?'}  " if view.step else ""
            output.line(f"{output.when(time.time())} {job.name}: {view.state}  {steps}{figures(view)}".rstrip())
            shown = now
        if view.state in ENDED:
            return
        time.sleep(POLL_S)
        job.refresh()
