"""A worker is alone in its tenant's sandbox: what it sees, whom it reaches, what binds it, and how all of it ends."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.backends.local import gangnet, levels, processes, seccomp, visible
from fairlead.backends.local.backend import LocalBackend, parse_nodes
from fairlead.backends.local.records import read_record
from fairlead.errors import Unavailable
from fairlead.home import Home
from tests.backends.platforms import (
    OTHER_UID,
    UID,
    Platform,
    needs_root,
    needs_sandbox,
    platform,
    python,
    run,
    until,
)  # fmt: skip

pytestmark = needs_sandbox

TELL = "import json, os, sys; tell = lambda **facts: print(json.dumps(facts), flush=True)\n"


async def told(here: Platform, job: str, code: str, **changes: Any) -> dict[str, Any]:
    """What a job says of itself in one line, and that it ended well."""
    await here.start(job, ["node-0"], *python(TELL + code), **changes)
    end = (await here.some(wire.Exited, job=job))[0]
    log = await here.log(job)
    assert end.code == 0, (end, log, here.of(wire.Raised, job))
    await here.backend.release(job, {"w0": "node-0"}, forget_memory=True)
    facts: dict[str, Any] = json.loads(log.splitlines()[-1])
    return facts


# ---------------------------------------------------------------- what it sees


def test_a_worker_sees_the_system_python_and_its_own_folders_and_nothing_else(home: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    (open_to_all / "file").write_text("readable by everybody on this machine")
    code = """
job = os.path.dirname(os.environ["FAIRLEAD_OUTPUT"])
tell(root=sorted(os.listdir("/")), home=os.listdir(sys.argv[1]), jobs=os.listdir(os.path.dirname(job)),
     etc=sorted(os.listdir("/etc")), dev=os.listdir("/dev"), shm=os.listdir("/dev/shm"), here=os.getcwd(),
     others=os.path.exists(sys.argv[2]), tmp=os.environ["TMPDIR"], own=os.environ["HOME"],
     who=__import__("pwd").getpwuid(os.getuid()).pw_name, machine=__import__("socket").gethostname())
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *python(TELL + code), str(home), str(open_to_all / "file"), cpu=1.0)
            await here.some(wire.Exited)
            seen = json.loads(await here.log("j"))
            assert set(seen["root"]) <= {
                "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "sys", "dev", "tmp", "var",
                *(path.parts[1] for path in [*visible.pythons(), home]),
                *(Path(path).parts[1] for path in [os.environ.get("FAIRLEAD_DATA")] if path),
            }  # fmt: skip
            assert seen["home"] == ["jobs"] and seen["jobs"] == ["j"] and not seen["others"]
            assert "shadow" not in seen["etc"] and "passwd" in seen["etc"]
            assert not {"mem", "kmem", "vda", "sda", "fuse", "kvm"} & set(seen["dev"])
            assert seen["shm"] == [here.home.memory.name]
            assert seen["here"] == str(here.home.job("j") / "code")
            assert (seen["who"], seen["machine"], seen["tmp"]) == ("vision", "fairlead", "/tmp")
            assert seen["own"] == str(here.home.job("j") / "home")

    run(scene())


