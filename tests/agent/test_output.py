"""What workers print: carried into the log whole, bounded in rate and size, and never writable by the job itself."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.embedded.worker_logs import read_logs
from fairlead.agent.node import log_pump
from fairlead.agent.node.log_pump import LogFile, LogPump, make_pipe
from tests.agent.platforms import needs_root, platform, python, run, until


def text(folder: Path) -> str:
    return "".join(chunk.text for chunk in read_logs(folder, {}, 1 << 30))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def log_file(folder: Path, keep_bytes: int = 1 << 20) -> LogFile:
    return LogFile(folder / "logs", "w0", keep_bytes)


def lines(count: int) -> bytes:
    return b"".join(b"line %09d\n" % number for number in range(count))


# ---------------------------------------------------------------- the file


def test_only_the_newest_bytes_stay_on_the_disk_and_readers_go_on_where_they_were(folder: Path) -> None:
    log = log_file(folder, 1 << 16)
    whole = lines(100_000)
    log.append(whole[:30])
    (first,) = read_logs(folder, {}, 1 << 20)
    for begin in range(30, len(whole), 50_000):
        log.append(whole[begin : begin + 50_000])
    path = folder / "logs" / "w0.log"
    assert path.stat().st_size == len(whole)
    assert path.stat().st_blocks * 512 < 2 << 16
    (rest,) = read_logs(folder, {"w0": first.offset}, 1 << 20)
    notice, _, newest = rest.text.partition("\n")
    assert whole.endswith(newest.encode())
    assert newest.startswith("line "), "a line that was dropped in part is not shown"
    assert notice == (
        f"fairlead: {len(whole) - 30 - len(newest)} bytes are missing here: "
        "a log keeps its newest bytes only (the tenant's policy.log)"
    )
    assert read_logs(folder, {"w0": rest.offset}, 1 << 20) == []
    log.close()


def test_the_missing_part_is_told_once_however_small_the_pieces_that_are_read(folder: Path) -> None:
    log = log_file(folder, 8192)
    for _ in range(100):
        log.append(lines(100))
    log.close()
    cursor: dict[str, int] = {}
    told = ""
    while chunks := read_logs(folder, cursor, 100):
        told += chunks[0].text
        cursor = {"w0": chunks[0].offset}
    assert told.count("fairlead: ") == 1
    assert cursor == {"w0": (folder / "logs" / "w0.log").stat().st_size}


def test_a_log_that_cannot_drop_its_oldest_ends_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: int, until: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(log_pump, "_punch_hole", unsupported)
    log = log_file(folder, 8192)
    for _ in range(10):
        log.append(lines(200))
    log.close()
    told = text(folder)
    assert "fairlead: the log ends here: its 8192 bytes are used" in told
    assert len(told) < 20_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_loses_output_and_says_how_much_when_there_is_room_again(folder: Path) -> None:
    log = log_file(folder)
    kept, full = os.dup(log._file), os.open("/dev/full", os.O_WRONLY)
    log.append(b"before\n")
    os.dup2(full, log._file)
    log.append(b"lost\n")
    log.append(b"lost too\n")
    os.dup2(kept, log._file)
    log.append(b"after\n")
    for descriptor in (kept, full):
        os.close(descriptor)
    log.close()
    assert text(folder) == "before\n\nfairlead: 14 bytes were lost here: No space left on device\nafter\n"


def test_a_log_is_opened_through_no_link(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    precious = tmp_path_factory.mktemp("other") / "precious"
    (folder / "logs" / "w0.log").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        log_file(folder)
    (folder / "logs" / "w0.log").unlink()
    (folder / "logs").rmdir()
    (folder / "logs").symlink_to(precious.parent)
    with pytest.raises(OSError, match=r"[Nn]ot a directory"):
        log_file(folder)
    assert not precious.exists()


# ---------------------------------------------------------------- the pump


def test_all_that_was_printed_before_the_end_is_in_the_log(folder: Path) -> None:
    async def scene() -> None:
        source, sink = make_pipe(None)
        carrying = LogPump(source, log_file(folder))
        await asyncio.to_thread(os.write, sink, lines(4000))
        os.close(sink)
        await carrying.finish(5.0)
        assert text(folder).encode() == lines(4000)

    run(scene())


def test_who_prints_too_much_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pump, "RATE_BYTES_PER_S", 1 << 20)
    monkeypatch.setattr(log_pump, "BURST_BYTES", 1 << 19)

    async def scene() -> float:
        source, sink = make_pipe(None)
        carrying = LogPump(source, log_file(folder))
        with os.fdopen(sink, "wb") as output:
            begun_s = time.monotonic()
            await asyncio.to_thread(output.write, b"x" * (1 << 20))
            took_s = time.monotonic() - begun_s
        await carrying.finish(5.0)
        return took_s

    assert run(scene()) > 0.1
    assert len(text(folder)) == 1 << 20


def test_the_end_does_not_wait_for_a_stray_that_holds_the_pipe(folder: Path) -> None:
    async def scene() -> None:
        source, sink = make_pipe(None)
        carrying = LogPump(source, log_file(folder))
        os.write(sink, b"last words\n")
        await carrying.finish(0.2)
        with pytest.raises(BrokenPipeError):
            os.write(sink, b"too late\n")
        os.close(sink)

    run(scene(), 10.0)
    assert text(folder) == "last words\n"


# ---------------------------------------------------------------- real workers


def test_a_log_bomb_is_slowed_down_and_cut_while_its_neighbour_prints_as_ever(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "2") as here:
            bomb = python("while True: print('x' * 1000)")
            await here.start("bomb", ["node-0"], *bomb, log_bytes=1 << 20)
            log = here.home.job("bomb") / "logs" / "w0.log"
            await until(lambda: log.exists() and log.stat().st_size > 3 << 20, 30.0)
            begun_s = time.monotonic()
            await here.start("quiet", ["node-1"], "echo", "hello")
            assert (await here.some(wire.Exited, job="quiet"))[0].code == 0
            assert await here.log("quiet") == "hello\n"
            rate = (log.stat().st_size + log_pump.BURST_BYTES) / max(1.0, time.monotonic() - begun_s)
            assert rate < 4 * log_pump.RATE_BYTES_PER_S
            assert log.stat().st_blocks * 512 < 3 << 20
            await here.backend.stop("bomb", {"w0": "node-0"}, 0.0)
            await here.some(wire.Exited, job="bomb")

    run(scene())


@needs_root
def test_a_job_cannot_touch_its_own_log_but_may_name_its_output(home: Path) -> None:
    code = """
