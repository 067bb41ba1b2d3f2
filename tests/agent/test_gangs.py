"""Gangs on virtual nodes with real processes: reserved whole, started at once, spoken for, ended."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import time
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.protocol import LaunchOrder, NodeJoined, NotStarted, WorkerEvent
from fairlead.cluster import Gang, Member
from fairlead.control.reconcile.cluster_state import rank_environment
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.home import Home
from tests.agent.platforms import gang, how, platform, python, run, until

NODES = ["node-0", "node-1", "node-2", "node-3"]

TRAINING = """
import torch
from torch import nn
import fairlead

def training(lr: float = 0.1) -> "fairlead.Training":
    x = torch.randn(256, 4)
    return fairlead.Training(model=nn.Linear(4, 1), data=(x, x.sum(1, keepdim=True)), loss=nn.MSELoss(), batch_size=32,
        epochs=2, optimizer=lambda params: torch.optim.SGD(params, lr=lr), seed=0)
"""


def pack(home: Home, **files: str) -> str:
    """A bundle of the tenant's, known by its digest from then on."""
    path = home.bundle("vision", "b")
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return "b"


def test_a_gang_of_four_trains_from_warm_fork_servers(home: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with platform(home, "4", preload=True) as here:
            bundle = pack(here.home, train=TRAINING)
            await here.warm()
            began_s = time.monotonic()
            members = await here.start("j", NODES, run="train.py:training", command=None, bundle=bundle)
            await here.some(wire.Ready, 4)
            ready_s = time.monotonic() - began_s
            ranks = {member.worker: member.rank for member in members.members}
            began_s = time.monotonic()
            await here.tell(members, wire.Join(1, ranks, rendezvous="generation-1"))
            await here.some(wire.Joined, 4)
            print(f"ready {ready_s:.3f} s, joined {time.monotonic() - began_s:.3f} s")
            finished = await here.some(wire.Finished, 4)
            assert {end.step for end in finished} == {16}
            assert [end.code for end in await here.some(wire.Exited, 4)] == [0, 0, 0, 0]
            assert ready_s < 5.0, "a warm start takes a quarter of a second; this machine would have to be very busy"

    run(scene(), 90.0)


def test_a_gang_that_a_node_refuses_is_told_so_and_released_by_its_leader(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "3") as here:
            assert await here.sleepers("a", ["node-1"]) is None
            refused = await here.sleepers("b", ["node-0", "node-1", "node-2"])
            assert isinstance(refused, NotStarted) and refused.node == "node-1" and "taken" in refused.why
            await here.backend.release("b", {f"w{rank}": f"node-{rank}" for rank in range(3)})
            assert [(worker.job, worker.worker) for worker in await here.workers()] == [("a", "w0")]
            assert await here.sleepers("b", ["node-0", "node-2"]) is None
            assert await here.sleepers("b", ["node-0", "node-2"]) is None, "idempotent"

    run(scene())


def test_a_refused_gang_keeps_what_it_held_before(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            assert await here.sleepers("a", ["node-0"]) is None
            assert await here.sleepers("b", ["node-1"]) is None
            before = await here.workers()
            assert isinstance(await here.sleepers("a", ["node-0", "node-1"]), NotStarted)
            assert [(w.job, w.worker) for w in await here.workers()] == [(w.job, w.worker) for w in before]

    run(scene())


def test_devices_cores_and_memory_bound_what_is_started(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1x2") as here:
            too_much = await here.sleepers("a", ["node-0"], cpu=2.5)
            assert isinstance(too_much, NotStarted) and "cpu" in too_much.why
            assert isinstance(await here.sleepers("a", ["node-0"], memory=1e15), NotStarted)
            assert await here.sleepers("a", ["node-0"], cpu=1.5) is None
            beside = Gang("b", "vision", 1, (Member("w0", 0, "node-0", 1),), {"cpu": 1.0})
            refused = await here.backend.start(beside, LaunchOrder(here.spec("b", "sleep", "60")), 0.0)
            assert isinstance(refused, NotStarted)

    run(scene())


def test_a_start_waits_for_room_as_long_as_it_may(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("a", ["node-0"], "sleep", "0.3", cpu=1.0)
            waiting = asyncio.create_task(here.sleepers("b", ["node-0"], within_s=20.0))
            await here.some(wire.Exited)
            await here.backend.release("a", {"w0": "node-0"})
            assert await waiting is None

    run(scene())


def test_a_command_gets_its_rendezvous_and_is_spoken_for(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            members = gang("j", ["node-0", "node-1"]).members
            variables = rank_environment(members, Rendezvous("generation-1", 20_000))
            code = "import os, json; print(json.dumps(dict(os.environ)))"
            env = {"COLOR": "red"}
            await here.start("j", ["node-0", "node-1"], *python(code), environment=variables, env=env)
            await here.some(wire.Exited, 2)
            seen = [json.loads(line) for line in (await here.log("j")).splitlines()]
            assert sorted(one["RANK"] for one in seen) == ["0", "1"]
            assert {one["WORLD_SIZE"] + one["MASTER_ADDR"] + one["COLOR"] for one in seen} == {"2127.0.0.1red"}
            assert len({one["MASTER_PORT"] for one in seen}) == 1 and int(seen[0]["MASTER_PORT"]) > 0
            assert sorted((one["FAIRLEAD_JOB"], one["FAIRLEAD_WORKER"]) for one in seen) == [("j", "w0"), ("j", "w1")]
            said = [type(e.body).__name__ for e in here.seen if isinstance(e, WorkerEvent) and e.worker == "w0"]
            assert said == ["Ready", "Finished", "Exited"]
            await here.backend.release("j", {"w0": "node-0", "w1": "node-1"})
            assert await here.workers() == []

    run(scene())


def test_a_command_joins_and_leaves_when_told(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            lease = await here.start("j", ["node-0"], "sleep", "60", cpu=1.0)
            await here.some(wire.Ready)
            await here.tell(lease, wire.Join(4, {"w0": 0}))
            assert (await here.some(wire.Joined))[0].generation == 4
            await here.tell(lease, wire.Leave(4))
            assert (await here.some(wire.Left))[0].generation == 4
            assert how((await here.some(wire.Exited))[0]) == wire.Exited(code=None, signal=15, cause="stopped")
            assert here.of(wire.Finished) == []

    run(scene())


ENDS_WELL = "import signal, sys, time; {}; print('there', flush=True); time.sleep(1.0)"


@pytest.mark.parametrize(("code", "last"), [
    (ENDS_WELL.format("signal.signal(15, signal.SIG_IGN)"), wire.Finished(4, 0)),
    (ENDS_WELL.format("signal.signal(15, lambda *_: sys.exit(0))"), wire.Left(4, 0)),
])  # fmt: skip
def test_a_command_that_ends_well_while_it_is_told_to_leave_is_done_unless_it_heeded_that(
    home: Path, code: str, last: wire.FromWorker
) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            lease = await here.start("j", ["node-0"], *python(code), cpu=1.0)
            await here.tell(lease, wire.Join(4, {"w0": 0}))
            while "there" not in await here.log("j"):
                await asyncio.sleep(0.02)
            await here.tell(lease, wire.Leave(4))
            assert (await here.some(wire.Exited))[0].code == 0
            assert [*here.of(wire.Finished), *here.of(wire.Left)] == [last]

    run(scene())


def test_a_command_that_ignores_the_request_to_end_is_killed_after_its_grace(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
            await here.start("j", ["node-0"], *python(code), cpu=1.0)
            while "deaf" not in await here.log("j"):
                await here.some(wire.Ready)
            await here.backend.stop("j", {"w0": "node-0"}, grace_s=0.2)
            assert how((await here.some(wire.Exited))[0]) == wire.Exited(code=None, signal=9, cause="stopped")

    run(scene())


def test_exit_codes_and_signals_are_told_apart(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            await here.start("a", ["node-0"], "sh", "-c", "exit 7")
            await here.start("b", ["node-1"], "sh", "-c", "kill -11 $$")
            await here.some(wire.Exited, 2)
            assert [how(each) for each in here.of(wire.Exited, "a")] == [wire.Exited(code=7)]
            assert [how(each) for each in here.of(wire.Exited, "b")] == [wire.Exited(code=None, signal=11)]
            assert here.of(wire.Finished) == []

    run(scene())


def test_a_command_that_is_not_there_is_refused_for_good(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "no-such-thing", cpu=1.0)
            (raised,) = await here.some(wire.Raised)
            assert raised == wire.Raised(error="command not found: no-such-thing", permanent=True)
            await here.some(wire.Exited)
            assert here.of(wire.Ready) == []

    run(scene())


def test_a_missing_virtual_environment_is_refused_for_good(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], command=None, run="a:b", venv="/nowhere", cpu=1.0)
            (raised,) = await here.some(wire.Raised)
            assert raised.permanent and raised.error.startswith("venv: /nowhere")

    run(scene())


def test_starting_twice_starts_once_and_release_kills_what_lives(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            members = await here.start("j", ["node-0"], "sleep", "60", cpu=1.0)
            await here.some(wire.Ready)
            (before,), pid = await here.workers(), here.pid("node-0", "j")
            assert await here.backend.start(members, LaunchOrder(here.spec("j", "sleep", "60")), 0.0) is None
            assert await here.workers() == [before] and here.pid("node-0", "j") == pid
            await here.backend.release("j", {"w0": "node-0"}, forget_memory=True)
            assert await here.workers() == [] and not Path(f"/proc/{pid}").exists()
            assert not here.home.job_memory("node-0", "j").exists()

    run(scene())


def test_what_a_worker_started_ends_with_it(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            script = "setsid sleep 61 & sleep 62 & exec sleep 0.3"
            await here.start("j", ["node-0"], "sh", "-c", script, cpu=1.0)
            await here.some(wire.Exited)
            await until(lambda: not sleeping("61") and not sleeping("62"))

    run(scene())


def sleeping(seconds: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def test_use_is_measured_per_worker(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1x1") as here:
            reports: list[wire.Telemetry] = []
            code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
other = server.accept()[0]
threading.Thread(target=lambda: client.sendall(bytes(10_000_000))).start()
left = 10_000_000
while left: left -= len(other.recv(1 << 20))
held = bytearray(50_000_000)
while True: pass
"""
            await here.start("j", ["node-0"], *python(code), cpu=1.0)
            keeper = here.backend._supervisors["node-0"]

            def seen() -> bool:
                if keeper.telemetry is not None:
                    reports.append(keeper.telemetry)
                used = reports[-1].workers if reports else []
                busy = bool(used) and reports[-1].cpu_fraction > 0.03  # others may want the cores, too
                return busy and used[0].cpu_s > 0.5 and used[0].memory_bytes > 5e7

            await until(seen, 60.0)
            assert reports[-1].workers[0].network_bytes > 15_000_000

    run(scene())


def test_every_node_says_that_it_joined_before_anything_else(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "3") as here:
            await here.some(NodeJoined, 3)
            assert {type(event) for event in here.seen[:3]} == {NodeJoined}
            assert [node.name for node in (await here.backend.inventory()).nodes] == NODES[:3]
            assert all(node.schedulable for node in (await here.backend.inventory()).nodes)

    run(scene())


def test_long_home_paths_work(tmp_path: Path) -> None:
    async def scene(root: Path) -> None:
        async with platform(root, "1") as here:
            await here.start("j", ["node-0"], "echo", "far away", cpu=1.0)
            await here.some(wire.Exited)
            assert await here.log("j") == "far away\n"

    run(scene(tmp_path / ("x" * 100) / ("y" * 100)))
