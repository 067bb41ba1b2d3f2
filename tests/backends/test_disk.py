"""A job's part of the disk: measured by somebody who cannot be fooled, and kept to by ending who takes more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.backends.local import disk
from fairlead.backends.local.disk import DELETED, Held, deleted_bytes, measure
from fairlead.backends.local.diskwatch import DiskWatch
from tests.backends.platforms import platform, python, run, until

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
    assert held.complaint(6 * MB, "vision") is None
    assert held.complaint(3 * MB, "vision") == (
        "its folder holds 5.3 MB, and 3.1 MB are allowed; the biggest part is logs with 4.2 MB; write less, or let an "
        "admin allow more: fairlead tenant update vision --disk 10.5MB"
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
    for _ in range(disk.DEEPEST + 10):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "folders deep" in str(measure(tmp_path).complaint(1 << 40, "vision"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="for root nothing is closed")
@pytest.mark.parametrize("closed", ["output", "output/inner"])
def test_a_folder_that_its_owner_closed_is_complained_about(tmp_path: Path, closed: str) -> None:
    (tmp_path / "output" / "inner").mkdir(parents=True)
    (tmp_path / closed).chmod(0)
    held = measure(tmp_path)
    (tmp_path / closed).chmod(0o700)
    assert "cannot be looked into" in str(held.complaint(MB, "vision"))


def test_too_many_files_are_complained_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MOST_FILES", 10)
    for number in range(20):
        fill(tmp_path / "tmp" / str(number), 0)
    assert "more than 10 files" in str(measure(tmp_path).complaint(1 << 40, "vision"))


def test_a_deleted_file_counts_while_it_is_open(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    with (tmp_path / "hidden").open("wb") as file:
        file.write(b"x" * MB)
        file.flush()
        before = deleted_bytes([os.getpid()], device)
        (tmp_path / "hidden").unlink()
        assert deleted_bytes([os.getpid()], device) - before == MB
    assert deleted_bytes([os.getpid()], device) == before
    assert Held({DELETED: 3 * MB}).complaint(MB, "vision")


# ---------------------------------------------------------------- watching


class Suspect:
    """A worker of which only its disk matters."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self.job = "j"
        self.spec = wire.WorkerSpec(
            job="j", tenant="vision", uid=None, run=None, command=["true"], params={}, env={}, venv=None, bundle=None,
            folder=str(folder), memory_folder=str(folder.parent / "memory"), cpu=1.0, disk_bytes=disk_bytes,
        )  # fmt: skip
        self.ends: list[tuple[str, str]] = []

    def pids(self) -> set[int]:
        return set()

    def overstep(self, cause: str, detail: str) -> None:
        self.ends.append((cause, detail))


def test_of_two_nodes_of_a_machine_one_looks_and_the_other_takes_over_when_it_is_gone(tmp_path: Path) -> None:
    fill(tmp_path / "job" / "output" / "a", MB)
    now_s = [0.0]

    async def scene() -> None:
        first, second = (DiskWatch(tmp_path, lambda: now_s[0]) for _ in range(2))
        one, other = (Suspect(tmp_path / "job", MB // 2) for _ in range(2))
        first.look([one])
        await until(lambda: one.ends)
        second.look([other])
        await asyncio.wait([second._looking])  # type: ignore[list-item]
        assert [cause for cause, _ in one.ends] == ["disk-full"] and not other.ends
        first.look([])
        assert list(tmp_path.glob("*.lock")) == []
        now_s[0] = 100.0
        second.look([other])
        await until(lambda: other.ends)
        second.look([])

    run(scene())


def test_a_look_that_takes_long_is_not_repeated_soon(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 3.0, 3.0, 59.0, 64.0, 64.0, 64.0, 64.0])

    async def scene() -> None:
        watch = DiskWatch(tmp_path, lambda: next(times))
        fill(tmp_path / "job" / "output" / "a", MB)
        worker = Suspect(tmp_path / "job", 0)
        watch.look([worker])  # from 0 to 3: not again before 63
        await until(lambda: len(worker.ends) == 1)
        watch.look([worker])
        assert watch._looking is not None and watch._looking.done()
        watch.look([worker])
        await until(lambda: len(worker.ends) == 2)
        watch.look([])

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
            assert "the biggest part is output with 6" in end.detail and "--disk" in end.detail
            assert f"fairlead: ended because {end.detail}\n" in await here.log("bomb")
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
        ("open(f'{place}/much', 'wb').write(b'x' * 64 * 2**20)", "its snapshots in memory hold 67"),
        ("[open(f'{place}/{n}', 'w').close() for n in range(20_000)]", "keeps more than 10000 files in memory"),
        ("os.chdir(place); [(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]", "folders deep"),
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
