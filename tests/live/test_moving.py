"""Where a live platform seats gangs: on the cooler node, and one moves for another that fits nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.crashable import PROGRAMS, Crashable, same_curve, wait_until
from tests.cli.conftest import Terminal

STEPS = 600
DEGREES = {"node-0": 80.0, "node-1": 45.0}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    crashable = Crashable(tmp_path_factory.mktemp("moving"), "1@eu,1@us")
    sensors = tmp_path_factory.mktemp("sensors")
    for node, degrees in DEGREES.items():
        zone = sensors / node / "thermal" / "thermal_zone0"
        zone.mkdir(parents=True)
        (zone / "temp").write_text(f"{degrees * 1000:.0f}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRLEAD_SENSORS", str(sensors))
        try:
            crashable.up()
            crashable.client.create_tenant("alpha")
            yield crashable
        finally:
            crashable.down()


def test_a_job_starts_on_the_cooler_node_and_the_temperature_is_told(platform: Crashable) -> None:
    def told() -> dict[str, float | None]:
        return {node.name: node.temperature_c for node in platform.call(lambda c: c.nodes())}

    wait_until(lambda: told() == DEGREES, 60, "the nodes tell how warm they are")
    assert "45 °C" in Terminal(platform.home, environment={"COLUMNS": "120"})("nodes").out
    job = platform.call(lambda c: c.submit(["true"], tenant="alpha", name="cool"))
    platform.wait_for_end(job.id)
    assert platform.call(lambda c: c.detail(job.id)).generations[0].members[0].node == "node-1"


def test_a_gang_moves_with_its_state_for_one_that_may_run_only_where_it_sits(platform: Crashable) -> None:
    alone = platform.train("alone", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(alone.id)
    anywhere = platform.train("anywhere", workers="1", steps=STEPS, pause_s=0.2)
    wait_until(lambda: platform.view(anywhere.id).step > 10, 60, "it trains")
    (home,) = platform.view(anywhere.id).nodes
    zone = {"node-0": "eu", "node-1": "us"}[home]
    fields = {"name": "bound", "tenant": "alpha", "workers": "1", "placement": {"only": [zone]}}
    bound = platform.call(
        lambda c: c.submit("train.py:training", folder=PROGRAMS, params={"steps": 50, "pause_s": 0.0}, **fields)
    )
    wait_until(lambda: platform.view(anywhere.id).nodes not in ([], [home]), 90, "it sits elsewhere")
    platform.wait_for_end(bound.id)
    assert platform.view(bound.id).nodes == [] or platform.view(bound.id).state == "succeeded"
    moved = platform.view(anywhere.id)
    assert moved.preemptions == 0 and moved.resizes == 1 and moved.recoveries == 0
    generation = platform.call(lambda c: c.detail(anywhere.id)).generations[-1]
    assert generation.reason.code == "defragment"
    assert f"waiting job {bound.id} of tenant alpha needs 1 device and fits nowhere else" in generation.reason.text
    why = platform.call(lambda c: c.why(anywhere.id))
    assert why.reason is not None
    platform.hurry(anywhere.id)
    platform.wait_for_end(anywhere.id)
    same_curve(platform.losses(anywhere.id), platform.losses(alone.id))
