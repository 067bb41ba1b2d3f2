"""Control planes come and go: gangs run on, the next one finds them, an older one is refused, cut lines are mended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.embedded.backend import LocalBackend
from fairlead.agent.embedded.host_client import connect_host
from fairlead.agent.embedded.node_link import NodeGone
from fairlead.agent.protocol import NodeAction, NodeJoined, NodeLost, WorkerEvent
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home
from tests.agent.families import lives, running
from tests.agent.platforms import Platform, platform, run, until


def test_running_gangs_are_adopted_and_unacknowledged_events_come_again_exactly(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            _, family = await running(here)
            await here.start("k", ["node-1"], "true")
            await here.some(wire.Exited, job="k")
            of_k = [event for event in here.seen if isinstance(event, WorkerEvent) and event.job == "k"]
            here.backend.acknowledge("node-1", of_k[0].incarnation, of_k[0].sequence)
            await here.backend.close()

            there = Platform(here.home, LocalBackend(here.home, preload=False))  # the nodes are remembered
            here.backend = there.backend  # also for the end, however this goes on
            await there.open(epoch=2)
            joined = {event.node: event for event in await there.some(NodeJoined, 2)}
            assert [(w.job, w.worker, w.phase) for w in joined["node-0"].workers] == [("j", "w0", "ready")]
            assert there.pid("node-0", "j") in {process.pid for process in family} and all(map(lives, family))
            await there.some(wire.Exited, job="k")
            again = [event for event in there.seen if isinstance(event, WorkerEvent) and event.job == "k"]
            assert [(event.sequence, event.body) for event in again] == [(e.sequence, e.body) for e in of_k[1:]]
            late_s = [abs(now.time_s - then.time_s) for now, then in zip(again, of_k[1:], strict=True)]
            assert max(late_s) < 0.1, "when it happened, not when it was told again"
            await there.backend.stop("j", {"w0": "node-0"}, 0.0)
            await there.some(wire.Exited, job="j")

    run(scene())


def test_a_control_plane_that_was_killed_leaves_all_running(home: Path) -> None:
    """With a real process and kill -9."""
    code = f"""
import asyncio, sys
from pathlib import Path
from tests.agent.platforms import Platform, LocalBackend, parse_nodes, Home, wire
async def main():
    home = Home(Path({str(home)!r}))
    here = Platform(home, LocalBackend(home, parse_nodes("1"), preload=False))
    await here.open(1)
    await here.start("j", ["node-0"], "sleep", "65", cpu=1.0)
    await here.some(wire.Ready)
    print("started", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

    async def scene() -> None:
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=Path(__file__).parent.parent.parent, stdout=asyncio.subprocess.PIPE
        )
        assert first.stdout is not None and await first.stdout.readline() == b"started\n"
        first.kill()
        await first.wait()
        there = Platform(Home(home), LocalBackend(Home(home), preload=False))
        try:
            await there.open(epoch=2)
            (joined,) = await there.some(NodeJoined)
            assert [worker.phase for worker in joined.workers] == ["ready"]
            await there.some(wire.Ready)
        finally:
            await there.backend.shutdown()

    run(scene())


def test_an_older_leader_is_refused_and_harms_nothing(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as old:
            _, family = await running(old)
            new = Platform(old.home, LocalBackend(old.home, preload=False))
            await new.open(epoch=2)
            with pytest.raises(LostLeadership):
                await until(lambda: old.backend._supervisors["node-0"].failure)
                await old.backend.stop("j", {"w0": "node-0"}, 0.0)
            with pytest.raises(LostLeadership):
                await old.workers()
            with pytest.raises(LostLeadership):
                await old.backend.node("node-0", NodeAction.FENCE)
            with pytest.raises(LostLeadership):
                await old.backend.shutdown()
            assert all(map(lives, family)) and old.of(NodeLost) == []
            late = Platform(old.home, LocalBackend(old.home, preload=False))
            with pytest.raises(LostLeadership):
                await late.backend.open(1)
            assert len(await new.workers()) == 1
            old.backend = new.backend

    run(scene())


def test_a_line_that_is_cut_is_mended_and_brings_nothing_twice(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "sleep", "72", cpu=1.0)
            await here.some(wire.Ready)
            keeper = here.backend._supervisors["node-0"]
            cut = keeper.link
            assert cut is not None
            cut._writer.transport.abort()
            await until(lambda: keeper.link not in (None, cut))
            await here.backend.stop("j", {"w0": "node-0"}, 0.0)
            await here.some(wire.Exited)
            assert here.of(NodeLost) == [] and len(here.of(NodeJoined)) == 1
            assert [type(e.body) for e in here.seen if isinstance(e, WorkerEvent)] == [wire.Ready, wire.Exited]

    run(scene())


def test_a_command_into_a_line_that_is_cut_is_not_taken_for_heard(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "sleep", "72", cpu=1.0)
            await here.some(wire.Ready)
            link = here.backend._supervisors["node-0"].link
            assert link is not None
            link._writer.transport.abort()
            with pytest.raises(NodeGone):
                await here.backend.stop("j", {"w0": "node-0"}, 0.0)
            with pytest.raises(NodeGone):
                await here.backend.release("j", {"w0": "node-0"})

    run(scene())


def test_a_host_that_cannot_be_started_is_a_clear_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else would end the keeper of a node for good."""
    Home(home).create()
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Unavailable, match="does not start"):
        run(connect_host(Home(home), preload=False))
