"""A worker is alone in its tenant's sandbox: whom it reaches, what binds it, and how all of it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.embedded import gang_network
from fairlead.agent.embedded.node_records import read_record
from fairlead.agent.node import processes
from fairlead.home import Home
from tests.agent.platforms import OTHER_UID, TELL, UID, needs_root, needs_sandbox, platform, python, run, told, until

pytestmark = needs_sandbox


# ---------------------------------------------------------------- whom it reaches


def test_a_worker_is_alone_with_its_own_processes(home: Path) -> None:
    code = """
import subprocess
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
tell(mine=os.getpid(), pids=pids, names=[open(f"/proc/{pid}/comm").read().strip() for pid in pids])
"""

    async def scene() -> None:
        async with platform(home, "2") as here:
            await here.start("other", ["node-1"], "sleep", "61", uid=OTHER_UID)
            await here.some(wire.Ready, job="other")
            seen = await told(here, "j", code)
            assert set(seen["names"]) == {"cat", "python"} and len(seen["pids"]) == 2

    run(scene())


MEET = """
import socket, time, pathlib
place = pathlib.Path(os.environ["FAIRLEAD_OUTPUT"], "port")
if os.environ["FAIRLEAD_WORKER"] == "w0":
    server = socket.create_server(("127.0.0.1", 0))
    place.with_suffix(".new").write_text(str(server.getsockname()[1]))
    place.with_suffix(".new").rename(place)
    tell(heard=server.accept()[0].recv(100).decode())
else:
    while not place.exists(): time.sleep(0.01)
    socket.create_connection(("127.0.0.1", int(place.read_text()))).sendall(b"hello")
    tell(cards=[name for _, name in socket.if_nameindex()])
"""


def test_a_gang_shares_a_network_over_its_nodes_and_nobody_else_is_in_it(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "3") as here:
            await here.start("j", ["node-0", "node-1"], *python(TELL + MEET))
            ends = await here.some(wire.Exited, 2, job="j")
            assert [end.code for end in ends] == [0, 0], await here.log("j")
            assert json.loads((await here.log("j")).splitlines()[0]) == {"heard": "hello"}
            assert json.loads((await here.log("j")).splitlines()[1]) == {"cards": ["lo"]}

    run(scene())


REACH = """
import socket
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close(); tell(reached=True)
except OSError as error:
    tell(reached=False)
"""


def test_the_machines_network_is_reached_only_where_the_policy_opens_it(home: Path) -> None:
    import socket

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            async with platform(home, "1") as here:
                for job, policy in (("a", "closed"), ("b", "open")):
                    await here.start(job, ["node-0"], *python(TELL + REACH), port, network=policy, cpu=1.0)
                    await here.some(wire.Exited, job=job)
                    assert json.loads(await here.log(job)) == {"reached": policy == "open"}
                    await here.backend.release(job, {"w0": "node-0"})

    run(scene())


@needs_root
def test_a_newcomer_finds_the_network_of_a_gang_whose_first_member_is_gone(tmp_path: Path) -> None:
    def started() -> subprocess.Popen[bytes]:
        own = gang_network.create_network()
        child = subprocess.Popen(["sleep", "62"], preexec_fn=lambda: gang_network.join(tmp_path / "gangs", "j", own))
        os.close(own)
        return child

    def number(child: subprocess.Popen[bytes]) -> int:
        return Path(f"/proc/{child.pid}/ns/net").stat().st_ino

    before = Path("/proc/self/ns/net").stat().st_ino
    one, two = started(), started()
    try:
        assert number(one) == number(two) != before
        one.kill()
        one.wait()
        three = started()
        assert number(three) == number(two)
        for child in (two, three):
            child.kill()
            child.wait()
        one = started()
        assert number(one) != before
        assert Path("/proc/self/ns/net").stat().st_ino == before
    finally:
        for child in (one, two, three):
            child.kill()
            child.wait()


# ---------------------------------------------------------------- what binds it


def test_a_worker_holds_no_right_that_it_could_use(home: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def denied(name, *arguments):
    return getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() in (1, 38, 97)
clone = 56 if os.uname().machine == "x86_64" else 220
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
tell(caps=[status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")], nnp=status["NoNewPrivs"],
     seccomp=status["Seccomp"], ids=[*os.getresuid(), *os.getresgid()], groups=os.getgroups(),
     fds=sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
     denied=[denied("unshare", 0x10000000), denied("mount", b"a", b"/tmp", b"tmpfs", 0, 0), denied("ptrace", 0, 0, 0),
             denied("setns", 0, 0), denied("syscall", clone, 0x10000000 | 17, 0, 0, 0, 0), denied("syscall", 435, 0, 0),
             denied("socket", 40, 1, 0), denied("socket", 16, 3, 4), denied("chroot", b"/tmp")])
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, cpu=1.0)
            assert {int(value, 16) for value in seen["caps"]} == {0}
            assert (seen["nnp"], seen["seccomp"]) == ("1", "2")
            assert set(seen["ids"]) == {UID or os.getuid()} and (UID is None or seen["groups"] == [])
            assert seen["fds"] == [0, 1, 2] and seen["denied"] == [True] * 9

    run(scene())


def test_the_holder_of_the_sandbox_is_out_of_reach(home: Path) -> None:
    """It has the same user, and who could change or stop it would have a sandbox that does not end."""
    code = """
