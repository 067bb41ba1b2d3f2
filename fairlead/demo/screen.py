"""Shows the demonstration: live tables of tenants, jobs and nodes in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.cli.output import STYLES, clean, number
from fairlead.demo.participants import JOBS, TENANTS
from fairlead.demo.scenario import PlatformState, Scenario
from fairlead.views.jobs import EventView, JobView, NodeView, TenantView

LINE_EVERY_S = 5.0
MAX_EVENT_LINES = 8
SIDE_BY_SIDE = 104  # terminal columns from which the tenant and node tables fit side by side
HIDDEN_EVENTS = frozenset({"job-submitted", "tenant-created"})
COLORS = {tenant.name: tenant.color for tenant in TENANTS}
NOTES = {work.name: work for work in JOBS}


class Screen:
    """Shows each state of the platform. A context manager, so that the terminal is restored."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=8, auto_refresh=False) if console.is_terminal else None
        self._lines: deque[Text] = deque(maxlen=MAX_EVENT_LINES)
        self._headline = ""
        self._line_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, scenario: Scenario, state: PlatformState) -> None:
        lines = [_event_line(scenario, event) for event in state.events if event.kind not in HIDDEN_EVENTS]
        if self._live is not None:
            self._lines.extend(lines)
            self._live.update(self._picture(scenario, state), refresh=True)
            return
        for line in lines:
            self.console.print(line, soft_wrap=True)
        if scenario.headline != self._headline or state.time_s - self._line_s >= LINE_EVERY_S:
            self._line_s = state.time_s
            self.console.print(_line(scenario, state, headline=scenario.headline != self._headline), soft_wrap=True)
            self._headline = scenario.headline

    def _picture(self, scenario: Scenario, state: PlatformState) -> RenderableType:
        title = Text.assemble((_clock(scenario, state.time_s), "bold"), "  ", (scenario.headline, "bold cyan"))
        tenants, jobs, nodes = _tenants(state.tenants), _jobs(scenario, state.jobs), _nodes(scenario, state.nodes)
        parts: list[RenderableType] = [Text(), title, Text()]
        if self.console.width >= SIDE_BY_SIDE:
            beside = Table.grid(padding=(0, 4, 0, 0))
            beside.add_row(tenants, nodes)
            parts += [beside, Text(), jobs, Text()]
        else:
            parts += [tenants, Text(), jobs, Text(), nodes, Text()]
        tables = 3 + sum(table.row_count + 2 for table in (tenants, jobs, nodes))
        room = max(1, min(MAX_EVENT_LINES, self.console.height - tables - 1))
        parts += list(self._lines)[-room:]
        return Group(*parts)


def _clock(scenario: Scenario, time_s: float) -> str:
    passed = max(0, round(time_s - scenario.started_s))
    return f"{passed // 60}:{passed % 60:02d}"


def _named(scenario: Scenario, text: str) -> str:
    """The text with job names instead of job ids."""
    for job, name in scenario.names.items():
        text = text.replace(job, name)
    return clean(text)


def _event_line(scenario: Scenario, event: EventView) -> Text:
    lost = "lost" in event.kind
    style = "bold red" if lost else "green" if event.kind in ("job-recovered", "job-succeeded") else "dim"
    line = Text(f"{_clock(scenario, event.time_s):>5}  {_named(scenario, event.text)}", style=style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _line(scenario: Scenario, state: PlatformState, *, headline: bool) -> Text:
    shares = "  ".join(f"{each.name} {each.devices}/{each.entitlement:.2f}" for each in _in_order(state.tenants))
    work = "  ".join(f"{job.name} {_progress(job)}" for job in state.jobs)
    line = Text(f"{_clock(scenario, state.time_s):>5}  devices held/entitled: {shares}  |  {work}")
    if headline:
        line = Text(f"{_clock(scenario, state.time_s):>5}  == {scenario.headline}\n", style="bold cyan") + line
    return line


def _progress(job: JobView) -> str:
    if job.state != "running" or not job.total_steps:
        return job.state
    return f"{100 * job.step // job.total_steps} % x{job.workers}"


def _in_order(tenants: list[TenantView]) -> list[TenantView]:
    return sorted(tenants, key=lambda tenant: -tenant.weight)


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title.lstrip("<"), justify="left" if title.startswith("<") else "right", no_wrap=True)
    return table


def _tenants(tenants: list[TenantView]) -> Table:
    table = _table("<TENANT", "WEIGHT", "ENTITLED", "HOLDS", "<DEVICES NOW", "USED SO FAR")
    whole = sum(tenant.device_s for tenant in tenants) or 1.0
    for tenant in _in_order(tenants):
        color = COLORS.get(tenant.name, "white")
        table.add_row(
            Text(tenant.name, style=f"bold {color}"), f"{tenant.weight:g}", f"{tenant.entitlement:.2f}",
            str(tenant.devices), Text("■ " * tenant.devices, style=color), f"{100 * tenant.device_s / whole:.0f} %",
        )  # fmt: skip
    return table


def _jobs(scenario: Scenario, jobs: list[JobView]) -> Table:
    table = _table("<JOB", "<WHAT", "<STATE", "<WORKERS ON", "<PROGRESS", "LOSS", "SAMPLES/S")
    for job in jobs:
        note, color = NOTES[scenario.names[job.id]], COLORS.get(job.tenant, "white")
        where = " ".join(node.removeprefix("node-") for node in sorted(job.nodes)) if job.state == "running" else ""
        table.add_row(
            Text(job.name, style=f"bold {color}"), f"{note.what} on {note.data.name_in_use()}"[:34],
            Text(job.state, style=STYLES.get(job.state, "")), where, _bar(job, color),
            number(job.loss) if job.loss is not None else "", number(job.samples_per_s) if job.samples_per_s else "",
        )  # fmt: skip
    return table


def _bar(job: JobView, color: str, width: int = 20) -> Text:
    if job.state == "succeeded":
        return Text("━" * width, style=color)
    if not job.total_steps:
        return Text("")
    done = width * job.step // job.total_steps
    return Text.assemble(("━" * done, color), ("─" * (width - done), "dim"))


def _nodes(scenario: Scenario, nodes: list[NodeView]) -> Table:
    table = _table("<NODE", "<STATE", "<RUNS", "BUSY")
    for node in nodes:
        runs = " ".join(scenario.names.get(job, job) for job in node.jobs)
        busy = "" if node.cpu_fraction is None else f"{100 * node.cpu_fraction:.0f} %"
        table.add_row(node.name, Text(node.state, style=STYLES.get(node.state, "")), runs, busy)
    return table
