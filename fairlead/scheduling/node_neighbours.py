"""Who shares a node with whom on a board, and what that is known to cost them."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.scheduling.market.colocation import Table, combined_loss
from fairlead.scheduling.market.seat_requests import workload_class
from fairlead.scheduling.state import JobState

STEP = 0.1
"""Only whole tenths of its speed that a gang loses count: what was measured is never quite the same."""


class NeighbourTable:
    """The gangs on every node by class. Without a table there are no classes, and nothing is counted."""

    def __init__(self, table: Table, on: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = table
        self.known = bool(table)  # whether anything is known of any class
        self._on: dict[str, Mapping[str, str]] = dict(on or {})  # node -> job -> class

    def copy(self) -> NeighbourTable:
        return NeighbourTable(self._table, self._on)

    def kind(self, job: JobState) -> str:
        """The class by which a job is known to its neighbours; empty where nothing is known of any."""
        return workload_class(job.facts) if self._table else ""

    def moves(self, job: JobState, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """A gang sits elsewhere now."""
        if not self._table:
            return
        for name in {*before, *after}:
            here = {other: kind for other, kind in self._on.get(name, {}).items() if other != job.id}
            self._on[name] = here | ({job.id: self.kind(job)} if name in after else {})

    def harm(self, kind: str, node: str) -> int:
        """What such a gang would lose to those who sit there, and they to it, in whole steps."""
        if not self._table:
            return 0
        others = sorted(set(self._on.get(node, {}).values()))
        loses = combined_loss(self._table.get((kind, other), 0.0) for other in others)
        costs = sum(max(0.0, self._table.get((other, kind), 0.0)) for other in others)
        return int((loses + costs) / STEP + 1e-9)
