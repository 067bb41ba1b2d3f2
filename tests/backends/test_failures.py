"""Deaths of every process of the backend: what is gone is gone whole, what lives on is found again."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fairlead import wire
from fairlead.backends.local import keeper as keeping
from fairlead.backends.local import processes
from fairlead.backends.local.backend import LocalBackend, parse_nodes
from fairlead.backends.local.records import NodeRecord, read_record
from fairlead.backends.protocol import Lease, NodeAction, NodeJoined, NodeLost, NotReserved, WorkerEvent
from fairlead.cluster import NodeState
from fairlead.errors import LostLeadership
from fairlead.home import Home
from tests.backends.platforms import Platform, platform, python, run, until

FAMILY = "import subprocess as s, time; s.Popen(['sleep', '63'], start_new_session=True); print('up'); time.sleep(64)"


def family_of(record: NodeRecord) -> list[processes.Process]:
    """Every process of the node: manager, fork server, workers and what these started."""
    assert record.fork_server is not None
    below = [processes.identify(pid) for pid in processes.descendants(record.fork_server.pid)]
    return [record.process, record.fork_server, *(one for one in below if one is not None)]


async def running(here: Platform, node: str = "node-0", job: str = "j") -> tuple[NodeRecord, list[processes.Process]]:
    await here.start(job, [node], *python(FAMILY))
    while "up" not in await here.log(job):
        await asyncio.sleep(0.01)
    record = await until(lambda: next(r for r in [read_record(here.home, node)] if r and r.workers))
    family = family_of(record)
    assert len(family) == 4
    return record, family


@pytest.mark.parametrize("victim", ["manager", "all"])
def test_killing_a_node_manager_ends_the_whole_node_within_a_second(home: Path, victim: str) -> None:
    async def scene() -> None:
        async with platform(home, "2", restart_s=(0.1, 0.2)) as here:
            record, family = await running(here)
            (here.home.memory / "node-0" / "j" / "snapshot").write_text("lost with the node")
            began_s = time.monotonic()
            for process in family[:1] if victim == "manager" else family:
                processes.kill(process)
            (lost,) = await here.some(NodeLost)
            seen_s = here.seen_at[here.seen.index(lost)] - began_s
            print(f"lost after {seen_s * 1000:.0f} ms")
            assert not any(map(processes.alive, family)), "fenced before it was said"
            assert not (here.home.memory / "node-0").exists()
            assert seen_s < 1.0 and lost.incarnation == record.incarnation
            joined = (await here.some(NodeJoined, 3))[2]
            assert joined.node == "node-0" and joined.incarnation != record.incarnation and not joined.workers
            await here.start("k", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="k"))[0].code == 0

    run(scene())


def test_a_lost_node_is_in_the_inventory_as_lost_and_takes_nothing(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2", restart_s=(60.0, 60.0)) as here:
            await here.backend.node("node-1", NodeAction.STOP)
            await here.some(NodeLost)
            states = {node.name: node.state for node in (await here.backend.inventory()).nodes}
            assert states == {"node-0": NodeState.READY, "node-1": NodeState.LOST}
            refused = await here.reserve("j", ["node-0", "node-1"])
            assert isinstance(refused, NotReserved) and refused.node == "node-1"
            assert await here.backend.leases() == []
            await here.backend.tell(Lease("j", 1, ()), wire.Quit())
            await here.backend.release("j", {"w0": "node-1"})
            await here.backend.node("node-1", NodeAction.START)
            await here.some(NodeJoined, 3)
            assert isinstance(await here.reserve("j", ["node-0", "node-1"]), Lease)

    run(scene())


def test_a_frozen_node_manager_is_fenced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FROZEN_S", 1.5)

    async def scene() -> None:
        async with platform(home, "1", restart_s=(60.0, 60.0)) as here:
            record, family = await running(here)
            processes.kill(record.process, signal.SIGSTOP)
            (lost,) = await here.some(NodeLost)
            assert "silent" in lost.why and not any(map(processes.alive, family))

    run(scene())


def test_running_gangs_are_adopted_and_unacknowledged_events_come_again_exactly(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            _, family = await running(here)
            await here.start("k", ["node-1"], "true")
            await here.some(wire.Exited, job="k")
            of_k = [event for event in here.seen if isinstance(event, WorkerEvent) and event.job == "k"]
            await here.backend.acknowledge("node-1", of_k[0].incarnation, of_k[0].sequence)
            await here.backend.close()

            there = Platform(here.home, LocalBackend(here.home, preload=False))  # the nodes are remembered
            await there.open(epoch=2)
            joined = {event.node: event for event in await there.some(NodeJoined, 2)}
            assert [(w.job, w.worker, w.phase) for w in joined["node-0"].workers] == [("j", "w0", "ready")]
            assert joined["node-0"].workers[0].pid == family[2].pid and all(map(processes.alive, family))
            await there.some(wire.Exited, job="k")
            again = [event for event in there.seen if isinstance(event, WorkerEvent) and event.job == "k"]
            assert again == of_k[1:]
            await there.backend.stop("j", {"w0": "node-0"}, 0.0)
            await there.some(wire.Exited, job="j")
            here.backend = there.backend

    run(scene())


def test_a_control_plane_that_was_killed_leaves_all_running(home: Path) -> None:
    """With a real process and kill -9."""
    code = f"""