import os
for path in ("../logs", "../logs/w0.log"):
    try:
        os.listdir(path) if path.endswith("logs") else open(path, "a")
        print("had it")
    except PermissionError:
        print("denied")
for name in ("/dev/stdout", "/dev/stderr"):
    with open(name, "w") as output:
        print("by name", file=output)
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *python(code))
            assert (await here.some(wire.Exited))[0].code == 0, await here.log("j")
            assert await here.log("j") == "denied\ndenied\nby name\nby name\n"

    run(scene())


def test_the_platforms_own_last_line_stands_on_a_line_of_its_own(folder: Path) -> None:
    async def scene() -> None:
        source, sink = make_pipe(None)
        carrying = LogPump(source, log_file(folder))
        os.write(sink, b"half a line")
        os.close(sink)
        await carrying.finish(5.0, "ended because it had to")

    run(scene())
    assert text(folder) == "half a line\nfairlead: ended because it had to\n"


@needs_root
def test_the_log_of_a_worker_out_of_memory_says_what_was_asked_for_and_what_to_do(home: Path) -> None:
    bomb = python("held = []\nwhile True: held.append(bytearray(1 << 20))")

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("bomb", ["node-0"], *bomb, memory_bytes=64 << 20)
            assert (await here.some(wire.Exited, job="bomb"))[0].cause == "out-of-memory"
            assert await here.log("bomb") == (
                "fairlead: killed because it used more memory than the requested 67.1 MB; raise resources.memory\n"
            )

    run(scene())
