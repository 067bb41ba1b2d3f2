"""One seed from its beginning to its end: the storm, then a calm in which everything has to settle."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import structlog

from tests.storm.faults import Storm
from tests.storm.leaders import watched
from tests.storm.local_seam import machine_room
from tests.storm.simulated_store import Database
from tests.storm.virtual_loop import PROCESS, Stuck, virtual_world
from tests.storm.workload import Clients
from tests.storm.world import Report, World, Wrong

STORM_S, CALM_S = 120.0, 240.0
TAKE_BACK_S = 60.0  # into the calm, jobs whose workers lied are cancelled: nothing is promised to them but an end


@contextmanager
def quiet() -> Iterator[None]:
    """Nobody reads the log of a storm."""
    before = structlog.get_config()
    level = logging.getLogger("fairlead").level
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("fairlead").setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        structlog.configure(**before)
        logging.getLogger("fairlead").setLevel(level)


def run_seed(seed: int, database: Database, *, keep_trace: bool = False, plain: bool = False) -> Report:
    """Play one seed; what was wrong is in the report."""
    world = World(seed, database, keep_trace=keep_trace, plain=plain)
    try:
        play(world, _scene)
    except Stuck as error:
        world.found.append(Wrong(world.loop.now_s, "stuck", str(error)))
    return world.report()


def play(world: World, scene: Callable[[World], Awaitable[None]]) -> World:
    """Play a scene in this world, and close it."""
    with ExitStack() as stack:
        stack.enter_context(virtual_world(world.loop, Random(f"{world.seed}/names")))
        stack.enter_context(machine_room(world))
        stack.enter_context(quiet())
        for patch in watched(world):
            stack.enter_context(patch)
        token, was_enabled = PROCESS.set(world.process), gc.isenabled()
        gc.disable()  # what is collected in the midst of a storm would depend on what ran before it
        try:
            world.loop.run_until_complete(scene(world))
        finally:
            world.close()
            PROCESS.reset(token)
            if was_enabled:
                gc.enable()
    return world


async def _scene(world: World) -> None:
    clients = Clients(world)
    storm = Storm(world, clients)
    ticking = asyncio.create_task(_tick(world))
    world.supervisor.start()
    submitting = asyncio.create_task(clients.submit_all(STORM_S / 2))
    storm.plan(STORM_S)
    await asyncio.sleep(STORM_S)
    world.trace("calm")
    storm.end()
    await submitting
    await _settle(world, clients)
    ticking.cancel()
    world.truth.settled()


async def _tick(world: World) -> None:
    while True:
        await asyncio.sleep(1.0)
        world.truth.every_second()


async def _settle(world: World, clients: Clients) -> None:
    until_s, taken_back = world.loop.now_s + CALM_S, False
    while world.loop.now_s < until_s:
        await asyncio.sleep(1.0)
        if not taken_back and world.loop.now_s > STORM_S + TAKE_BACK_S:
            taken_back = True
            await _take_back(world, clients)
        left, = world.eye.execute(
            "SELECT (SELECT count(*) FROM jobs WHERE phase NOT IN ('succeeded', 'failed', 'cancelled'))"
            " + (SELECT count(*) FROM pipelines WHERE phase = 'running')"
        ).fetchone()  # fmt: skip
        if not left and not any(world.workers()):
            break
    await asyncio.sleep(3.0)  # for what was said last to be acknowledged


async def _take_back(world: World, clients: Clients) -> None:
    open_now: Any = world.eye.execute(
        "SELECT id FROM jobs WHERE phase NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY id"
    ).fetchall()
    for (job,) in open_now:
        if {"odd", "nonsense"} & set(world.truth.jobs[job].blamed):
            await clients.cancel(job)
