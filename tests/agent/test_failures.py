"""Deaths of every process of the backend: what is gone is gone whole, what lives on is found again."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.embedded import node_supervisor as keeping
from fairlead.agent.embedded.backend import LocalBackend, parse_nodes
from fairlead.agent.embedded.node_records import read_record
from fairlead.agent.node import processes
from fairlead.agent.protocol import LaunchOrder, NodeAction, NodeJoined, NodeLost, NotStarted, WorkerEvent
from fairlead.cluster import NodeState
from fairlead.home import Home
from tests.agent.families import host_of, lives, running
from tests.agent.platforms import Platform, gang, platform, run, until


@pytest.mark.parametrize("victim", ["manager", "all"])
def test_killing_a_node_manager_ends_the_whole_node_within_a_second(home: Path, victim: str) -> None:
    async def scene() -> None:
        async with platform(home, "2", restart_s=(0.1, 0.2)) as here:
            record, family = await running(here)
            (here.home.memory / "j" / "node-0" / "snapshot").write_text("lost with the node")
            began_s = time.monotonic()
            for process in family[:1] if victim == "manager" else family:
                processes.kill(process)
            (lost,) = await here.some(NodeLost)
            seen_s = here.seen_at[here.seen.index(lost)] - began_s
            print(f"lost after {seen_s * 1000:.0f} ms")
            assert not any(map(lives, family)), "fenced before it was said"
            assert not (here.home.memory / "j" / "node-0").exists()
            assert seen_s < 1.0 and lost.incarnation == record.incarnation
            joined = (await here.some(NodeJoined, 3))[2]
            assert joined.node == "node-0" and joined.incarnation != record.incarnation and not joined.workers
            await here.start("k", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="k"))[0].code == 0

    run(scene())


def test_a_node_comes_back_at_once_unless_it_dies_again_soon(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1", restart_s=(60.0, 60.0)) as here:
            for times in (2, 3):
                record = await until(lambda: read_record(here.home, "node-0"))
                processes.kill(record.process)
                await here.some(NodeLost, times - 1)
                if times == 2:
                    await here.some(NodeJoined, times, timeout_s=10.0)
            with pytest.raises(AssertionError):
                await here.some(NodeJoined, 3, timeout_s=2.0)

    run(scene())


def test_a_lost_node_is_in_the_inventory_as_lost_and_takes_nothing(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2", restart_s=(60.0, 60.0)) as here:
            await here.backend.node("node-1", NodeAction.STOP)
            await here.some(NodeLost)
            states = {node.name: node.state for node in (await here.backend.inventory()).nodes}
            assert states == {"node-0": NodeState.READY, "node-1": NodeState.LOST}
            refused = await here.sleepers("j", ["node-0", "node-1"])
            assert isinstance(refused, NotStarted) and refused.node == "node-1"
            assert [worker.worker for worker in await here.workers()] == ["w0"], "for its leader to release"
            await here.backend.release("j", {"w0": "node-0"})
            await here.backend.tell("j", {"w0": "node-1"}, wire.Quit())
            await here.backend.release("j", {"w0": "node-1"})
            await here.backend.node("node-1", NodeAction.START)
            await here.some(NodeJoined, 3)
            assert await here.sleepers("j", ["node-0", "node-1"]) is None

    run(scene())


def test_a_frozen_node_manager_is_fenced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FROZEN_S", 1.5)

    async def scene() -> None:
        async with platform(home, "1", restart_s=(60.0, 60.0)) as here:
            record, family = await running(here)
            processes.kill(record.process, signal.SIGSTOP)
            (lost,) = await here.some(NodeLost)
            assert "silent" in lost.why and not any(map(lives, family))

    run(scene())


def test_the_host_may_die_and_the_nodes_live_on(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1", restart_s=(0.1, 0.1)) as here:
            record, family = await running(here)
            host = host_of(here.home)
            processes.kill(host)
            await until(lambda: host_of(here.home, or_none=True) not in (None, host))
            assert all(map(lives, family)) and here.of(NodeLost) == []
            processes.kill(record.process)  # and the new host brings a node back
            await here.some(NodeJoined, 2)
            await here.start("k", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="k"))[0].code == 0

    run(scene())


def test_a_lost_fork_server_takes_its_workers_along_and_is_replaced(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            record, family = await running(here)
            assert record.fork_server is not None
            processes.kill(record.fork_server)
            (exited,) = await here.some(wire.Exited, job="j")
            assert (exited.signal, exited.cause) == (signal.SIGKILL, "fork-server-lost")
            await until(lambda: not any(map(processes.alive, family[1:])))
            assert processes.alive(record.process) and here.of(NodeLost) == []
            await here.backend.release("j", {"w0": "node-0"})
            await here.start("k", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="k"))[0].code == 0

    run(scene())


def test_a_stale_record_of_a_dead_node_is_cleaned_up(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            record, family = await running(here)
            await here.backend.close()
            for process in family:
                processes.kill(process)
            there = Platform(here.home, LocalBackend(here.home, preload=False))
            await there.open(2)
            (joined,) = await there.some(NodeJoined)
            assert joined.incarnation != record.incarnation and not joined.workers
            here.backend = there.backend

    run(scene())


def test_another_division_of_the_machine_replaces_the_nodes_of_the_last_one(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            _, family = await running(here, "node-1")
            await here.backend.close()
            there = Platform(here.home, LocalBackend(here.home, parse_nodes("1"), preload=False))
            await there.open(2)
            assert [node.name for node in (await there.backend.inventory()).nodes] == ["node-0"]
            assert not any(map(lives, family))
            here.backend = there.backend

    run(scene())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_nothing_lives_on_whatever_is_killed(home: Path, seed: int) -> None:
    """Every worker that was started is accounted for by its own end or by the end of its node."""
    chance = random.Random(seed)

    async def scene() -> None:
        async with platform(home, "2", restart_s=(0.05, 0.05)) as here:
            for number in range(6):
                job, node = f"j{number}", chance.choice(["node-0", "node-1"])
                await until(lambda: all(fact["state"] == "ready" for fact in here.backend.facts().values()))
                before = len(here.seen)
                order = LaunchOrder(here.spec(job, "sh", "-c", "setsid sleep 69 & sleep 70"))
                assert await here.backend.start(gang(job, [node]), order, 5.0) is None
                await asyncio.sleep(chance.random() * 0.1)  # a random moment is the point here
                victim = chance.choice(["manager", "fork server", "worker", "host"])
                kill_one(here.home, node, victim)
                if victim != "manager":  # the host's end is nobody's, and the others may not have been there yet
                    await here.backend.stop(job, {"w0": node}, 0.0)
                await until(lambda: accounted(here, before, job, node))  # noqa: B023 (awaited at once)
                await here.backend.release(job, {"w0": node})
            await until(lambda: not sleepers())

    run(scene(), 90.0)


def kill_one(home: Home, node: str, victim: str) -> None:
    record = read_record(home, node)
    assert record is not None
    workers = [worker.process for worker in record.workers.values()]
    platform_own = {"manager": record.process, "fork server": record.fork_server, "host": host_of(home, or_none=True)}
    for process in workers if victim == "worker" else [platform_own[victim]]:
        if process is not None:
            processes.kill(process)


def accounted(here: Platform, before: int, job: str, node: str) -> bool:
    return any(
        (isinstance(event, NodeLost) and event.node == node)
        or (isinstance(event, WorkerEvent) and event.job == job and isinstance(event.body, wire.Exited))
        for event in here.seen[before:]
    )


def sleepers() -> list[int]:
    found = []
    for pid in processes.all_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words in (b"sleep\x0069\x00", b"sleep\x0070\x00"):
            found.append(pid)
    return found


def test_a_dead_worker_is_seen_within_milliseconds(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "sleep", "73", cpu=1.0)
            await here.some(wire.Ready)
            began_s = time.monotonic()
            processes.kill_group(here.pid("node-0", "j"))
            await here.some(wire.Exited)
            seen_s = here.seen_at[-1] - began_s
            print(f"seen after {seen_s * 1000:.1f} ms")
            assert seen_s < 1.0

    run(scene())


def test_a_platform_whose_home_was_removed_ends_by_itself(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            _, family = await running(here)
            host = host_of(here.home)
            await here.backend.close()
            shutil.rmtree(home)
            await until(lambda: not any(map(lives, family)))
            processes.kill(host)  # which would end when it has been lonely for a minute
            await until(lambda: not processes.alive(host))

    run(scene())


def test_two_platforms_live_side_by_side(home: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as one, platform(tmp_path / "second", "1") as two:
            await one.start("j", ["node-0"], "sleep", "71", cpu=1.0)
            await two.start("j", ["node-0"], "true", cpu=1.0)
            await two.some(wire.Exited)
            await two.backend.shutdown()
            assert [worker.phase for worker in await one.workers()] != ["gone"]
            assert one.of(NodeLost) == []

    run(scene())
