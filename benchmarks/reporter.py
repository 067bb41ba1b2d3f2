"""What all benchmarks share: rows against peers and targets, one table on the screen, one JSON file."""

from __future__ import annotations

import argparse
import json
import operator
import os
import re
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions

WIDTH = 100
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_TARGET = re.compile(r"(ratio )?(<=|>=|<|>) ?([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``ratio`` is value / peer_value; ``met`` is None where nothing was promised or measured."""

    name: str
    value: float | None
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = field(init=False)
    target: str | None = None
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        ratio = self.value / self.peer_value if self.value is not None and self.peer_value else None
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "met", met(self.target, self.value, ratio))


def met(target: str | None, value: float | None, ratio: float | None) -> bool | None:
    """Whether a figure is what ``<= 2.0`` asks of the value, or ``ratio >= 1`` of its ratio to the peer."""
    if target is None:
        return None
    parsed = _TARGET.fullmatch(target)
    if parsed is None:
        raise ValueError(f"{target!r} is not a target; write it like '<= 2.0' or 'ratio >= 1'")
    figure = ratio if parsed[1] else value
    return None if figure is None else bool(_COMPARE[parsed[2]](figure, float(parsed[3])))


def spread(figures: Sequence[float]) -> float:
    """How wide the middle half of them is."""
    low, _, high = statistics.quantiles(figures, n=4)
    return high - low


@dataclass(slots=True)
class Bench:
    """One run of one benchmark: it collects rows and says meanwhile what it does."""

    name: str
    quick: bool
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # what is behind a row, for the file only
    given: argparse.Namespace = field(default_factory=argparse.Namespace)

    def add(self, name: str, value: float | None, unit: str, *, peer: str | None = None,
            peer_value: float | None = None, target: str | None = None) -> Row:  # fmt: skip
        """Keep a figure."""
        row = Row(name, value, unit, peer=peer, peer_value=peer_value, target=target)
        self.rows.append(row)
        return row

    def note(self, text: str) -> None:
        """Something that a reader of the figures must know."""
        self.notes.append(text)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say what is being measured, as it may take a while."""
        begun_s = time.monotonic()
        print(f"  {what} ...", end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            print(f" {time.monotonic() - begun_s:.1f} s", file=sys.stderr, flush=True)


def main(name: str, run: Callable[[Bench], None], peers: Sequence[str] = (),
         options: Callable[[argparse.ArgumentParser], None] = lambda parser: None) -> None:  # fmt: skip
    """Run a benchmark as a command. A missed target is a finding, not a failure: the exit code stays 0.

    ``options`` adds those that only this one has; what was given is in ``Bench.given``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=run.__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: for a look, not for a figure")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows, machine and versions here")
    options(parser)
    given = parser.parse_args()
    bench = Bench(name, given.quick, given=given)
    facts = machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, whoever says stop
    try:
        run(bench)
    finally:  # what was measured before something went wrong is still worth seeing
        facts["load_at_end"] = [round(load, 2) for load in os.getloadavg()]
        print(table(bench.rows))
        for note in bench.notes:
            print(textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="  "))
        print(f"  {facts['cores']} cores ({facts['cpu']}), load at start {facts['load_at_start'][0]}"
              + (", quick" if bench.quick else ""))  # fmt: skip
    if given.json is not None:
        write(given.json, bench, facts, versions(["fairlead", "torch", *peers]))


def write(file: Path, bench: Bench, facts: dict[str, Any], used: dict[str, str]) -> None:
    """The same as JSON, for whoever compares runs."""
    document = {
        "benchmark": bench.name,
        "quick": bench.quick,
        "rows": [asdict(row) for row in bench.rows],
        "notes": bench.notes,
        "details": bench.details,
        "machine": facts,
        "versions": used,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


# ------------------------------------------------------------ the table


def table(rows: Sequence[Row], width: int = WIDTH) -> str:
    """The rows as text, never wider than the width: names and peers are cut, figures are not."""
    header = ("MEASURED", "VALUE", "TARGET", "", "PEER", "PEER'S", "RATIO")
    lines = [header, *(_cells(row) for row in rows)]
    sizes = [max(len(line[column]) for line in lines) for column in range(len(header))]
    spare = width - sum(sizes) - 2 * (len(sizes) - 1)
    for column, least in ((4, 16), (0, 20), (4, 0)):  # words give way: first the peer's, then the figure's own
        cut = min(max(0, -spare), max(0, sizes[column] - least))
        sizes[column] -= cut
        spare += cut
    right = {1, 5, 6}
    text = [
        "  ".join(_cut(cell, size).rjust(size) if place in right else _cut(cell, size).ljust(size)
                  for place, (cell, size) in enumerate(zip(line, sizes, strict=True))).rstrip()
        for line in lines
    ]  # fmt: skip
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {True: "met", False: "MISSED", None: "" if row.target is None else "?"}[row.met]
    value = "failed" if row.value is None else f"{number(row.value)} {row.unit}"
    theirs = ("failed" if row.peer_value is None else number(row.peer_value)) if row.peer else ""
    ratio = "" if row.ratio is None else f"{number(row.ratio)}x"
    return row.name, value, row.target or "", verdict, row.peer or "", theirs, ratio


def number(value: float) -> str:
    """Three figures that matter, and no exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{decimals}f}"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(size - 1, 0)] + "…"
