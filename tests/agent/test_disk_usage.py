"""A job's part of the disk: measured by somebody who cannot be fooled, and kept to by ending who takes more."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.node import disk_usage, disk_watch
from fairlead.agent.node.disk_usage import DELETED, DiskUsage, deleted_bytes, measure
from fairlead.agent.node.disk_watch import DiskSpace, DiskWatch
from fairlead.local_wire import PlacedSpec
from tests.agent.platforms import platform, python, run, until

MB = 1 << 20


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


# ---------------------------------------------------------------- measuring


def test_what_is_held_is_told_by_parts(tmp_path: Path) -> None:
    fill(tmp_path / "output" / "a" / "model", MB)
    fill(tmp_path / "logs" / "w0.log", 4 * MB)
    held = measure(tmp_path)
    assert MB <= held.bytes_by_part["output"] < MB + 64_000
    assert 4 * MB <= held.bytes_by_part["logs"] < 4 * MB + 64_000
    assert held.files == 5
    assert held.limit_problem(6 * MB, "vision") is None
    assert held.limit_problem(3 * MB, "vision") == (
        "its folder takes 5.3 MB of 3.1 MB allowed; the largest part is logs with 4.2 MB; write less, or ask an admin "
        "to raise the limit: fairlead tenant update vision --disk 10.5MB"
    )


def test_a_file_counts_once_however_many_names_it_has_and_a_hole_counts_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "output" / "one", MB)
    for number in range(5):
        os.link(tmp_path / "output" / "one", tmp_path / "output" / f"again-{number}")
    with (tmp_path / "output" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measure(tmp_path).total_bytes < 2 * MB


def test_no_link_is_followed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    fill(outside / "large", 4 * MB)
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "link").symlink_to(outside)
    (tmp_path / "linked").symlink_to(outside)
    assert measure(tmp_path).total_bytes < MB


def test_a_folder_too_deep_to_be_measured_is_complained_about(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(disk_usage.DEEPEST + 10):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "levels deep" in str(measure(tmp_path).limit_problem(1 << 40, "vision"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="for root nothing is closed")
@pytest.mark.parametrize("closed", ["output", "output/inner"])
def test_a_folder_that_its_owner_closed_is_complained_about(tmp_path: Path, closed: str) -> None:
    (tmp_path / "output" / "inner").mkdir(parents=True)
    (tmp_path / closed).chmod(0)
    held = measure(tmp_path)
    (tmp_path / closed).chmod(0o700)
    assert "cannot be read" in str(held.limit_problem(MB, "vision"))


def test_too_many_files_are_complained_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "MOST_FILES", 10)
    for number in range(20):
        fill(tmp_path / "tmp" / str(number), 0)
    assert "more than 10 files" in str(measure(tmp_path).limit_problem(1 << 40, "vision"))


def test_a_deleted_file_counts_while_it_is_open(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    with (tmp_path / "hidden").open("wb") as file:
        file.write(b"x" * MB)
        file.flush()
        before = deleted_bytes([os.getpid()], device)
        (tmp_path / "hidden").unlink()
        assert deleted_bytes([os.getpid()], device) - before == MB
    assert deleted_bytes([os.getpid()], device) == before
    assert DiskUsage({DELETED: 3 * MB}).limit_problem(MB, "vision")


# ---------------------------------------------------------------- watching


class Suspect:
    """A worker of which only its disk matters."""

    def __init__(self, folder: Path, disk_bytes: int, job: str = "j", *, pid: int | None = None) -> None:
        self.job, self._pids = job, {pid} if pid else set()
        self.spec = PlacedSpec(
            job=job, tenant="vision", uid=None, run=None, command=["true"], params={}, env={}, venv=None, bundle=None,
            folder=str(folder), memory_folder=str(folder.parent / "memory"), cpu=1.0, disk_bytes=disk_bytes,
        )  # fmt: skip
        self.ends: list[tuple[str, str]] = []

    def pids(self) -> set[int]:
        return self._pids

    def kill_over_limit(self, cause: str, detail: str) -> None:
        self.ends.append((cause, detail))


async def idle(watch: DiskWatch) -> None:
    """Until all looks are over that have begun."""
    await until(lambda: not any(schedule.running for schedule in watch._schedules.values()))


class Machine:
    """A clock and a disk that do as they are told; a look takes as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.look_s, self.free, self.looks = 0.0, 0.0, DiskSpace(1 << 40, 1 << 30), 0
        really = disk_watch._measure

        def measured(*arguments: Any, **options: Any) -> DiskUsage:
            self.now_s += self.look_s
            self.looks += 1
            return really(*arguments, **options)

        monkeypatch.setattr(disk_watch, "_measure", measured)

    def watch(self, locks: Path) -> DiskWatch:
        return DiskWatch(locks, lambda: self.now_s, lambda _: self.free)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_of_two_nodes_of_a_machine_one_looks_and_the_other_takes_over_when_it_is_gone(
    tmp_path: Path, machine: Machine
) -> None:
    fill(tmp_path / "job" / "output" / "a", MB)

    async def scene() -> None:
        first, second = machine.watch(tmp_path), machine.watch(tmp_path)
        one, other = (Suspect(tmp_path / "job", MB // 2) for _ in range(2))
        first.check([one])
        await until(lambda: one.ends)
        second.check([other])
        await idle(second)
        assert [cause for cause, _ in one.ends] == ["disk-full"] and not other.ends
        first.check([])
        assert not (tmp_path / "disk-j.lock").exists()
        machine.now_s = 100.0
        second.check([other])
        await until(lambda: other.ends)
        second.check([])
        assert list(tmp_path.glob("*.lock")) == []

    run(scene())


HOLDS = """
import os, sys
with open(sys.argv[1], 'wb') as file:
    os.unlink(sys.argv[1])
    file.write(b'x' * 3 * 2**20)
    file.flush()
    print(1, flush=True)
    sys.stdin.read()
"""


def test_deleted_files_that_a_job_holds_open_on_several_nodes_count_together(tmp_path: Path, machine: Machine) -> None:
    (tmp_path / "job").mkdir()

    async def scene(pids: list[int]) -> None:
        watches = [machine.watch(tmp_path) for _ in pids]
        workers = [Suspect(tmp_path / "job", 5 * MB, pid=pid) for pid in pids]
        for _ in range(2):  # who has the lock hears of the others when these have looked
            for watch, worker in zip(watches, workers, strict=True):
                watch.check([worker])
                await idle(watch)
            machine.now_s += 100.0
        assert [len(worker.ends) for worker in workers] == [1, 0], "each alone holds less than is allowed"
        assert DELETED in workers[0].ends[0][1]
        for watch in watches:
            watch.check([])
        assert list(tmp_path.glob("disk-*")) == []

    pipe = subprocess.PIPE
    with contextlib.ExitStack() as ended:
        commands = [[sys.executable, "-c", HOLDS, str(tmp_path / "job" / name)] for name in "ab"]
        held = [ended.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)) for command in commands]
        for each in held:
            assert each.stdout is not None and each.stdout.readline() == b"1\n"
        run(scene([each.pid for each in held]))


