"""Prints answers: tables that fit the terminal, short durations and sizes, or one JSON object."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.cli.text_tables import Cell, Column, draw
from fairlead.terminal import plain, without_sequences

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

_GREEN, _YELLOW, _CYAN, _MAGENTA, _RED = "32", "33", "36", "35", "1;31"
STYLES = {
    "running": _GREEN, "ready": _GREEN, "succeeded": _GREEN, "ok": _GREEN, "queued": _YELLOW, "cordoned": _YELLOW,
    "draining": _YELLOW, "drained": _YELLOW, "warn": _YELLOW, "starting": _CYAN, "stopping": _CYAN,
    "asleep": _CYAN, "waking": _CYAN,
    "cancelled": _MAGENTA, "failed": _RED, "lost": _RED, "fail": _RED,
}  # fmt: skip
_LINES = {"dim": "2", "bold": "1", "yellow": _YELLOW, "red": _RED, "green": _GREEN}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MAX_TIME_S = 1e11  # about 3,000 years; later times are invalid
_MAX_PLAIN = 1e15  # larger figures are written with an exponent


@functools.cache
def console() -> Console:
    """The rich console, for progress bars only: loading rich takes longer than most verbs."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)


def screen() -> os.terminal_size:
    """The size of the terminal, or COLUMNS by LINES, or 80 by 24."""
    return shutil.get_terminal_size((80, 24))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def colours() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb")


def styled(text: str, style: str | None) -> str:
    """The text in a style, if the terminal shows colours."""
    number = _LINES.get(style or "") if text and colours() else None
    return f"\x1b[{number}m{text}\x1b[0m" if number else text


def line(text: str = "", style: str | None = None, *, rest: str = "") -> None:
    """Print one line, never wrapped, so that it can be copied. The style applies to ``text``, not to ``rest``.

    Control characters and line breaks are removed: text from tenants cannot steer the terminal.
    """
    sys.stdout.write(f"{styled(plain(text), style)}{plain(rest)}\n")
    sys.stdout.flush()  # a reader of a pipe gets each line at once


def note(text: str) -> None:
    """Print one line on stderr: for a person, not for a program that reads the answer."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def legend(text: str) -> None:
    """Explain a table's columns and units, wrapped to the terminal's width."""
    for part in textwrap.wrap(plain(text), max(20, screen().columns), break_on_hyphens=False):
        line(part, style="dim")


def print_json(data: Any) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json.dumps(data, default=_plain, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: BaseModel) -> Any:
    return json.loads(value.model_dump_json())  # infinities become null, which every JSON reader accepts


def clean(text: str) -> str:
    """A line that a tenant wrote, without control characters and colours; of a redrawn line the last state."""
    return plain(without_sequences(text.rstrip("\r\n").rpartition("\r")[2]))


def state(name: str) -> Cell:
    return Cell(name, STYLES.get(name, ""))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print the rows under their titles, or ``empty`` if there are none."""
    width = screen().columns
    chosen = [place for place, column in enumerate(columns) if width >= column.from_width]
    cells = [[_cell(row[place]) for place in chosen] for row in rows]
    if not cells:
        line(empty)
        return
    drawn = draw([columns[place] for place in chosen], cells, width, colours=colours())
    sys.stdout.write("".join(f"{text}\n" for text in drawn))


def _cell(value: Any) -> Cell:
    return value if isinstance(value, Cell) else Cell(clean(str(value)))


def csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print the rows as comma-separated values (RFC 4180) under their titles.

    A quote in front disarms text that a spreadsheet would run as a formula.
    """
    import csv as format

    writer = format.writer(sys.stdout, lineterminator="\n")
    writer.writerow([_without_formula(title) for title in titles])
    for row in rows:
        writer.writerow([_without_formula(cell) for cell in row])


def _without_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = plain(cell)
    return f"'{text}" if cell.startswith(_FORMULA) or text.startswith(_FORMULA) else text


def duration(seconds: float | None) -> str:
    """A duration with at most two units: 0.4s, 12s, 3m12s, 2h05m, 3d4h."""
    if seconds is None or not abs(seconds) < _MAX_TIME_S:
        return "–"
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def when(epoch_s: float | None) -> str:
    """A local time; with its date unless it is today."""
    if epoch_s is None or not abs(epoch_s) < _MAX_TIME_S:
        return "–"
    moment = time.localtime(epoch_s)
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", moment)


def now_s() -> float:
    return time.time()


def moment_iso(epoch_s: float) -> str:
    """A time for programs: ISO 8601 in UTC, to the second."""
    if not abs(epoch_s) < _MAX_TIME_S:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))


def moment_utc(epoch_s: float) -> str:
    """A time for people in different time zones, in UTC."""
    if not abs(epoch_s) < _MAX_TIME_S:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(epoch_s))


def ahead(epoch_s: float | None) -> str:
    """The time from now until a future moment."""
    if epoch_s is None or not abs(epoch_s) < _MAX_TIME_S:
        return "unknown"
    left_s = epoch_s - time.time()
    return "now" if left_s < 1 else f"in about {duration(left_s)} ({when(epoch_s)})"


def size(count: float | None) -> str:
    if count is None or not math.isfinite(count):
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{number(count, 4)} TB" if abs(count) >= 1000 else f"{count:.1f} TB"


def number(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits, without an exponent below 1e15."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _MAX_PLAIN else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return "–" if value is None or not abs(value) < _MAX_PLAIN else f"{value * 100:.0f} %"
