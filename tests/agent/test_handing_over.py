"""A worker that has finished gives its seat to the next one, who begins when it is gone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from fairlead import wire
from fairlead.agent.protocol import NotStarted, WorkerEvent
from fairlead.cluster import Gang
from tests.agent.platforms import Platform, platform, run, until
from tests.agent.test_gangs import pack

STAGES = """
import sys, time

class Clinging:
    def __init__(self, seconds):
        self.seconds = seconds
    def write(self, text):
        return len(text)
    def flush(self):
        time.sleep(self.seconds)

def stage(seconds: float = 0.0):
    if seconds:
        sys.stdout = Clinging(seconds)  # its last word is said before that is flushed
"""

JOIN = wire.Join(1, {"w0": 0})


async def begin(here: Platform, job: str, bundle: str, seconds: float = 0.0) -> Gang:
    """A stage that lives on for so long after it has finished; called before it is there."""
    members = await here.start(
        job, ["node-0"], command=None, run="stages.py:stage", bundle=bundle, params={"args": {"seconds": seconds}},
        stage={"pipeline": "p", "name": job, "trains": False},
    )  # fmt: skip
    await here.tell(members, JOIN)
    return members


def when(here: Platform, job: str, kind: type) -> int:
    """The place of this event among all; -1 while there is none."""
    said = (at for at, event in enumerate(here.seen) if isinstance(event, WorkerEvent) and event.job == job
            and isinstance(event.body, kind))  # fmt: skip
    return next(said, -1)


def test_the_next_one_is_taken_in_when_the_former_has_finished_and_begins_when_it_is_gone(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            bundle = pack(here.home, stages=STAGES)
            await here.warm()
            await begin(here, "a", bundle, seconds=0.4)
            assert isinstance(await here.sleepers("b", ["node-0"]), NotStarted), "it is at work"
            await here.some(wire.Finished, job="a")
            await begin(here, "b", bundle)
            assert when(here, "a", wire.Exited) < 0, "it was not waited for"
            await here.some(wire.Finished, job="b")
            assert 0 <= when(here, "a", wire.Exited) < when(here, "b", wire.Ready)
            assert here.of(wire.Exited, "a")[0].code == 0, "it was left the time to end by itself"

    run(scene())


def test_who_has_finished_and_clings_to_its_seat_is_ended_for_the_next_one(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            bundle = pack(here.home, stages=STAGES)
            await here.warm()
            await begin(here, "a", bundle, seconds=3600.0)
            await here.some(wire.Finished, job="a")
            began_s = time.monotonic()
            await begin(here, "b", bundle)
            await here.some(wire.Finished, job="b")
            assert 0 <= when(here, "a", wire.Exited) < when(here, "b", wire.Ready)
            assert time.monotonic() - began_s < 15.0

    run(scene())


def test_who_waits_for_a_seat_can_be_stopped(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            bundle = pack(here.home, stages=STAGES)
            await here.warm()
            await begin(here, "a", bundle, seconds=0.5)
            await here.some(wire.Finished, job="a")
            await begin(here, "b", bundle)
            await here.backend.stop("b", {"w0": "node-0"}, 1.0)
            await here.some(wire.Exited, job="b")
            assert here.of(wire.Ready, "b") == []
            await asyncio.gather(*(here.backend.release(job, {"w0": "node-0"}) for job in ("a", "b")))
            await until(lambda: when(here, "a", wire.Exited) >= 0)
            assert await here.sleepers("c", ["node-0"]) is None

    run(scene())
