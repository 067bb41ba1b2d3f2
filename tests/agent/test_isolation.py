"""Tenants are strangers to each other: users, folders, limits, code bundles, and nothing left behind."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.embedded.backend import LocalBackend, parse_nodes
from fairlead.agent.embedded.node_shapes import NodeShape
from fairlead.agent.node import code_bundles
from fairlead.agent.protocol import LaunchOrder
from fairlead.agent.sandbox import tenant_access
from fairlead.cluster import Gang, Member
from fairlead.home import Home
from tests.agent.platforms import OTHER_UID, UID, how, needs_root, needs_sandbox, platform, python, run, traces, until

LOOK_AROUND = """
import os, sys
print("uid", os.getuid(), os.geteuid(), os.getgid(), os.getgroups())
print("cwd", os.getcwd())
print("descriptors", sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1])
for path in sys.argv[1:]:
    try:
        print(path, "open", os.listdir(path) if os.path.isdir(path) else open(path).read())
    except PermissionError:
        print(path, "closed")
    except FileNotFoundError:
        print(path, "missing")
for line in open("/proc/self/status"):
    if line.startswith(("NoNewPrivs", "CapEff")):
        print(line.strip())
"""


@needs_root
def test_a_worker_is_not_root_and_cannot_look_into_another_jobs_folder(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            mine, other = here.home.job("mine"), here.home.job("other")
            careless = "echo secret > $FAIRLEAD_OUTPUT/model; chmod 777 $FAIRLEAD_OUTPUT/model"
            await here.start("other", ["node-1"], "sh", "-c", careless, uid=OTHER_UID)
            await here.some(wire.Exited, job="other")
            closed = [
                other / "output", other / "output" / "model", other / "logs", other / "code", other, mine / "logs",
                here.home.job_memory("node-1", "other"), here.home.run, here.home.bundles,
            ]  # fmt: skip
            await here.start("mine", ["node-0"], "python", "-c", LOOK_AROUND, *map(str, closed), str(mine / "output"),
                             str(here.home.jobs))  # fmt: skip
            assert (await here.some(wire.Exited, job="mine"))[0].code == 0, await here.log("mine")
            text = await here.log("mine")
            assert f"uid {UID} {UID} {UID} []" in text
            assert f"cwd {mine / 'code'}" in text
            assert "descriptors [0, 1, 2]" in text
            for path in closed:
                assert f"{path} closed" in text or f"{path} missing" in text
            assert f"{mine / 'output'} open []" in text
            assert f"{here.home.jobs} closed" in text or f"{here.home.jobs} open ['mine']" in text
            assert "NoNewPrivs:\t1" in text and "CapEff:\t0000000000000000" in text

    run(scene())


@needs_root
def test_user_code_is_never_run_as_root(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            for job, uid in (("a", None), ("b", 0)):
                await here.start(job, ["node-0"], "sh", "-c", "id", uid=uid, cpu=1.0)
                (raised,) = await here.some(wire.Raised, job=job)
                assert raised.permanent and "root" in raised.error
                await here.some(wire.Exited, job=job)
                await here.backend.release(job, {"w0": "node-0"})
                assert "uid=0" not in await here.log(job)

    run(scene())


@needs_root
def test_python_in_a_closed_home_is_reachable_and_the_rest_of_that_home_is_not(home: Path, tmp_path: Path) -> None:
    """The home of these tests lies in a folder of mode 0700, as root's does."""
    (tmp_path / "private").write_text("secret")
    closed = tmp_path.parent.parent  # pytest makes it 0700

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], "python", "-c", LOOK_AROUND, str(tmp_path / "private"), cpu=1.0)
            assert (await here.some(wire.Exited))[0].code == 0
            assert f"{tmp_path / 'private'} missing" in await here.log("j")

    assert closed.stat().st_mode & 0o077 == 0
    run(scene())
    assert closed.stat().st_mode & 0o077 == 0, "nobody's modes are changed"


def test_the_platforms_data_folder_is_readable_for_whom_it_is_granted_to_and_nobody_else(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "closed" / "data"
    data.mkdir(parents=True)
    (data / "table.csv").write_text("a,b")
    data.parent.chmod(0o700)
    monkeypatch.setenv("FAIRLEAD_DATA", str(data))
    words = ("sh", "-c", "cat $FAIRLEAD_DATA/table.csv")

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *words, cpu=1.0, folders=[str(data)])
            assert (await here.some(wire.Exited))[0].code == 0
            assert await here.log("j") == "a,b"
            if os.geteuid() == 0 or here.backend.capabilities.isolation == "sandbox":
                await here.start("k", ["node-0"], *words, cpu=1.0)
                assert (await here.some(wire.Exited, 2))[1].code == 1
                told = await here.log("k")
                assert "a,b" not in told
                assert f"fairlead tenant update vision --grant {data}" in told

    run(scene())


