"""``fairlead what-if``: a real platform's jobs played forward with other nodes, weights and policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.errors import NotFound
from fairlead.scheduling.job_speed import expected_work_left
from fairlead.scheduling.state import ClusterState, JobState, TenantState
from fairlead.simulation.live_trace import Changes, changed, trace_of
from fairlead.simulation.runs import run

from .conftest import Platform
from .test_simulate import FIGURES


@pytest.fixture(scope="module")
def busy(platform: Platform) -> Iterator[list[str]]:
    """Jobs of vision that say how long they take: two run, two wait, and nobody else has any."""
    platform.admin.until(lambda found: not found["jobs"], "queue")
    made = [
        platform.vision("submit", _written(platform.admin.home, name), "--json").data["id"]
        for name in ("one", "two", "three", "four")
    ]
    platform.vision.until(lambda found: sum(job["state"] == "running" for job in found["jobs"]) == 2, "queue")
    yield made
    for job in made:
        platform.vision("cancel", job, code=None)


def _written(home: Path, name: str) -> str:
    folder = home.parent / "whatif"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(f"name: wi-{name}\ncommand: [sleep, '600']\ntakes: 10m\n")
    return str(path)


def test_more_nodes_bring_everybody_to_their_end_sooner(platform: Platform, busy: list[str]) -> None:
    figures = platform.admin("what-if", "--add", "2xcpu", "--policy", "fairlead,fifo", "--json").data
    assert list(figures) == ["fairlead", "fifo", "fairlead+changes", "fifo+changes"]
    assert all(set(values) == FIGURES for values in figures.values())
    assert all(values["jobs"] == 4 for values in figures.values())
    assert figures["fifo+changes"]["makespan_s"] < 0.7 * figures["fifo"]["makespan_s"]
    assert figures["fairlead+changes"]["avg_jct_s"] < figures["fairlead"]["avg_jct_s"]


def test_people_see_both_tables_and_plots_are_written(platform: Platform, busy: list[str], tmp_path: Path) -> None:
    out = tmp_path / "report"
    said = platform.admin("what-if", "--remove", "node-0", "--out", str(out)).out
    assert "the cluster as it stands: 4 jobs (live) on 2 devices" in said
    assert "fairlead+changes" in said
    assert all(job in said for job in busy)
    assert set(json.loads((out / "figures.json").read_text())) == {"fairlead", "fairlead+changes"}
    assert (out / "gantt-fairlead+changes.png").exists()


def test_only_an_admin_may_ask(platform: Platform) -> None:
    told = platform.vision("what-if", code=4).err
    assert "may not see the state of all tenants" in told
    assert "fix: use a token with the role admin" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--remove", "nope"], "--remove: there is no node 'nope'"),
        (["--add", "lots"], "--add: 'lots' is not a cluster"),
        (["--weights", "nobody=2"], "--weights: there is no tenant 'nobody'"),
        (["--weights", "vision=much"], "--weights: 'much' is not a weight"),
        (["--policy", "magic"], "--policy: there is no policy 'magic'"),
    ],
)
def test_mistakes_are_told_in_words(platform: Platform, busy: list[str], words: list[str], said: str) -> None:
    assert said in platform.admin("what-if", *words, code=None).err


def test_the_sdk_reads_the_state_that_decisions_are_made_by(platform: Platform, busy: list[str]) -> None:
    from fairlead.sdk.client import Client

    with Client(home=platform.admin.home) as client:
        told = client.state()
    assert {job["id"] for job in told.state["jobs"]} == set(told.left) >= set(busy)
    assert set(told.guessed).isdisjoint(busy), "they say how long they take"
    assert max(told.left[job] for job in busy) == pytest.approx(600.0)


def test_who_runs_goes_on_and_who_sat_on_a_removed_node_waits() -> None:
    nodes = [Node(name, {DEVICE: 1.0}) for name in "ab"]
    jobs = [JobState(name, "t", 0.0, seats=(name,), since_s=100.0, facts={"takes_s": 50.0}) for name in "ab"]
    state = ClusterState(100.0, nodes, [TenantState("t")], jobs)
    left = dict(zip("ab", expected_work_left(state, jobs), strict=True))
    as_it_is = {job.id: job.finished_s for job in run(trace_of(state, left), "fifo").jobs}
    assert as_it_is == pytest.approx({"a": 150.0, "b": 150.0}), "nobody pays for a restart that does not happen"
    fewer = trace_of(changed(state, Changes(remove=("a",))), left)
    then = {job.id: job.finished_s for job in run(fewer, "fifo").jobs}
    assert then == pytest.approx({"b": 150.0, "a": 201.0})
    with pytest.raises(NotFound):
        changed(state, Changes(weights={"nobody": 2.0}))