import signal, time
def tried(work):
    try: return bool(work())
    except OSError: return False
names = ("mem", "fd/0", "fd/1", "environ", "root", "cwd", "maps")
reached = [name for name in names for mode in (os.O_RDONLY, os.O_RDWR)
           if tried(lambda: os.open(f"/proc/1/{name}", mode) >= 0)]
for number in range(1, 65):
    tried(lambda: os.kill(1, number))
if os.fork() == 0:  # an orphan that ends: whose zombie would it be?
    if os.fork() == 0: time.sleep(0.2); os._exit(0)
    os._exit(0)
os.wait(); time.sleep(0.6)
state = open("/proc/1/stat").read().split(")")[1].split()[0]
tell(reached=reached, state=state, pids=[pid for pid in os.listdir("/proc") if pid.isdigit()], mine=os.getpid())
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, cpu=1.0)
            assert seen["reached"] == [] and seen["state"] == "S", "not stopped, not ended"
            assert seen["pids"] == ["1", str(seen["mine"])], "orphans that end leave nothing"

    run(scene())


def test_what_programs_need_still_works(home: Path) -> None:
    """Threads, processes of all kinds, shared memory, pipes, terminals, sockets: the filter is for attackers."""
    code = """
import multiprocessing, socket, subprocess, threading
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=100); block.close(); block.unlink()
def put(queue): queue.put(7)
queue = multiprocessing.get_context("fork").Queue()
child = multiprocessing.get_context("fork").Process(target=put, args=(queue,)); child.start()
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
got = queue.get(); child.join()
with multiprocessing.get_context("spawn").Pool(1) as pool: doubled = pool.map(abs, [-2])
tell(got=got, doubled=doubled, said=subprocess.check_output(["sh", "-c", "echo hi | cat"], text=True),
     name=socket.gethostbyname(socket.gethostname()), pty=len(os.openpty()), cpus=len(os.sched_getaffinity(0)) > 0)
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, cpu=1.0)
            assert seen == {"got": 7, "doubled": [2], "said": "hi\n", "name": "127.0.0.1", "pty": 2, "cpus": True}

    run(scene())


def test_limits_are_the_policys_and_cannot_be_raised(home: Path) -> None:
    code = """
import resource as r
def raised(kind):
    try: r.setrlimit(kind, (r.getrlimit(kind)[0] + 1, r.getrlimit(kind)[1] + 1))
    except (OSError, ValueError): return False
    return True
