"""Following logs: one tail for all who follow one, nothing lost or told twice, and nobody waits for who is slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest

from fairlead.agent.embedded.worker_logs import last_lines, read_logs
from fairlead.agent.protocol import LogChunk, LogCursor
from fairlead.control.observability import log_tails
from fairlead.control.observability.log_tails import KEPT_BYTES, LogReader, LogTails
from fairlead.errors import Unavailable
from tests.control.stores import run


class Logs:
    """Logs of jobs in a folder, with everything counted that is asked for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published, self.over = 0, set[str]()
        self.reads: list[tuple[str, str | None]] = []
        self.questions: list[list[str]] = []
        self.failing = False
        self.tails = LogTails(self.read, self.ends, self.ended, lambda: self.published)

    async def read(self, job: str, after: LogCursor, limit_bytes: int, worker: str | None) -> list[LogChunk]:
        self.reads.append((job, worker))
        if self.failing:
            raise Unavailable("the disk is away")
        return read_logs(self.folder / job, after, limit_bytes, worker)

    async def ends(self, job: str) -> LogCursor:
        return last_lines(self.folder / job, 0, {}, whole=True)[1]

    async def ended(self, jobs: Collection[str]) -> set[str]:
        self.questions.append(sorted(jobs))
        return self.over & set(jobs)

    def write(self, data: bytes, worker: str = "w0", job: str = "job") -> None:
        (self.folder / job / "logs").mkdir(parents=True, exist_ok=True)
        with (self.folder / job / "logs" / f"{worker}.log").open("ab") as file:
            file.write(data)

    def end(self, *jobs: str) -> None:
        self.over |= set(jobs)
        self.published += 1

    def reader(self, job: str = "job", worker: str | None = None, after: LogCursor | None = None) -> LogReader:
        begins, ends = last_lines(self.folder / job, 1 << 30, after or {}, worker, whole=True)
        return LogReader(self.tails, self.read, job, begins, ends, worker)

    async def follow(self, reader: LogReader, told: list[str], at: Callable[[], Awaitable[None]] | None = None) -> None:
        async for piece in reader.follow():
            told += [json.loads(line)["text"] for line in piece.lines]
            if at is not None:
                await at()


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logs:
    monkeypatch.setattr(log_tails, "POLL_S", 0.005)
    monkeypatch.setattr(log_tails, "POLL_EACH_S", 0.0)
    return Logs(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def test_all_who_follow_one_log_share_one_reader_of_it(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"before\n")
        told: list[list[str]] = [[] for _ in range(20)]
        async with asyncio.TaskGroup() as group:
            for each in told:
                group.create_task(logs.follow(logs.reader(), each))
            await until(lambda: all(each == ["before"] for each in told))
            own = sum(worker is not None for _, worker in logs.reads)
            for count in range(3):
                logs.write(b"line %d\n" % count)
                await until(lambda count=count: all(len(each) == count + 2 for each in told))  # type: ignore[misc]
            assert sum(worker is not None for _, worker in logs.reads) == own, "somebody read what the tail had read"
            assert len(logs.questions) <= 2, "nothing was stored, and the store was asked"
            logs.end("job")
        assert all(each == ["before", "line 0", "line 1", "line 2"] for each in told)
        assert len(logs.questions) <= 3

    run(check())


def test_one_question_tells_of_all_jobs_that_are_followed_when_something_was_stored(logs: Logs) -> None:
    async def check() -> None:
        names = [f"job-{n}" for n in range(10)]
        for name in names:
            logs.write(b"x\n", job=name)
        told: list[list[str]] = [[] for _ in names]
        async with asyncio.TaskGroup() as group:
            for name, each in zip(names, told, strict=True):
                group.create_task(logs.follow(logs.reader(name), each))
            await until(lambda: all(told))
            before = len(logs.questions)
            logs.end(*names)
        assert logs.questions[before:] == [names]

    run(check())


def test_a_slow_follower_is_told_everything_once_and_keeps_nobody_waiting(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"0\n")
        held, slow, quick = asyncio.Event(), list[str](), list[str]()
        async with asyncio.TaskGroup() as group:
            group.create_task(logs.follow(logs.reader(), slow, lambda: _wait(held)))
            group.create_task(logs.follow(logs.reader(), quick))
            await until(lambda: slow == quick == ["0"])
            expected = ["0"]
            for count in range(1, 31):  # more than a tail keeps
                text = f"{count} " + "long " * (KEPT_BYTES // 100)
                logs.write(f"{text}\n".encode())
                expected.append(text)
                await until(lambda count=count: len(quick) == count + 1)  # type: ignore[misc]
            assert len(slow) == 1
            held.set()
            logs.write(b"the end without an end")
            logs.end("job")
        assert quick == slow == [*expected, "the end without an end"]

    run(check())


async def _wait(held: asyncio.Event) -> None:
    await held.wait()


def test_what_is_kept_for_followers_is_bounded(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"first\n")
        told: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(logs.follow(logs.reader(), told))
            await until(lambda: bool(told))
            (tail,) = logs.tails._tails.values()
            for _ in range(8):
                logs.write(b"long " * (KEPT_BYTES // 10) + b"\n")
                length = len(told)
                await until(lambda length=length: len(told) > length)  # type: ignore[misc]
                assert sum(piece.size for piece in tail._kept.values()) <= KEPT_BYTES
            logs.end("job")

    run(check())


def test_who_comes_back_goes_on_where_the_stream_broke_off(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"a\nb\n")
        logs.write(b"other\n", worker="w1")
        first, told = logs.reader(), list[str]()
        following = asyncio.create_task(logs.follow(first, told))
        await until(lambda: len(told) == 3)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        logs.write(b"c\n")
        logs.write(b"more\n", worker="w1")
        logs.end("job")
        again: list[str] = []
        await logs.follow(logs.reader(after=first.cursor), again)
        assert sorted(again) == ["c", "more"]
        only: list[str] = []
        await logs.follow(logs.reader(worker="w1"), only)
        assert only == ["other", "more"]
        assert not logs.tails._tails, "nobody follows any more"

    run(check())


def test_a_disk_that_does_not_answer_for_a_while_ends_no_stream(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"a\n")
        told: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(logs.follow(logs.reader(), told))
            await until(lambda: told == ["a"])
            logs.failing = True
            logs.write(b"b\n")
            count = len(logs.reads)
            await until(lambda: len(logs.reads) > count + 2)
            logs.failing = False
            await until(lambda: told == ["a", "b"])
            logs.end("job")

    run(check())


def test_followers_are_told_when_their_tail_fails(logs: Logs) -> None:
    async def check() -> None:
        logs.write(b"a\n")

        async def broken(jobs: Collection[str]) -> set[str]:
            raise ZeroDivisionError

        logs.tails._ended = broken
        with pytest.raises(Unavailable):
            await logs.follow(logs.reader(), [])

    run(check())
