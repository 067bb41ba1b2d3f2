"""Simulates interference between gangs on shared nodes, and what telemetry would have learned of it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.scheduling.market.colocation import Observation, Table, learn_losses, slowdown
from fairlead.simulation.active_job import ActiveJob


class TrueInterference:
    """The true interference, which no policy sees, and the table learned so far, which policies see."""

    def __init__(self, truth: Table) -> None:
        self._truth = truth
        self.learned: Table = {}

    def meet(self, running: Iterable[ActiveJob]) -> None:
        """Set each gang's slowdown: that of the node with the worst neighbours."""
        gangs = list(running)
        on: dict[str, list[ActiveJob]] = {}
        for gang in gangs:
            for name in set(gang.seats):
                on.setdefault(name, []).append(gang)
        for gang in gangs:
            gang.slowed = max(
                slowdown(self._truth, gang.workload, (other.workload for other in on[name] if other is not gang))
                for name in set(gang.seats)
            )
        self.learned = learn_losses(self.learned, self._seen(gangs, on))

    def _seen(self, gangs: Iterable[ActiveJob], on: Mapping[str, list[ActiveJob]]) -> list[Observation]:
        found = []
        for gang in gangs:
            beside = {other.workload for name in set(gang.seats) for other in on[name] if other is not gang}
            if beside and gang.slowed < 1.0:
                found.append(Observation(gang.workload, tuple(sorted(beside)), 1.0 - gang.slowed, 1.0))
        return found


def read_table(path: Path) -> dict[tuple[str, str], float]:
    """From a CSV of ``class,beside,slowdown``: the part of its speed that a class loses beside another, 0 to 1."""
    if not path.is_file():
        raise InvalidSpec(f"there is no file {path}", field="--colocation", fix="a CSV of class,beside,slowdown")
    found: dict[tuple[str, str], float] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not any(row) or (number == 1 and row[-1].strip().lower() == "slowdown"):
                continue
            try:
                kind, beside, slower = (field.strip() for field in row)
                lost = float(slower)
            except ValueError as error:
                raise InvalidSpec(f"line {number} is not class,beside,slowdown", field=path.name) from error
            if not 0.0 <= lost < 1.0:
                raise InvalidSpec(f"line {number}: a slowdown is at least 0 and less than 1", field=path.name)
            found[kind, beside] = lost
    return found