tell(files=r.getrlimit(r.RLIMIT_NOFILE), disk=r.getrlimit(r.RLIMIT_FSIZE), core=r.getrlimit(r.RLIMIT_CORE),
     tasks=r.getrlimit(r.RLIMIT_NPROC), slack_ns=int(open("/proc/self/timerslack_ns").read()),
     batch=os.sched_getscheduler(0) == os.SCHED_BATCH,
     raised=[raised(kind) for kind in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_NPROC)])
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, files=100, disk_bytes=1 << 20, processes=77, cpu=1.0)
            assert seen["tasks"] == [77, 77] and seen["slack_ns"] == 1_000_000 and seen["batch"]
            assert seen["files"] == [100, 100] and seen["disk"] == [1 << 20, 1 << 20] and seen["core"] == [0, 0]
            assert seen["raised"] == [False] * 4

    run(scene())


@needs_root
def test_processes_are_limited(home: Path) -> None:
    code = """
children = []
try:
    while len(children) < 200:
        pid = os.fork()
        if pid == 0:
            import time; time.sleep(60)
        children.append(pid)
except OSError:
    pass
tell(children=len(children))
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, processes=20, cpu=1.0)
            assert seen["children"] <= 20

    run(scene())


# ---------------------------------------------------------------- how it ends


def below_fork_server(home: Home, node: str) -> list[processes.Process]:
    record = read_record(home, node)
    assert record is not None and record.fork_server is not None
    below = [processes.identify(pid) for pid in processes.descendants(record.fork_server.pid)]
    return [process for process in below if process is not None]


def names(found: list[processes.Process]) -> set[str]:
    return {name for one in found if (name := of_living(one, lambda place: (place / "comm").read_text().strip()))}


def of_living(one: processes.Process, look: Callable[[Path], str]) -> str | None:
    """What is seen of it, or None if it ended meanwhile: sandboxes for the next are built at any time."""
    try:
        return look(Path(f"/proc/{one.pid}"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def in_sandbox(home: Home, node: str, worker: str) -> list[processes.Process]:
    """All that share the process namespace with the worker."""
    record = read_record(home, node)
    assert record is not None
    inside = str(Path(f"/proc/{record.workers[worker].process.pid}/ns/pid").readlink())
    below = below_fork_server(home, node)
    found = [one for one in below if of_living(one, lambda place: str((place / "ns/pid").readlink())) == inside]
    assert len(found) > 2
    return found


@pytest.mark.parametrize("victim", ["worker", "holder", "fork server"])
def test_everything_in_a_sandbox_ends_with_the_first_of_it_that_ends(home: Path, victim: str) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\nprint('up', flush=True)\n"
    code += "time.sleep(60)"

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *python(code), cpu=1.0)
            while (await here.log("j")).count("up") < 3:
                await here.some(wire.Ready)
            record = read_record(here.home, "node-0")
            assert record is not None and record.fork_server is not None
            family = in_sandbox(here.home, "node-0", "j/w0")
            (holder,) = (one for one in family if names([one]) == {"cat"})
            worker = record.workers["j/w0"].process
            chosen = {"worker": worker, "holder": holder, "fork server": record.fork_server}
            processes.kill(chosen[victim])
            (end,) = await here.some(wire.Exited)
            assert end.signal == signal.SIGKILL
            await until(lambda: not any(map(processes.alive, family)))

    run(scene())


def test_a_worker_that_is_stopped_while_its_sandbox_is_built_leaves_nothing(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            for number in range(8):
                await here.start(f"j{number}", ["node-0"], "sleep", "63", cpu=1.0)
                await here.backend.stop(f"j{number}", {"w0": "node-0"}, 0.0)
                await here.some(wire.Exited, job=f"j{number}")
                await here.backend.release(f"j{number}", {"w0": "node-0"})
            await until(lambda: (seen := read_record(here.home, "node-0")) is not None and seen.fork_server is not None)
            # no more than what stands ready for the next, once those on their way out are gone
            left = partial(below_fork_server, here.home, "node-0")
            await until(lambda: len(found := left()) <= 2 and names(found) <= {"bwrap", "cat"})

    run(scene())
