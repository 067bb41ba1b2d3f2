"""A sandbox stands ready for the next worker of its kind: it is taken once, by its like alone, and ends unused."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.embedded.node_records import read_record
from fairlead.agent.node import processes
from fairlead.agent.node.messages import Start
from fairlead.agent.sandbox.sandbox import NotBuilt, Sandbox
from fairlead.agent.sandbox.spare_sandboxes import KEEP_S, MOST, MOST_ALIKE, SpareSandboxes
from fairlead.agent.zygote.start_message import memory_file
from tests.agent.platforms import OTHER_UID, UID, Platform, needs_root, needs_sandbox, platform, run, told, until

pytestmark = [
    needs_sandbox, needs_root,
    pytest.mark.skipif(Path("/tmp") in Path(sys.prefix).parents, reason="with a Python under /tmp none stands ready"),
]  # fmt: skip

SEEN = """
import pathlib
def writes(place):
    try: pathlib.Path(place, "probe").write_text("x"); return True
    except OSError: return False
home = pathlib.Path(os.environ["FAIRLEAD_OUTPUT"]).parent
tell(pid_space=os.readlink("/proc/self/ns/pid"), mounts=os.readlink("/proc/self/ns/mnt"), uid=os.getuid(),
     jobs=sorted(os.listdir(home.parent)), tmp=os.listdir("/tmp"), cards=open("/proc/net/dev").read().count(":"),
     writes=[str(place) for place in map(pathlib.Path, ("/", "/tmp", "/usr", "/etc", home, home / "output",
                                                        home / "logs")) if writes(place)],
     flags=[line.split()[3:6:2] for line in open("/proc/self/mountinfo") if line.split()[4] in (str(home), "/tmp")])
"""


@pytest.fixture
def granted() -> Iterator[Path]:
    """A folder outside of /tmp, where the sandboxes have their own."""
    with tempfile.TemporaryDirectory(dir="/srv") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "granted"


def spare(here: Platform) -> int | None:
    """The first process of a sandbox that nobody is in yet."""
    record = read_record(here.home, "node-0")
    assert record is not None and record.fork_server is not None
    taken = {worker.sandbox.pid for worker in record.workers.values() if worker.sandbox is not None}
    for pid in processes.descendants(record.fork_server.pid):
        if pid not in taken and Path(f"/proc/{pid}/comm").read_text() == "cat\n":
            return pid
    return None


def pid_space(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115


async def seen(here: Platform, job: str, **changes: Any) -> dict[str, Any]:
    return await told(here, job, SEEN, cpu=1.0, **changes)


def test_a_worker_gets_what_stood_ready_and_sees_its_own_job_alone(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            first = await seen(here, "one")
            ready = pid_space(await until(lambda: spare(here)))
            second = await seen(here, "two")
            assert second["pid_space"] == ready
            assert (first["jobs"], second["jobs"]) == (["one"], ["two"])
            for found in (first, second):
                place = here.home.job(found["jobs"][0])
                assert set(found["writes"]) == {"/tmp", f"{place}/output"}
                assert found["uid"] == UID and found["cards"] == 1
                assert all("nosuid" in flags[1] and "nodev" in flags[1] for flags in found["flags"])

    run(scene())


def test_nobody_gets_what_stands_ready_for_another_kind(home: Path, granted: Path) -> None:
    granted.mkdir()

    async def scene() -> None:
        async with platform(home, "1") as here:
            await seen(here, "one")
            ready = pid_space(await until(lambda: spare(here)))
            for number, changes in enumerate(
                ({"uid": OTHER_UID, "tenant": "other"}, {"network": "open"}, {"memory_bytes": 512 << 20},
                 {"folders": [str(granted)]})
            ):  # fmt: skip
                found = await seen(here, f"other-{number}", **changes)
                assert found["pid_space"] != ready, changes
            assert (await seen(here, "two"))["pid_space"] == ready

    run(scene())


def test_a_folder_that_was_replaced_is_not_shown_as_it_was(home: Path, granted: Path) -> None:
    code = f"tell(found=os.listdir({str(granted)!r}))"

    async def scene() -> None:
        async with platform(home, "1") as here:
            for number in range(2):
                granted.mkdir()
                (granted / str(number)).touch()
                found = await told(here, f"j{number}", code, cpu=1.0, folders=[str(granted)])
                assert found == {"found": [str(number)]}
                await until(lambda: spare(here))
                (granted / str(number)).unlink()
                granted.rmdir()

    run(scene())


def test_one_that_fell_is_not_missed(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            await seen(here, "one")
            fallen = processes.identify(await until(lambda: spare(here)))
            assert fallen is not None and processes.kill(fallen)
            await until(lambda: not processes.alive(fallen))
            assert (await seen(here, "two"))["jobs"] == ["two"]

    run(scene())


def test_a_members_link_in_tmp_leads_no_folder_astray(home: Path) -> None:
    """A home in /tmp: the way to the job's folder leads through what its members write."""
    code = """
import pathlib
way = pathlib.Path(*pathlib.Path(os.environ["FAIRLEAD_OUTPUT"]).parts[:3])
way.rename(str(way) + "-before"); way.symlink_to("/etc"); tell(link=way.is_symlink())
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            assert home.is_relative_to("/tmp")
            assert (await told(here, "j", code, cpu=1.0)) == {"link": True}
            await here.start("j", ["node-0"], "true", cpu=1.0)
            assert (await here.some(wire.Exited, 2, job="j"))[1].code == 1
            assert "NotADirectoryError" in here.of(wire.Raised, "j")[0].error

    run(scene())


# ---------------------------------------------------------------- how many, and how long


class Built:
    """What is asked to be built, without bubblewrap."""

    def __init__(self) -> None:
        self.frames: list[str] = []

    def __call__(self, start: Start, arguments: int) -> Sandbox:
        assert os.read(arguments, 100) == b"words", "each reads from the begin"
        self.frames.append(start.frame)
        raise NotBuilt("no")


def start(frame: str) -> Start:
    return Start("j/w0", UID, 0, 1.0, None, 10, 10, 10, frame=frame)


def test_there_are_never_too_many() -> None:
    spares, words = SpareSandboxes(Built()), memory_file(b"words")
    for number in range(3 * MOST):
        spares.record_start(start(f"kind-{number}"), words, [f"kind-{number}"] * 10)
        kinds = spares._kinds
        assert sum(kind.wanted for kind in kinds.values()) <= MOST and kinds[f"kind-{number}"].wanted == MOST_ALIKE
    os.close(words)


def test_a_kind_is_forgotten_when_it_cannot_be_built_or_was_not_used_for_long() -> None:
    now_s = 0.0
    build, words = Built(), memory_file(b"words")
    spares = SpareSandboxes(build, lambda: now_s)
    spares.record_start(start(""), words, [""])
    assert not spares.needs_build, "of its own kind"
    spares.record_start(start("a"), words, ["a"])
    spares.build_one()
    assert build.frames == ["a"] and not spares.needs_build and spares.take("a") is None
    spares.record_start(start("b"), words, ["b"])
    now_s = KEEP_S - 1
    spares.forget_old()
    assert spares.needs_build
    now_s = KEEP_S + 1
    spares.forget_old()
    assert not spares.needs_build
    os.close(words)