def test_a_look_that_takes_long_is_not_repeated_soon(tmp_path: Path, machine: Machine) -> None:
    async def scene() -> None:
        watch, worker = machine.watch(tmp_path), Suspect(tmp_path / "job", MB)
        fill(tmp_path / "job" / "output" / "a", 10)
        machine.look_s = 3.0  # from 0 to 3: not again before 63
        for now_s, looks in ((0.0, 1), (59.0, 1), (64.0, 2)):
            machine.now_s = now_s
            watch.check([worker])
            await idle(watch)
            assert machine.looks == looks, now_s
        watch.check([])

    run(scene())


@pytest.mark.parametrize("taken", [DiskSpace(2 * MB, 0), DiskSpace(0, disk_usage.MOST_FILES)], ids=["bytes", "files"])
def test_a_disk_that_fills_by_more_than_a_job_may_still_take_has_it_looked_at_soon(
    tmp_path: Path, machine: Machine, taken: DiskSpace
) -> None:
    """However many files it has made, so that a look at it takes long."""

    async def scene() -> None:
        watch, worker = machine.watch(tmp_path), Suspect(tmp_path / "job", 2 * MB)
        fill(tmp_path / "job" / "output" / "a", 10)
        machine.look_s = 2.0
        watch.check([worker])
        await idle(watch)
        fill(tmp_path / "job" / "output" / "b", 3 * MB)
        machine.now_s = 10.0
        watch.check([worker])
        await idle(watch)
        assert machine.looks == 1, "nothing was taken of the disk"
        machine.free = machine.free.less(taken)
        watch.check([worker])
        await idle(watch)
        assert machine.looks == 2 and len(worker.ends) == 1
        machine.free, machine.now_s = machine.free.less(taken), 15.0
        watch.check([worker])
        await idle(watch)
        assert machine.looks == 2, "a neighbour who fills the disk does not have it looked at all the time"
        watch.check([])

    run(scene())


