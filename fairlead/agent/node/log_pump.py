"""Carries what a worker prints from its pipe into its log, no faster than the platform and its neighbours can bear."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path

from fairlead.agent.node.secret_scrubber import Scrubber

RATE_BYTES_PER_S = 8 << 20  # a worker that prints more than this has to wait, and nobody else
BURST_BYTES = 16 << 20
_TAKE_BYTES = 1 << 18
_PAUSE_S = 0.01  # between two writes: a job that prints each step costs a hundred writes in a second, not thousands
_MOST_BUSY = 0.1  # of a core that one worker's output may cost the platform
_PAGE = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02

_libc = ctypes.CDLL(None, use_errno=True)


class LogFile:
    """A worker's log of which the newest bytes are kept; places in the file stay what they are, so readers go on."""

    def __init__(self, folder: Path, worker: str, keep_bytes: int) -> None:
        self._keep_bytes = max(keep_bytes, _PAGE)
        self._file = _open(folder, f"{worker}.log")
        self._size = os.fstat(self._file).st_size
        self._start = 0  # what lies before has been dropped
        self._lost_bytes = 0  # not written, because the disk was full or broken
        self._trouble = ""
        self._at_line_start = True
        self._full = False

    @property
    def to_new_line(self) -> str:
        """What must be written to be at the beginning of a line."""
        return "" if self._at_line_start else "\n"

    def append(self, data: bytes) -> None:
        """Write the data and drop the oldest beyond the limit; a full disk loses data and later says how much."""
        if self._full or not data:
            return
        try:
            if self._lost_bytes:
                self._write(f"\nfairlead: {self._lost_bytes} bytes were lost here: {self._trouble}\n".encode())
                self._lost_bytes = 0
            self._write(data)
        except OSError as error:
            self._lost_bytes += len(data)
            self._trouble = str(error.strerror)
            return
        if self._size - self._start > self._keep_bytes + max(_PAGE, self._keep_bytes // 8):
            self._drop(self._size - self._keep_bytes)

    def _write(self, data: bytes) -> None:
        while data:
            written = os.write(self._file, data)
            self._size += written
            self._at_line_start = data[written - 1 : written] == b"\n"
            data = data[written:]

    def _drop(self, until: int) -> None:
        """Give the disk back what lies before this place."""
        until -= until % _PAGE
        try:
            _punch_hole(self._file, until)
        except OSError as error:
            self._full = True
            why = (
                f"its {self._keep_bytes} bytes are used, and this file system cannot drop the oldest: {error.strerror}"
            )
            with contextlib.suppress(OSError):
                self._write(f"\nfairlead: the log ends here: {why}\n".encode())
        self._start = until

    def close(self) -> None:
        os.close(self._file)


class LogPump:
    """One worker's output, from its first byte to its last."""

    def __init__(self, source: int, target: LogFile, scrubber: Scrubber | None = None) -> None:
        self._source, self._target = source, target
        self._scrubber = scrubber or Scrubber({})
        self._left_bytes = float(BURST_BYTES)
        self._counted_s = time.monotonic()
        self._hurry = asyncio.Event()  # the worker has ended: what is left comes at once
        self._transport: asyncio.ReadTransport | None = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        reader = asyncio.StreamReader(limit=_TAKE_BYTES // 2)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._source, "rb", buffering=0)
        )
        self._transport = transport
        try:
            while data := await reader.read(_TAKE_BYTES):
                transport.pause_reading()  # the worker's pipe fills, and then the worker waits
                busy_s = await asyncio.to_thread(self._carry, data)
                await self._rest(len(data), busy_s)
                transport.resume_reading()
        finally:
            transport.close()

    def _carry(self, data: bytes) -> float:
        begun_s = time.thread_time()
        self._target.append(self._scrubber.feed(data))
        return time.thread_time() - begun_s

    async def _rest(self, size_bytes: int, busy_s: float) -> None:
        """Wait as long as this much output has to cost."""
        now_s = time.monotonic()
        earned = (now_s - self._counted_s) * RATE_BYTES_PER_S
        self._left_bytes = min(float(BURST_BYTES), self._left_bytes + earned) - size_bytes
        self._counted_s = now_s
        wait_s = max(_PAUSE_S, -self._left_bytes / RATE_BYTES_PER_S, busy_s / _MOST_BUSY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()

    async def finish(self, within_s: float, last_line: str | None = None) -> None:
        """The worker has ended: carry what it left in the pipe. A stray that holds the pipe open is not waited for.

        The last line is the platform's own, about how the worker ended.
        """
        self._hurry.set()
        await asyncio.wait([self._task], timeout=within_s)
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self._task])
        await asyncio.to_thread(self._target.append, self._scrubber.finish())
        if last_line is not None:
            await asyncio.to_thread(self._target.append, f"{self._target.to_new_line}fairlead: {last_line}\n".encode())
        self._target.close()


def make_pipe(owner: int | None) -> tuple[int, int]:
    """A pipe for a worker's output, which its own user may open again by name (/dev/stdout, /dev/stderr)."""
    source, sink = os.pipe()
    if owner is not None and os.geteuid() == 0:
        os.fchown(sink, owner, owner)
    return source, sink


def _open(folder: Path, name: str) -> int:
    """The log, opened for the platform alone and through no link, whoever may have written in the job's folder."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, 0o600, dir_fd=directory)
    finally:
        os.close(directory)


def _punch_hole(file: int, until: int) -> None:
    begin, length = ctypes.c_int64(0), ctypes.c_int64(until)
    if _libc.fallocate(file, _KEEP_SIZE_PUNCH_HOLE, begin, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
