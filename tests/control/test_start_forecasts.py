"""Forecasts for those who ask: one for all, again only after another round, for no more than a part of a core."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fairlead.control.foresight.process import Foresight
from fairlead.control.observability.live_metrics import REGISTRY
from fairlead.control.plans.planner_process import InlinePlanner
from fairlead.control.service import start_forecasts
from fairlead.control.service.start_forecasts import CPU_FRACTION, MAX_JOBS_TO_WAIT, Forecasts, with_expected_start
from fairlead.errors import Unavailable
from fairlead.scheduling.state import ClusterState, Hold, Reason
from tests.scheduling import clusters


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_forecasts, "PATIENCE_S", 60.0)  # however busy the machine is


def here() -> Foresight:
    return Foresight(InlinePlanner())


class Cluster:
    """A cluster that counts how often it is looked at."""

    def __init__(self) -> None:
        busy = clusters.job("busy", workers=(4, 4), seats=tuple(f"node-{at}" for at in range(4)),
                            speeds={4: 100.0}, remaining_samples=1_000.0)  # fmt: skip
        self.state = clusters.state([busy, clusters.job("waits", workers=(2, 2), submitted_s=99.0)])
        self.looks = 0

    async def __call__(self) -> ClusterState:
        self.looks += 1
        return self.state


def test_all_who_ask_after_a_round_get_one_forecast() -> None:
    told, cluster = Forecasts(here()), Cluster()

    async def ask() -> list[Mapping[str, float]]:
        return await asyncio.gather(*(told.starts(1, 50.0, 100.0, cluster) for _ in range(5)))

    found = asyncio.run(ask())
    assert cluster.looks == 1
    assert all(starts["waits"] >= 110.0 for starts in found)


def test_the_next_round_is_played_once_the_last_forecast_has_paid_for_itself() -> None:
    told, cluster = Forecasts(here()), Cluster()

    def looks_after(decided_s: float, now_s: float) -> int:
        asyncio.run(told.starts(1, decided_s, now_s, cluster))
        return cluster.looks

    assert looks_after(50.0, 100.0) == 1
    cost_s = (told.again_s - 100.0) * CPU_FRACTION
    assert cost_s > 0
    assert looks_after(53.0, 100.0 + 0.5 * cost_s / CPU_FRACTION) == 1, "too soon"
    assert looks_after(53.0, told.again_s) == 2
    assert looks_after(53.0, told.again_s + 1e6) == 2, "nothing was decided since"


def test_a_page_is_shown_without_a_forecast_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_forecasts, "PATIENCE_S", 0.0)

    async def ask() -> None:
        told, cluster, answered = Forecasts(here()), Cluster(), asyncio.Event()

        async def slow() -> ClusterState:
            await answered.wait()
            return cluster.state

        assert await told.starts(1, 50.0, 100.0, slow) == {}
        answered.set()
        assert told.playing is not None
        await told.playing
        assert "waits" in await told.starts(1, 50.0, 100.0, slow)

    asyncio.run(ask())


def test_a_page_does_not_wait_where_the_queue_is_deep() -> None:
    told, cluster = Forecasts(here()), Cluster()

    async def ask() -> tuple[Mapping[str, float], Mapping[str, float]]:
        at_once = await told.starts(MAX_JOBS_TO_WAIT + 1, 50.0, 100.0, cluster)
        assert told.playing is not None
        await told.playing
        return at_once, await told.starts(MAX_JOBS_TO_WAIT + 1, 50.0, 100.0, cluster)

    at_once, later = asyncio.run(ask())
    assert "waits" not in at_once
    assert "waits" in later


def test_a_state_that_cannot_be_read_leaves_the_forecast_before() -> None:
    told = Forecasts(here(), {"waits": 7.0})

    async def unreadable() -> ClusterState:
        raise Unavailable("the store does not answer")

    assert asyncio.run(told.starts(1, 50.0, 100.0, unreadable)) == {"waits": 7.0}
    assert told.decided_s < 0


def test_a_job_that_no_forecast_can_be_played_with_keeps_no_page_from_anybody() -> None:
    told, cluster = Forecasts(here(), {"waits": 7.0}), Cluster()
    poisonous = replace(cluster.state.jobs[0], id="poisonous", demand={"cpu": "many"}, seats=())
    cluster.state = replace(cluster.state, jobs=(*cluster.state.jobs, poisonous))
    before = errors()
    for _ in range(3):
        assert asyncio.run(told.starts(1, 50.0, 100.0, cluster)) == {"waits": 7.0}
    assert errors() == before + 1, "told once, and not tried again before another round"
    assert asyncio.run(told.starts(1, 53.0, told.again_s, cluster)) == {"waits": 7.0}
    assert errors() == before + 2


def errors() -> float:
    return REGISTRY.get_sample_value("fairlead_internal_errors_total", {"reason": "looking ahead"}) or 0.0


def test_who_was_told_nothing_better_keeps_what_the_round_said() -> None:
    hold = Hold("a", Reason("no-room", "no room"), 5.0)
    assert with_expected_start(hold, None) is hold
    changed = with_expected_start(hold, 7.0)
    assert changed is not None and changed.expected_start_s == 7.0
    assert with_expected_start(None, 7.0) is None
