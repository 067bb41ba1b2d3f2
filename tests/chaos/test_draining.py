"""Draining a node under running gangs: they move away with their state, and what finds no room waits and says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.crashable import Crashable, same_curve, wait_until
from tests.cli.conftest import Terminal

STEPS, PAUSE_S = 200, 0.6


@pytest.fixture(autouse=True)
def _all_nodes_back(platform: Crashable) -> Iterator[None]:
    yield
    for job in platform.call(lambda c: list(c.jobs(state="active"))):
        platform.call(lambda c, job=job: c.cancel(job.id))
    for node in platform.call(lambda c: c.nodes()):
        platform.call(lambda c, node=node: c.uncordon(node.name))
    wait_until(lambda: not platform.call(lambda c: list(c.jobs(state="active"))), 40, "the queue is empty")


@pytest.fixture(scope="module")
def undisturbed(platform: Crashable) -> dict[int, float]:
    job = platform.train("undisturbed", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(job.id)
    return platform.losses(job.id)


def state(platform: Crashable, node: str) -> str:
    return next(found.state for found in platform.call(lambda c: c.nodes()) if found.name == node)


def test_a_gang_leaves_a_drained_node_and_its_survivors_stay(
    platform: Crashable, undisturbed: dict[int, float]
) -> None:
    job = platform.train("moves", workers="2", steps=STEPS, pause_s=PAUSE_S)
    wait_until(lambda: platform.view(job.id).step > 2, 60, "it trains")
    before, nodes = platform.workers(job.id), platform.view(job.id).nodes
    leaving = nodes[-1]
    done = Terminal(platform.home)("nodes", "drain", leaving, "--wait")
    assert f"{leaving} is draining: waiting for {job.id}" in done.out
    assert done.out.splitlines()[-1] == f"{leaving} is drained"
    assert "drained" in Terminal(platform.home)("nodes").out
    wait_until(lambda: platform.view(job.id).state == "running", 40, "it runs elsewhere")
    after = platform.view(job.id)
    assert leaving not in after.nodes and after.workers == 2 and after.preemptions == 0
    assert len(before.items() & platform.workers(job.id).items()) == 1, "who sat elsewhere is the same process"
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    same_curve(platform.losses(job.id), undisturbed)


def test_a_drain_with_nowhere_to_go_puts_the_gang_away_until_there_is_room(
    platform: Crashable, undisturbed: dict[int, float]
) -> None:
    job = platform.train("fills", workers="3", steps=STEPS, pause_s=PAUSE_S)
    wait_until(lambda: platform.view(job.id).step > 2, 60, "it trains on all nodes")
    platform.call(lambda c: c.drain("node-1"))
    wait_until(lambda: state(platform, "node-1") == "drained", 60, "the node is free")
    wait_until(lambda: platform.view(job.id).state == "queued", 60, "it waits")
    assert platform.view(job.id).preemptions == 1
    said = [event.text for event in platform.call(lambda c: list(c.events(job=job.id)))]
    assert any("node-1 is being drained and no other node has" in text for text in said)
    why = platform.call(lambda c: c.why(job.id))
    assert "node-1" in (why.reason.text if why.reason else "") + " ".join(why.unblocks), "and says what would help"
    platform.call(lambda c: c.uncordon("node-1"))
    wait_until(lambda: platform.view(job.id).state == "running", 60, "back in service, it takes the gang again")
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    same_curve(platform.losses(job.id), undisturbed)


def test_an_elastic_gang_shrinks_when_nothing_else_is_free(platform: Crashable, undisturbed: dict[int, float]) -> None:
    job = platform.train("shrinks", workers="1:3", plan="dp", steps=STEPS, pause_s=PAUSE_S)
    wait_until(lambda: platform.view(job.id).workers == 3 and platform.view(job.id).step > 2, 60, "it takes all")
    before = platform.workers(job.id)
    platform.call(lambda c: c.drain("node-2"))
    wait_until(lambda: state(platform, "node-2") == "drained", 60, "the node is free")
    wait_until(lambda: platform.view(job.id).workers == 2, 60, "two go on")
    assert platform.workers(job.id).items() <= before.items()
    platform.call(lambda c: c.uncordon("node-2"))
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    same_curve(platform.losses(job.id), undisturbed)


def test_a_command_starts_over_elsewhere(platform: Crashable) -> None:
    script = "echo begin >> $FAIRLEAD_OUTPUT/runs; while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.05; done"
    job = platform.submit(["sh", "-c", script], key="again", tenant="alpha", name="again")
    output = platform.home / "jobs" / job.id / "output"
    wait_until(lambda: (output / "runs").exists() and platform.state(job.id) == "running", 60, "it runs")
    (node,) = platform.view(job.id).nodes
    platform.call(lambda c: c.drain(node))
    wait_until(lambda: (output / "runs").read_text() == "begin\nbegin\n", 60, "it has no state that we know")
    wait_until(lambda: state(platform, node) == "drained", 60, "the node is free")
    (output / "go").touch()
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded"
    assert node not in platform.call(lambda c: c.detail(job.id)).generations[-1].members[0].node
