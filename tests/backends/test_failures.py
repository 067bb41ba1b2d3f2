"""Deaths of every process of the backend: what is gone is gone whole, what lives on is found again."""

from __future__ import annotations

import asyncio
import random
import shutil
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
from fairlead.backends.local.hosting import connect_host
from fairlead.backends.local.link import NodeGone
from fairlead.backends.local.records import NodeRecord, read_record
from fairlead.backends.protocol import LaunchOrder, Lease, NodeAction, NodeJoined, NodeLost, NotReserved, WorkerEvent
from fairlead.cluster import NodeState
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home
from tests.backends.platforms import Platform, platform, python, run, until

FAMILY = "import subprocess as s, time; s.Popen(['sleep', '63'], start_new_session=True); print('up'); time.sleep(64)"


def family_of(record: NodeRecord) -> list[processes.Process]:
    """Every process of the node: manager, fork server, workers and what these started.

    Not the one that waits outside of a sandbox for its end: no code of a tenant is in it.
    """
    assert record.fork_server is not None
    found = processes.descendants(record.fork_server.pid)
    below = [processes.identify(pid) for pid in found if Path(f"/proc/{pid}/comm").read_text() != "bwrap\n"]
    return [record.process, record.fork_server, *(one for one in below if one is not None)]


def lives(process: processes.Process) -> bool:
    """Whether it can still do anything; the first of a sandbox stays until all in it were reaped."""
    return processes.alive(process) and not processes.spent(process)


async def running(here: Platform, node: str = "node-0", job: str = "j") -> tuple[NodeRecord, list[processes.Process]]:
    await here.start(job, [node], *python(FAMILY))
    while "up" not in await here.log(job):
        await asyncio.sleep(0.01)
    record = await until(lambda: next(r for r in [read_record(here.home, node)] if r and r.workers))
    family = family_of(record)
    assert len(family) in (4, 5), "manager, fork server, worker and its child; with them the holder of the sandbox"
    return record, family


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
            assert "silent" in lost.why and not any(map(lives, family))

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
            assert joined["node-0"].workers[0].pid == family[2].pid and all(map(lives, family))
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
            assert all(map(lives, family)) and old.of(NodeLost) == []
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
            assert all(map(lives, family)) and here.of(NodeLost) == []
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
            assert not any(map(lives, family))
            here.backend = there.backend

    run(scene())


def test_a_worker_that_trained_and_fell_silent_is_killed_and_named_silent(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(here, """
line.sendall(wire.pack(wire.Ready()))
line.recv(1000)
line.sendall(wire.pack(wire.Joined(1, 0)) + wire.pack(wire.Progress(1, 1, 9, step_s=0.01)))
time.sleep(60)
""")
            changes = {"command": None, "run": "x:y", "venv": venv, "folders": [venv]}
            lease = await here.start("j", ["node-0"], cpu=1.0, silence_s=-4.0, **changes)
            await here.some(wire.Ready)
            await here.backend.tell(lease, wire.Join(1, {"w0": 0}, ""))
            await here.some(wire.Progress)
            assert (await here.some(wire.Exited))[0] == wire.Exited(code=None, signal=9, cause="silent")

    run(scene())


@pytest.mark.parametrize(
    "words",
    ["b'hello, hello, hello, hello'", "bytes(1000)", "b'\\xff' * 1000", "wire.pack(wire.Quit())",
     "wire.pack(wire.Snapshot(1, 1, 'disk', 1, 0.0)) * 50_000"],
)  # fmt: skip
def test_a_worker_that_talks_nonsense_or_too_much_is_ended_and_harms_nobody(home: Path, words: str) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(here, f"line.sendall({words})\ntime.sleep(60)\n")
            await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, venv=venv, folders=[venv])
            assert "nonsense" in (await here.some(wire.Raised))[0].error
            assert (await here.some(wire.Exited))[0].signal == signal.SIGKILL
            assert here.of(NodeLost) == [] and len(here.of(wire.Snapshot)) < 25_000, "cut off half way at the latest"

    run(scene())


def fake_venv(here: Platform, code: str) -> str:
    """A Python of the tenant's that says these words instead of the worker's."""
    folder = here.home.root / "venv"
    (folder / "bin").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    script = folder / "bin" / "python"
    script.write_text(f"""#!{sys.executable}
import os, socket, sys, time
from fairlead import wire
line = socket.socket(fileno=int(os.environ["FAIRLEAD_CHANNEL_FD"]))
{code}""")
    script.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_nothing_lives_on_whatever_is_killed(home: Path, seed: int) -> None:
    """Every worker that was started is accounted for by its own end or by the end of its node."""
    chance = random.Random(seed)

    async def scene() -> None:
        async with platform(home, "2", restart_s=(0.05, 0.05)) as here:
            for number in range(6):
                job, node = f"j{number}", chance.choice(["node-0", "node-1"])
                await until(lambda: all(fact["state"] == "ready" for fact in here.backend.facts().values()))
                lease = await here.reserve(job, [node])
                assert isinstance(lease, Lease)
                before = len(here.seen)
                await here.backend.launch(lease, LaunchOrder(here.spec(job, "sh", "-c", "setsid sleep 69 & sleep 70")))
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


def test_a_line_that_is_cut_is_mended_and_brings_nothing_twice(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "sleep", "72", cpu=1.0)
            await here.some(wire.Ready)
            keeper = here.backend._keepers["node-0"]
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
            link = here.backend._keepers["node-0"].link
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


def test_a_dead_worker_is_seen_within_milliseconds(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "sleep", "73", cpu=1.0)
            await here.some(wire.Ready)
            (worker,) = await here.backend.leases()
            began_s = time.monotonic()
            processes.kill_group(worker.pid)
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

    run(scene())


def test_two_platforms_live_side_by_side(home: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as one, platform(tmp_path / "second", "1") as two:
            await one.start("j", ["node-0"], "sleep", "71", cpu=1.0)
            await two.start("j", ["node-0"], "true", cpu=1.0)
            await two.some(wire.Exited)
            await two.backend.shutdown()
            assert [worker.phase for worker in await one.backend.leases()] != ["gone"]
            assert one.of(NodeLost) == []

    run(scene())