def test_a_job_with_many_files_does_not_delay_the_look_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, really = threading.Event(), disk_watch._measure

    def slow(spec: PlacedSpec, pids: Any, *, whole: bool) -> DiskUsage:
        if spec.job == "many":
            go_on.wait(20.0)
        return really(spec, pids, whole=whole)

    monkeypatch.setattr(disk_watch, "_measure", slow)
    fill(tmp_path / "over" / "output" / "a", MB)
    (tmp_path / "many").mkdir()

    async def scene() -> None:
        watch = DiskWatch(tmp_path)
        many, over = Suspect(tmp_path / "many", MB, "many"), Suspect(tmp_path / "over", MB // 2, "over")
        try:
            watch.check([many, over])
            await until(lambda: over.ends)
        finally:
            go_on.set()
        await idle(watch)
        watch.check([])

    run(scene())


def test_a_job_over_its_disk_is_ended_alone_and_its_log_says_why(home: Path) -> None:
    bomb = (
        "import os, time\nfor n in range(64): open(os.environ['FAIRLEAD_OUTPUT'] + f'/{n}', 'wb').write(b'x' * 2**20)"
    )

    async def scene() -> None:
        async with platform(home, "2") as here:
            await here.start("quiet", ["node-1"], "sleep", "600")
            await here.start("bomb", ["node-0"], *python(bomb + "\ntime.sleep(600)"), disk_bytes=16 * MB)
            end = (await here.some(wire.Exited, job="bomb"))[0]
            assert (end.cause, end.code, end.signal) == ("disk-full", None, 9)
            held = re.search(r"the largest part is output with ([\d.]+) MB", end.detail)  # as far as it came
            assert held is not None and 15 < float(held[1]) < 68 and "--disk" in end.detail, end.detail
            assert f"fairlead: killed because {end.detail}\n" in await here.log("bomb")
            assert here.of(wire.Exited, "quiet") == []
            await here.backend.stop("quiet", {"w0": "node-1"}, 0.0)

    run(scene())


def test_a_deleted_file_is_no_way_around_the_limit(home: Path) -> None:
    code = """
import os, time
held = []
for number in range(4):
    path = os.environ['FAIRLEAD_OUTPUT'] + f'/hidden-{number}'
    held.append(open(path, 'wb'))
    os.unlink(path)
    held[-1].write(b'x' * 20 * 2**20)
    held[-1].flush()
time.sleep(600)
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *python(code), disk_bytes=32 * MB)  # more than each of the files
            end = (await here.some(wire.Exited, job="j"))[0]
            assert end.cause == "disk-full" and "deleted files that are still open" in end.detail

    run(scene())


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("open(f'{place}/much', 'wb').write(b'x' * 64 * 2**20)", "its snapshots in memory take 67"),
        ("[open(f'{place}/{n}', 'w').close() for n in range(20_000)]", "has more than 10000 files in memory"),
        ("os.chdir(place); [(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]", "levels deep"),
    ],
)
def test_memory_that_is_for_snapshots_of_all_is_not_for_one_to_fill(home: Path, code: str, why: str) -> None:
    code = f"import glob, os, time\nplace, = glob.glob('/dev/shm/fairlead-*/bomb/node-0')\n{code}\ntime.sleep(600)"

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("bomb", ["node-0"], *python(code), disk_bytes=32 << 30, memory_bytes=48 * MB)
            end = (await here.some(wire.Exited, job="bomb"))[0]
            if end.cause != "out-of-memory":  # where control groups count it, they may be faster
                assert end.cause == "disk-full" and why in end.detail

    run(scene())