def test_what_it_may_read_it_may_not_write(home: Path) -> None:
    code = """
def writes(folder):
    try:
        open(os.path.join(folder, "new"), "w").close()
    except OSError:
        return False
    return True
job = os.path.dirname(os.environ["FAIRLEAD_OUTPUT"])
tell(writable=[place for place in [
     "/", "/usr", "/etc", "/sys", "/proc", sys.prefix, job, job + "/logs", job + "/output",
     job + "/code", job + "/home", job + "/snapshots", "/tmp", "/dev/shm", os.path.dirname(os.__file__)]
     if writes(place)])
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            job = str(here.home.job("j"))
            found = (await told(here, "j", code, cpu=1.0))["writable"]
            own = [job + "/output", job + "/code", job + "/home", job + "/snapshots", "/tmp", "/dev/shm"]
            assert found == own
            assert (here.home.job("j") / "tmp" / "new").exists(), "/tmp is on disk, in the job's own folder"
            assert not Path("/tmp/new").exists() and not Path("/dev/shm/new").exists()

    run(scene())


@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["open", "closed"])
def test_a_granted_folder_is_seen_by_its_tenant_only_and_never_written(home: Path, tmp_path: Path, mode: int) -> None:
    """Also when it lies where the tenant's user would not get to by itself."""
    data = tmp_path / "vault" / "images"
    data.mkdir(parents=True)
    (data / "cat.txt").write_text("meow")
    (data.parent / "secret.txt").write_text("not granted")
    data.chmod(0o755)
    data.parent.chmod(mode)
    code = f"""
try:
    open({str(data / "dog.txt")!r}, "w"); wrote = True
except OSError:
    wrote = False
tell(text=open({str(data / "cat.txt")!r}).read() if os.path.exists({str(data)!r}) else None, wrote=wrote,
     beside=os.path.exists({str(data.parent / "secret.txt")!r}))
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            assert await told(here, "a", code, folders=[str(data)]) == {"text": "meow", "wrote": False, "beside": False}
            assert await told(here, "b", code, uid=OTHER_UID) == {"text": None, "wrote": False, "beside": False}
            gone = await told(here, "c", code, folders=[str(tmp_path / "nowhere")])
            assert gone["text"] is None, "a folder that is not there is not shown, and stops nobody"

    run(scene())


@pytest.mark.parametrize("folder", ["/proc", "/proc/1", "/dev", "/tmp", "/etc/ssl", "/usr", "/sys/kernel", "/dev/shm"])
def test_a_grant_that_would_cover_the_sandboxs_own_is_refused(folder: str) -> None:
    with pytest.raises(visible.CannotStart, match="grant another"):
        visible.grants(spec(folders=[folder]))


def test_a_grant_around_the_platforms_home_does_not_show_the_platform(home: Path) -> None:
    code = f"tell(seen=sorted(os.listdir({str(home)!r})))"

    async def scene() -> None:
        async with platform(home, "1") as here:
            assert await told(here, "j", code, folders=[str(home.parent)]) == {"seen": ["jobs"]}

    run(scene())


# ---------------------------------------------------------------- a virtual environment


def spec(**changes: Any) -> wire.WorkerSpec:
    fields: dict[str, Any] = {
        "job": "j", "tenant": "t", "uid": 1, "run": None, "command": ["x"], "params": {}, "env": {}, "venv": None,
        "bundle": None, "folder": "/f", "memory_folder": "/m/j/n", "cpu": 1.0,
    }  # fmt: skip
    return wire.WorkerSpec(**(fields | changes))


def venv(folder: Path, base: Path = Path("/usr/bin")) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base / "python3")
    (folder / "pyvenv.cfg").write_text(f"home = {base}\nversion = 3\n")
    return folder


@pytest.fixture
def open_way(tmp_path: Path) -> Iterator[None]:
    """The folders above are closed to others, which other tests count on: open for this one only."""
    before = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (tmp_path, *tmp_path.parents[:3])}
    for folder in before:
        folder.chmod(0o755)
    yield
    for folder, mode in before.items():
        folder.chmod(mode)


@pytest.mark.usefixtures("open_way")
def test_a_virtual_environment_that_is_none_or_a_strangers_is_refused(tmp_path: Path) -> None:
    stranger, elsewhere = venv(tmp_path / "stranger"), venv(tmp_path / "elsewhere", tmp_path / "python" / "bin")
    fine, plain = venv(tmp_path / "fine"), tmp_path / "plain"
    plain.mkdir()
    if os.geteuid() == 0:
        os.chown(stranger, 4711, 4711)
        with pytest.raises(visible.CannotStart, match=r"belongs to neither.*fairlead tenant update t --grant"):
            visible.virtual_environment(spec(venv=str(stranger)), [])
        assert visible.virtual_environment(spec(venv=str(stranger)), [tmp_path])
    assert visible.virtual_environment(spec(venv=str(fine)), []) == [fine]
    odd = [Path(f"{fine}/../fine"), Path("/a\0b"), Path("/\ud800")]
    wrongs = [(place, "not a virtual") for place in (plain, Path("/etc"), *odd)]
    for wrong, why in (*wrongs, (elsewhere, "do not see")):
        with pytest.raises(visible.CannotStart, match=why):
            visible.virtual_environment(spec(venv=str(wrong)), [])
    os.mkfifo(plain / "pyvenv.cfg")
    with pytest.raises(visible.CannotStart, match="not a virtual"):
        visible.virtual_environment(spec(venv=str(plain)), [])


@pytest.mark.usefixtures("open_way")
def test_a_virtual_environment_that_could_be_exchanged_after_the_look_is_refused(tmp_path: Path) -> None:
    linked = tmp_path / "link"
    linked.symlink_to(venv(tmp_path / "fine"))
    with pytest.raises(visible.CannotStart, match="leads through a link"):
        visible.virtual_environment(spec(venv=str(linked)), [])
    assert visible.virtual_environment(spec(venv=str(linked)), [tmp_path]) == [linked], "seen with what was granted"
    of_a_job = venv(tmp_path / "home" / "jobs" / "j" / "output" / "venv")
    with pytest.raises(visible.CannotStart, match="put in its place"):
        visible.virtual_environment(spec(venv=str(of_a_job)), [], [tmp_path / "home"])
    anybodys = venv(tmp_path / "shared" / "venv")
    anybodys.parent.chmod(0o777)
    with pytest.raises(visible.CannotStart, match="put in its place"):
        visible.virtual_environment(spec(venv=str(anybodys)), [])
    if os.geteuid() == 0:
        anybodys.parent.chmod(0o755)
        os.chown(anybodys.parent, 4711, 4711)
        with pytest.raises(visible.CannotStart, match="put in its place"):
            visible.virtual_environment(spec(venv=str(anybodys)), [])


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
        with gangnet.network(tmp_path / "gangs", "j") as network, gangnet.inside(network.namespace):
            child = subprocess.Popen(["sleep", "62"])
            network.add(child.pid)
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
     tasks=r.getrlimit(r.RLIMIT_NPROC),
     raised=[raised(kind) for kind in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_NPROC)])
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            seen = await told(here, "j", code, files=100, disk_bytes=1 << 20, processes=77, cpu=1.0)
            assert seen["tasks"] == [77, 77]
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


def in_sandbox(home: Home, node: str) -> list[processes.Process]:
    record = read_record(home, node)
    assert record is not None and record.fork_server is not None
    below = [processes.identify(pid) for pid in processes.descendants(record.fork_server.pid)]
    return [process for process in below if process is not None]


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
            family = in_sandbox(here.home, "node-0")
            names = {Path(f"/proc/{one.pid}/comm").read_text().strip(): one for one in family}
            worker = record.workers["j/w0"].process
            chosen = {"worker": worker, "holder": names["cat"], "fork server": record.fork_server}
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
            await until(lambda: in_sandbox(here.home, "node-0") == [])

    run(scene())


# ---------------------------------------------------------------- levels


def test_what_is_in_force_is_said_and_kept(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            assert here.backend.capabilities.isolation == "sandbox"
            assert not here.backend.capabilities.isolation_chosen
            await until(lambda: here.backend.facts()["node-0"]["isolation"].startswith("sandbox, "))
        for wanted in ("none", None):
            async with platform(home, "1", isolation=wanted) as here:
                assert here.backend.capabilities.isolation == ("user" if os.geteuid() == 0 else "none")
                assert here.backend.capabilities.isolation_chosen, "and remembered at the next start"

    run(scene())


def test_a_sandbox_that_cannot_be_had_is_refused_with_what_to_do(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels.sandbox, "TOOLS", str(tmp_path))
    level, why = levels.choose("sandbox", home)
    assert level != "sandbox" and why == "bwrap is not installed"
    assert "apt install bubblewrap" in levels.help_for("sandbox") and "--isolation" in levels.help_for("sandbox")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can always have it")
def test_a_user_per_tenant_needs_root(home: Path) -> None:
    backend = LocalBackend(Home(home), parse_nodes("1"), preload=False, isolation="user")
    with pytest.raises(Unavailable, match="needs root"):
        run(backend.open(1))
    run(backend.shutdown())


# ---------------------------------------------------------------- the filter


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_answers_every_call_and_only_what_it_should(machine: str) -> None:
    """Interpreted here, instruction by instruction, for both kinds of machine."""
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050001
    program = seccomp.assemble(machine)
    names = ("read", "mount", "clone", "clone3", "socket", "ioctl", "ptrace")
    known = {"x86_64": (0, 165, 56, 435, 41, 16, 101), "aarch64": (63, 40, 220, 435, 198, 29, 117)}
    numbers = dict(zip(names, known[machine], strict=True))

    def answer(call: str | int, *arguments: int, on: int = arch[machine]) -> int:
        number = numbers[call] if isinstance(call, str) else call
        return interpret(program, struct.pack("=IIQ6Q", number, on, 0, *(*arguments, *[0] * 6)[:6]))

    assert answer("read") == allow
    assert answer("mount") == answer("ptrace") == refuse
    assert answer("clone3") == 0x00050000 | 38
    assert answer("clone", 0x01200011) == answer("clone", 0x3D0F00) == allow, "fork and thread"
    assert all(answer("clone", 1 << bit) == refuse for bit in (17, 25, 26, 27, 28, 29, 30)), "namespaces"
    assert [answer("socket", family) == allow for family in (1, 2, 10, 16, 17, 38, 40)] == [True] * 4 + [False] * 3
    assert answer("socket", 16, 3, 4) != allow, "netlink for routes only"
    assert answer("ioctl", 0, 0x5412) == answer("ioctl", 0, 0x1234500005412) == refuse, "the upper half changes nothing"
    assert answer("ioctl", 0, 0x5401) == allow
    assert answer("read", on=0x40000003) == kill, "another architecture's numbers"
    if machine == "x86_64":
        assert answer(0x40000000 + 1) == kill


def interpret(program: bytes, data: bytes) -> int:
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    place, held = 0, 0
    while True:
        kind, yes, no, value = code[place]
        place += 1
        if kind == 0x06:
            return int(value)
        if kind == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
            place += yes if true else no


def test_the_kernel_takes_the_filter_and_python_lives_under_it() -> None:
    code = (
        "from fairlead.backends.local import linux, seccomp\n"
        "linux.no_new_privileges(); linux.filter_calls(seccomp.program())\n"
        "import subprocess; print(subprocess.check_output(['echo', 'alive'], text=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "alive" in done.stdout, done.stderr
