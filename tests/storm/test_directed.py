"""Storms of one fault: what a new leader does when a node is silent, or cannot be started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fairlead.control.records import Job, JobPhase
from tests.storm.run import play
from tests.storm.simulated_agents import SILENT_BOTH
from tests.storm.simulated_store import Database
from tests.storm.simulated_workers import Behaviour
from tests.storm.virtual_loop import START_S
from tests.storm.workload import Clients
from tests.storm.world import World


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database(tmp_path_factory.mktemp("directed"))


async def _until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.1)


def _joined(world: World) -> set[str]:
    leader = world.supervisor.present
    return set() if leader is None or leader.controller is None else set(leader.controller.node_registry.joined)


def scene(befalls: Callable[[World], None], database: Database) -> World:
    """A leader dies, something befalls a node, and the next leader comes."""

    async def played(world: World) -> None:
        world.supervisor.start()
        await _until(lambda: len(_joined(world)) == len(world.machines), 10.0)
        befalls(world)
        leader = world.supervisor.present
        assert leader is not None
        world.supervisor.kill(leader)
        await _until(lambda: len(_joined(world)) == len(world.machines) - 1, 14.0)

    return play(World(7, database), played)


def hang(world: World) -> None:
    manager = world.machines["node-1"].manager
    assert manager is not None
    manager.process.stopped = True


def power_off(world: World) -> None:
    world.machines["node-1"].up = False
    world.machines["node-1"].die("its power is off")


@pytest.mark.parametrize("befalls", [hang, power_off])
def test_a_new_leader_leads_the_others_when_one_node_does_not_come(
    befalls: Callable[[World], None], database: Database
) -> None:
    world = scene(befalls, database)
    assert not world.found


def test_a_node_that_cannot_be_started_is_said_to_be_lost_so_that_its_gangs_go_on(database: Database) -> None:
    lost: list[str] = []

    async def told(world: World) -> None:
        await _until(lambda: "node-1" in _lost(world), 20.0)
        lost.append("node-1")

    def _lost(world: World) -> set[str]:
        leader = world.supervisor.present
        return set() if leader is None or leader.controller is None else leader.controller.node_registry._lost

    async def played(world: World) -> None:
        world.supervisor.start()
        await _until(lambda: len(_joined(world)) == len(world.machines), 10.0)
        power_off(world)
        leader = world.supervisor.present
        assert leader is not None
        world.supervisor.kill(leader)
        await told(world)

    play(World(7, database), played)
    assert lost == ["node-1"]


PAIR = Job(
    id="pair", tenant="vision", name="pair", phase=JobPhase.QUEUED, submitted_s=START_S, submitted_by="tok",
    min_workers=2, max_workers=2, demand={"cpu": 0.5}, device_type=None, priority=0, elastic=False, training=False,
    retries=0, since_s=START_S,
)  # fmt: skip


class Singles(World):
    """Three machines with one device each."""

    def furnish(self) -> None:
        for index in range(3):
            self.machine(index, 1)


def test_a_gang_goes_on_elsewhere_only_when_nothing_of_a_silent_node_can_begin_any_more(database: Database) -> None:
    """It is given up and cannot be fenced yet; what it was told to start may still arrive."""

    async def played(world: World) -> None:
        world.supervisor.start()
        await _until(lambda: len(_joined(world)) == len(world.machines), 10.0)
        world.behaviours["pair"] = Behaviour(training=False, lasts_s=60.0)
        await Clients(world)._submit(0.0, PAIR, None)
        members: list[tuple[str]] = []
        while not members:
            await asyncio.sleep(0.0005)
            members = world.eye.execute("SELECT members FROM generations WHERE job = 'pair'").fetchall()
        silent = next(name for name in ("node-2", "node-1") if name in members[0][0])
        world.truth.disturb_node(silent, "cut off:")
        world.machines[silent].fall_silent(SILENT_BOTH)
        await asyncio.sleep(19.0)
        world.machines[silent].clear_up()
        await asyncio.sleep(30.0)

    world = play(Singles(7, database, plain=True), played)
    assert not world.found
    assert any(worker.generation > 1 for worker in world.truth.devices.values()), "it does go on"
