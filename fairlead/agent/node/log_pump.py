"""Copies a worker's output from its pipe into its log, rate-limited and without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path

from fairlead.agent.node.secret_scrubber import Scrubber

RATE_BYTES_PER_S = 8 << 20  # a worker that prints more than this blocks in its write
BURST_BYTES = 16 << 20
_TAKE_BYTES = 1 << 18
_PAUSE_S = 0.01  # between two writes: at most 100 a second per worker
_MOST_BUSY = 0.1  # cores that one worker's output may cost the platform
_PAGE = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02

_libc = ctypes.CDLL(None, use_errno=True)


class LogFile:
    """A worker's log that keeps its newest bytes: older ones are punched out, so readers' offsets stay valid."""

    def __init__(self, folder: Path, worker: str, keep_bytes: int) -> None:
        self._keep_bytes = max(keep_bytes, _PAGE)
        self._file = _open(folder, f"{worker}.log")
        self._size = os.fstat(self._file).st_size
        self._start = 0  # output before this offset was dropped
        self._lost_bytes = 0  # not written because of disk errors
        self._trouble = ""
        self._at_line_start = True
        self._full = False

    @property
    def to_new_line(self) -> str:
        """A line break, unless the log is at the begin of a line."""
        return "" if self._at_line_start else "\n"

    def append(self, data: bytes) -> None:
        """Append the data and drop the oldest beyond the limit; data lost to a full disk is reported later."""
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
        """Free the disk space before this offset."""
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
        self._hurry = asyncio.Event()  # the worker has ended: no more rate limit
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
                transport.pause_reading()  # the pipe fills and the worker blocks
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
        """Wait as long as the rate limit requires for this much output."""
        now_s = time.monotonic()
        earned = (now_s - self._counted_s) * RATE_BYTES_PER_S
        self._left_bytes = min(float(BURST_BYTES), self._left_bytes + earned) - size_bytes
        self._counted_s = now_s
        wait_s = max(_PAUSE_S, -self._left_bytes / RATE_BYTES_PER_S, busy_s / _MOST_BUSY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()

    async def finish(self, within_s: float, last_line: str | None = None) -> None:
        """The worker has ended: copy the rest of its pipe, at most ``within_s`` (a stray may keep the pipe open).

        ``last_line`` is the platform's own, about how the worker ended.
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
    """A pipe for a worker's output, owned by its user so that it can reopen /dev/stdout and /dev/stderr."""
    source, sink = os.pipe()
    if owner is not None and os.geteuid() == 0:
        os.fchown(sink, owner, owner)
    return source, sink


def _open(folder: Path, name: str) -> int:
    """Open the log for the platform alone and through no link, even if the job could write in its folder."""
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
