"""Results are ordinary blocks of the grid: labelled, worth what they took, spilled and brought back under the quota."""

from __future__ import annotations

import pytest

from tests.chaos.crashable import Crashable
from tests.pipelines.conftest import PROGRAMS, ended
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module", autouse=True)
def small(platform: Crashable) -> None:
    """A tenant that may have little in memory."""
    platform.client.create_tenant("small")
    platform.client.update_tenant("small", policy={"grid": 70_000_000})


def run(platform: Crashable, name: str, **params: int) -> str:
    what = f"{PROGRAMS / 'large.py'}:{name}"
    return platform.call(lambda client: client.run_pipeline(what, folder=PROGRAMS, tenant="small", **params)).id


def test_results_beyond_the_quota_are_spilled_and_read_by_whoever_needs_them(platform: Crashable) -> None:
    done = ended(platform, run(platform, "too_much"))
    assert done.state == "succeeded", done.view
    assert [done.stages[f"ends-{part}"].value for part in range(4)] == [[part, part] for part in range(4)]
    seen = done.value("look")
    assert seen["labels"], "what stages gave lies in the grid under their names"
    assert not seen["worthless"], "each block says what it took to make it"
    assert not seen["pinned"], "nothing of a stage that is over keeps a block from being evicted"
    assert done.stages["make-0"].gave == "ndarray 30 x 1048576 uint8"
    assert (done.stages["make-0"].gave_bytes or 0) > 30 << 20
    again = ended(platform, run(platform, "too_much"))
    assert {stage.state for name, stage in again.stages.items() if name != "look"} == {"cached"}


def test_a_result_that_can_never_be_kept_fails_its_stage_with_the_figures(platform: Crashable) -> None:
    done = ended(platform, run(platform, "too_large"))
    states = {name: stage.state for name, stage in done.stages.items()}
    assert states == {"make": "failed", "ends": "skipped"}
    assert "exceed tenant small's quota of 70.0 MB" in (done.stages["make"].message or "")


@pytest.mark.parametrize("closed", ["node-0", "node-1"])
def test_a_stage_runs_where_what_it_takes_lies_when_it_may_choose(platform: Crashable, closed: str) -> None:
    mark = int(closed[-1])
    platform.client.cordon(closed)
    made = ended(platform, run(platform, "passed_on", links=0, mark=mark))
    platform.client.uncordon(closed)
    until(lambda: not any(node.jobs for node in platform.client.nodes()), 60, "both nodes are free")
    done = ended(platform, run(platform, "passed_on", links=1, mark=mark))
    assert [stage.state for stage in done.view.stages] == ["cached", "succeeded"], done.view
    first, second = (platform.client.detail(each.view.stages[-1].job or "") for each in (made, done))
    seats = [detail.generations[-1].members[0].node for detail in (first, second)]
    assert closed not in seats
