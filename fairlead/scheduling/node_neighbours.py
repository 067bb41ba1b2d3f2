"""Tracks which workload classes share a node, and how much speed that costs them."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.scheduling.market.colocation import Table, combined_loss
from fairlead.scheduling.market.seat_requests import workload_class
from fairlead.scheduling.state import JobState

STEP = 0.1
"""Losses count in whole tenths of a gang's speed: measurements are never quite the same."""


class NeighbourTable:
    """The workload classes on every node. Without a table it counts nothing."""

    def __init__(self, table: Table, on: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = table
        self.known = bool(table)  # whether any interference is known
        self._on: dict[str, Mapping[str, str]] = dict(on or {})  # node -> job -> class

    def copy(self) -> NeighbourTable:
        return NeighbourTable(self._table, self._on)

    def kind(self, job: JobState) -> str:
        """The workload class of a job; empty without a table."""
        return workload_class(job.facts) if self._table else ""

    def moves(self, job: JobState, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Record that a gang moved from one set of seats to another."""
        if not self._table:
            return
        for name in {*before, *after}:
            here = {other: kind for other, kind in self._on.get(name, {}).items() if other != job.id}
            self._on[name] = here | ({job.id: self.kind(job)} if name in after else {})

    def harm(self, kind: str, node: str) -> int:
        """Speed that a gang of this class would lose on the node and cost the gangs there, in whole steps."""
        if not self._table:
            return 0
        others = sorted(set(self._on.get(node, {}).values()))
        loses = combined_loss(self._table.get((kind, other), 0.0) for other in others)
        costs = sum(max(0.0, self._table.get((other, kind), 0.0)) for other in others)
        return int((loses + costs) / STEP + 1e-9)