def test_a_folder_that_strangers_cannot_pass_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "open" / "closed" / "inner"
    inner.mkdir(parents=True)
    tmp_path.chmod(0o755)
    inner.parent.chmod(0o700)
    assert tenant_access.closed_ancestor(inner) in {
        inner.parent,
        *(p for p in tmp_path.parents if not p.stat().st_mode & 1),
    }


@needs_root
def test_a_memory_limit_kills_the_offender_only_and_says_so(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            await here.start("good", ["node-1"], "sleep", "66")
            await here.some(wire.Ready, job="good")
            greedy = "b = bytearray(300_000_000); print('had it')"
            await here.start("bad", ["node-0"], *python(greedy), memory_bytes=100_000_000)
            (end,) = await here.some(wire.Exited, job="bad")
            assert how(end) == wire.Exited(code=None, signal=9, cause="out-of-memory")
            assert [worker.phase for worker in await here.workers() if worker.job == "good"] == ["ready"]
            assert "had it" not in await here.log("bad")

    run(scene())


@needs_root
def test_many_small_processes_of_a_job_that_asked_for_no_memory_do_not_get_a_neighbour_killed(home: Path) -> None:
    large = "held = bytearray(b'x') * (200 << 20); print('has it', flush=True); import time; time.sleep(66)"
    many = """
import os, sys, time
for _ in range(30):
    if os.fork() == 0:
        held = bytearray(b'x') * (20 << 20)
        time.sleep(66)
    time.sleep(0.05)
    if os.waitpid(-1, os.WNOHANG)[0]:
        sys.exit(7)
"""

    async def scene() -> None:
        async with platform(home, (NodeShape("node-0", 1.0, 600 << 20, 2),)) as here:
            for device, (job, uid, code) in enumerate((("good", UID, large), ("bad", OTHER_UID, many))):
                gang = Gang(job, job, 1, (Member("w0", 0, "node-0", device),), {})
                order = LaunchOrder(here.spec(job, *python(code), tenant=job, uid=uid))
                assert await here.backend.start(gang, order, 0.0) is None
                if job == "good":
                    until_s = time.monotonic() + 20.0
                    while "has it" not in await here.log(job):
                        assert time.monotonic() < until_s
                        await asyncio.sleep(0.05)
            (end,) = await here.some(wire.Exited, job="bad")
            assert (end.code, end.cause) == (7, "out-of-memory")
            assert "its part of the node" in await here.log("bad")
            assert here.of(wire.Exited, "good") == []

    run(scene())


@needs_root
def test_a_child_that_ran_out_of_memory_is_the_cause_of_its_parents_failure(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            script = 'python -c "bytearray(300000000)"; exit 5'
            await here.start("j", ["node-0"], "sh", "-c", script, memory_bytes=100_000_000)
            assert how((await here.some(wire.Exited))[0]) == wire.Exited(code=5, signal=None, cause="out-of-memory")

    run(scene())


@needs_root
def test_the_granted_cores_are_the_most_a_worker_gets(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1x1") as here:
            code = (
                "import time; began, used = time.time(), time.process_time()\n"
                "while time.time() < began + 1.5: pass\n"
                "print((time.process_time() - used) / 1.5)"
            )
            await here.start("j", ["node-0"], *python(code), cpu=0.3)
            await here.some(wire.Exited)
            assert float(await here.log("j")) < 0.36

    run(scene())


# ---------------------------------------------------------------- bundles


def bundle(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size) if member.isfile() else None)
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 1) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    member.size = size if kind == tarfile.REGTYPE else 0
    return member


TRICKS = {
    "up": [entry("../evil")],
    "absolute": [entry("a", tarfile.SYMTYPE, "/etc/passwd")],
    "symlink out": [entry("a", tarfile.SYMTYPE, "../..")],
    "through a link": [entry("a", tarfile.SYMTYPE, ".."), entry("a/evil")],
    "hard link out": [entry("a", tarfile.LNKTYPE, "../../outside")],
    "device": [entry("a", tarfile.CHRTYPE)],
    "pipe": [entry("a", tarfile.FIFOTYPE)],
    "too large": [entry("a", size=2_000_000)],
    "too large together": [entry(f"a{number}", size=400_000) for number in range(3)],
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_bundle_that_reaches_out_or_bursts_is_refused(tmp_path: Path, trick: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "job" / "code"
    outside.write_text("untouched")
    folder.mkdir(parents=True)
    with bundle(tmp_path / "b.tar.gz", *TRICKS[trick]).open("rb") as packed, pytest.raises(code_bundles.BadBundle):
        code_bundles.unpack(packed, folder, most_bytes=1_000_000)
    assert outside.read_text() == "untouched" and not (tmp_path / "job" / "evil").exists()


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"\x1f\x8b\x08garbage"):
        with pytest.raises(code_bundles.BadBundle):
            code_bundles.unpack(io.BytesIO(data), tmp_path)


def test_what_a_killed_worker_left_half_unpacked_is_done_again(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "half").mkdir(parents=True)
    path = bundle(tmp_path / "b.tar.gz", entry("train.py"))
    with path.open("rb") as packed:
        code_bundles.unpack(packed, folder)
    assert sorted(one.name for one in folder.iterdir()) == [".fairlead-unpacked", "train.py"]
    (folder / "train.py").write_text("changed by the job")
    with path.open("rb") as packed:
        code_bundles.unpack(packed, folder)
    assert (folder / "train.py").read_text() == "changed by the job", "unpacked once per job"


def stored(home: Home, *members: tarfile.TarInfo) -> None:
    """Put a bundle of the digest ``b`` where the control plane keeps those of this tenant."""
    path = home.bundle("vision", "b")
    path.parent.mkdir(parents=True)
    bundle(path, *members)


def test_workers_of_a_gang_share_one_unpacked_bundle(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "4") as here:
            members = [entry(f"f{number}") for number in range(50)]
            stored(here.home, *members)
            nodes = [f"node-{number}" for number in range(4)]
            await here.start("j", nodes, "sh", "-c", "ls | wc -l; id -u", bundle="b")
            ends = await here.some(wire.Exited, 4)
            assert [end.code for end in ends] == [0] * 4
            assert (await here.log("j")).split() == ["50", str(UID if UID is not None else os.getuid())] * 4

    run(scene())


def test_a_bad_bundle_fails_the_job_for_good(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            stored(here.home, entry("../evil"))
            await here.start("j", ["node-0"], "true", bundle="b", cpu=1.0)
            (raised,) = await here.some(wire.Raised)
            assert raised.permanent and "bundle" in raised.error and not (here.home.job("j") / "evil").exists()

    run(scene())


# ---------------------------------------------------------------- the end


def test_shutdown_by_a_stranger_to_the_platform_leaves_nothing(home: Path) -> None:
    """As ``fairlead down`` does when the control plane is dead already."""

    async def scene() -> None:
        async with platform(home, "2") as here:
            await here.start("j", ["node-0", "node-1"], "sh", "-c", "setsid sleep 67 & sleep 68")
            await here.some(wire.Ready, 2)
            await here.backend.close()
            assert traces(home)
            began_s = time.monotonic()
            await LocalBackend(Home(home)).shutdown()
            assert time.monotonic() - began_s < 10.0
            assert traces(home) == []
            await until(lambda: not [p for p in Path("/proc").glob("[0-9]*/cmdline") if reads(p) == b"sleep\x0067\x00"])

    run(scene())


def reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("after", ["host.lock", "host.sock", "node-0.lock", "node-1.json", "node-2.sock"])
def test_shutdown_in_the_middle_of_a_start_leaves_nothing(home: Path, after: str) -> None:
    async def scene() -> None:
        backend = LocalBackend(Home(home), parse_nodes("3"), preload=False)
        opening = asyncio.create_task(backend.open(1))
        await until(lambda: (home / "run" / after).exists())
        opening.cancel()
        await asyncio.wait([opening])
        await backend.shutdown()
        assert traces(home) == []

    run(scene())


def test_shutdown_of_nothing_is_nothing(home: Path) -> None:
    Home(home).create()
    run(LocalBackend(Home(home)).shutdown())


AS_NOBODY = """
import asyncio, os, sys
from pathlib import Path
from fairlead.agent.sandbox import tenant_access as reach
root = Path(sys.argv[1])
reach.make_reachable([*reach.needed(root), Path.cwd()])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ.pop("FAIRLEAD_DATA", None)
from tests.agent.platforms import platform, wire
async def scene():
    async with platform(root / "home", "2", isolation=sys.argv[2]) as here:
        await here.start("j", ["node-0", "node-1"], "python", "-c",
            "import os, resource as r; print(os.getuid(), len(os.sched_getaffinity(0)), r.getrlimit(r.RLIMIT_DATA)[0])",
            uid=None, memory_bytes=500_000_000)
        await here.some(wire.Exited, 2)
        tells = lambda: here.backend.facts()["node-0"]["isolation"]
        async with asyncio.timeout(20):
            while ", " not in tells():  # how workers are limited comes with the next telemetry
                await asyncio.sleep(0.01)
        print(await here.log("j"), tells(), here.backend.capabilities.isolation, sep="")
asyncio.run(scene())
"""


@needs_root
@pytest.mark.parametrize("level", [pytest.param("sandbox", marks=needs_sandbox), "none"])
def test_without_root_workers_are_bound_by_affinity_and_rlimits(tmp_path: Path, level: str) -> None:
    """The whole platform under a user who may make neither users nor cgroups."""
    root = tmp_path / "nobody"
    root.mkdir()
    os.chown(root, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(root), level], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "65534 1 500000000\n" * 2 + f"{level}, affinity{level}\n"
    assert traces(root / "home") == []