import asyncio, sys
from pathlib import Path
from tests.backends.platforms import Platform, LocalBackend, parse_nodes, Home, wire
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
                await until(lambda: old.backend._keepers["node-0"].failure)
                await old.backend.stop("j", {"w0": "node-0"}, 0.0)
            with pytest.raises(LostLeadership):
                await old.backend.leases()
            with pytest.raises(LostLeadership):
                await old.backend.node("node-0", NodeAction.FENCE)
            with pytest.raises(LostLeadership):
                await old.backend.shutdown()
            assert all(map(processes.alive, family)) and old.of(NodeLost) == []
            late = Platform(old.home, LocalBackend(old.home, preload=False))
            with pytest.raises(LostLeadership):
                await late.backend.open(1)
            assert len(await new.backend.leases()) == 1
            old.backend = new.backend

    run(scene())


def test_the_host_may_die_and_the_nodes_live_on(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1", restart_s=(0.1, 0.1)) as here:
            record, family = await running(here)
            host = host_of(here.home)
            processes.kill(host)
            await until(lambda: host_of(here.home, or_none=True) not in (None, host))
            assert all(map(processes.alive, family)) and here.of(NodeLost) == []
            processes.kill(record.process)  # and the new host brings a node back
            await here.some(NodeJoined, 2)
            await here.start("k", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="k"))[0].code == 0

    run(scene())


def host_of(home: Home, *, or_none: bool = False) -> processes.Process:
    try:
        return msgspec.json.decode((home.run / "host.pid").read_bytes(), type=processes.Process)
    except (FileNotFoundError, msgspec.DecodeError):
        if or_none:
            return None  # type: ignore[return-value]
        raise


def test_a_lost_fork_server_takes_its_workers_along_and_is_replaced(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            record, family = await running(here)
            assert record.fork_server is not None
            processes.kill(record.fork_server)
            (exited,) = await here.some(wire.Exited, job="j")
            assert exited.signal == signal.SIGKILL
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
            assert not any(map(processes.alive, family))
            here.backend = there.backend

    run(scene())


def test_a_worker_that_trained_and_fell_silent_is_killed_and_named_silent(home: Path) -> None:
    """A program that speaks the worker's language says one step, and then nothing."""

    async def scene() -> None:
        async with platform(home, "1", preload=False) as here:
            venv = fake_venv(here)
            lease = await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, silence_s=-4.0, venv=venv)
            await here.some(wire.Ready)
            await here.backend.tell(lease, wire.Join(1, {"w0": 0}, ""))
            await here.some(wire.Progress)
            assert (await here.some(wire.Exited))[0] == wire.Exited(code=None, signal=9, cause="silent")

    run(scene())


def fake_venv(here: Platform) -> str:
    """A Python of the tenant's whose worker module says one step and hangs."""
    folder = here.home.root / "venv"
    (folder / "bin").mkdir(parents=True)
    folder.chmod(0o755)
    script = folder / "bin" / "python"
    script.write_text(f"""#!{sys.executable}
import os, socket, sys, time
from fairlead import wire
line = socket.socket(fileno=int(os.environ["FAIRLEAD_CHANNEL_FD"]))
line.sendall(wire.pack(wire.Ready()))
line.recv(1000)
line.sendall(wire.pack(wire.Joined(1, 0)) + wire.pack(wire.Progress(1, 1, 9, step_s=0.01)))
time.sleep(60)
""")
    script.chmod(0o755)
    return str(folder)
