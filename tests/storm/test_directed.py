"""Storms of one fault: what a new leader does when a node is silent, or cannot be started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.storm.run import play
from tests.storm.simulated_store import Database
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
    return set() if leader is None or leader.controller is None else set(leader.controller.roster.joined)


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
        return set() if leader is None or leader.controller is None else leader.controller.roster._lost

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
