"""The hollow agents drive the real controller: gangs are taken over, report, end, and others start."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import hollow


def test_a_few_gangs_run_on_hollow_agents_and_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hollow, "SETTLE_S", 0.0)
    monkeypatch.setattr(hollow, "STARTED", 1)
    monkeypatch.setattr(hollow, "EVERY_S", 0.5)
    found = asyncio.run(hollow.measured(3, 2.0))
    assert found.events_per_s > 0 and found.percent > 0
    assert 0 < found.stored_s[0] <= found.stored_s[1] < 30.0
    assert found.start_s > 0
