"""What the benchmark of the policy shows: both settings and the live path of every trace, and every seed of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scheduling, unseen
from benchmarks.reporter import Bench
from fairlead.cluster import DEVICE, Node
from fairlead.simulation.engine import Settings
from fairlead.simulation.outcome import JobOutcome, Outcome
from fairlead.simulation.trace import Trace

NODES = (Node("n", {DEVICE: 1.0}, "gpu"),)


def outcome(*late_s: float) -> Outcome:
    jobs = [JobOutcome(f"j{at}", "t", 0.0, 0.0, 10.0 + late, 10.0, 10.0, 0, 10.0) for at, late in enumerate(late_s)]
    return Outcome(jobs, 1, len(jobs), 0.0, 10.0, 0.0, [0.001])


@pytest.mark.parametrize("case", scheduling.CASES, ids=lambda case: case.name)
def test_the_table_shows_both_settings_of_every_trace_but_the_dearest_and_targets_only_where_they_were_set(
    case: scheduling.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, bool]] = []

    def simulated(trace: Trace, policy: str, nodes: Sequence[Node], settings: Settings | None = None, **_: Any) -> Any:
        ran.append((policy, (settings or Settings()).declared))
        return outcome(0.0)

    monkeypatch.setattr(scheduling, "simulated", simulated)
    monkeypatch.setattr(scheduling, "read_trace", lambda path: Trace("t", "csv", (), 60.0, 0.0, NODES))
    bench = Bench("scheduling", quick=False)
    scheduling._case(bench, case, Path("t"))
    both = {("fairlead", True), ("fairlead", False)}
    assert {("fairlead", case.declared)} == both & set(ran) if case.once else both <= set(ran)
    assert bool(bench.notes) == case.once
    promised = {row.name.removeprefix(f"{case.name} ").split()[0] for row in bench.rows if row.target}
    assert promised == ({"fairlead"} if any(figure.target for figure in case.figures) else set())
    assert not [row for row in bench.rows if row.target and ("learned" in row.name or "declared" in row.name)]


def test_many_tenants_are_run_under_several_seeds_and_the_worst_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    late = iter([(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)])
    monkeypatch.setattr(unseen, "simulated", lambda *_: outcome(*next(late)))
    bench = Bench("unseen", quick=False)
    unseen._tenants(bench, range(1, 4))
    rows = {row.name: (row.value, row.peer_value) for row in bench.rows}
    assert rows["10 tenants SSR, better in 3 of 3"] == (1.0, 0.0)
    assert rows["10 tenants SSR, worst seed"] == (0.5, 0.0)
    assert [one["seed"] for one in bench.details["10 tenants"]["fairlead"]] == [1, 2, 3]
