"""How answers look in a terminal: tables that fit it, short times and sizes, and one JSON object when asked."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import sys
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
_FURTHEST_S = 1e11  # some 3,000 years: beyond it a time is no time
_LONGEST = 1e15  # a figure beyond it has more digits than anybody reads


@functools.cache
def console() -> Console:
    """For what moves on the screen; everything else does without, because it costs more to load than to use."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)


def screen() -> os.terminal_size:
    """How much there is room for: of the terminal, of what COLUMNS says, or the usual 80 by 24."""
    return shutil.get_terminal_size((80, 24))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def colours() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb")


def styled(text: str, style: str | None) -> str:
    """The text in a style, where there are colours."""
    number = _LINES.get(style or "") if text and colours() else None
    return f"\x1b[{number}m{text}\x1b[0m" if number else text


def line(text: str = "", style: str | None = None, *, rest: str = "") -> None:
    """One line, never folded: it may be copied from the terminal. The style is for the text, not for the rest.

    Whatever strangers wrote stays this one line, and steers nothing.
    """
    sys.stdout.write(f"{styled(plain(text), style)}{plain(rest)}\n")
    sys.stdout.flush()  # who follows something through a pipe sees each line at once


def note(text: str) -> None:
    """One line on stderr: for the person, not for what reads the answer."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def print_json(data: Any) -> None:
    """One JSON object on one line."""
    sys.stdout.write(json.dumps(data, default=_plain, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: BaseModel) -> Any:
    return json.loads(value.model_dump_json())  # infinities become null, which all the world can read


def clean(text: str) -> str:
    """What one stranger wrote, as it was meant to look: of a line that redraws itself the last state, no colours."""
    return plain(without_sequences(text.rstrip("\r\n").rpartition("\r")[2]))


def state(name: str) -> Cell:
    return Cell(name, STYLES.get(name, ""))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """The rows under their titles; ``empty`` is said instead of an empty table."""
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
    """The rows as comma-separated values (RFC 4180) under their titles.

    What a stranger named so that a spreadsheet would take it for a formula is disarmed by a quote before it.
    """
    import csv as format

    writer = format.writer(sys.stdout, lineterminator="\n")
    writer.writerow([_harmless(title) for title in titles])
    for row in rows:
        writer.writerow([_harmless(cell) for cell in row])


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = plain(cell)
    return f"'{text}" if cell.startswith(_FORMULA) or text.startswith(_FORMULA) else text


def duration(seconds: float | None) -> str:
    """Two figures at the most: 0.4s, 12s, 3m12s, 2h05m, 3d4h."""
    if seconds is None or not abs(seconds) < _FURTHEST_S:
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
    """A moment of today as its time, another one with its date."""
    if epoch_s is None or not abs(epoch_s) < _FURTHEST_S:
        return "–"
    moment = time.localtime(epoch_s)
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", moment)


def now_s() -> float:
    return time.time()


def moment_iso(epoch_s: float) -> str:
    """For machines: to the second, in UTC."""
    if not abs(epoch_s) < _FURTHEST_S:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))


def moment_utc(epoch_s: float) -> str:
    """For people, where the same moment must be meant everywhere."""
    if not abs(epoch_s) < _FURTHEST_S:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(epoch_s))


def ahead(epoch_s: float | None) -> str:
    """How far a moment to come is away."""
    if epoch_s is None or not abs(epoch_s) < _FURTHEST_S:
        return "not known"
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
    """A figure with so many significant digits, without an exponent where it can do without."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LONGEST else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return "–" if value is None or not abs(value) < _LONGEST else f"{value * 100:.0f} %"
