"""Serves job logs in bounded pieces from any offset, with one shared tail per log for all its followers."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from fairlead.agent.protocol import LogChunk, LogCursor
from fairlead.errors import FairleadError, Unavailable

PIECE_BYTES = 1 << 16
"""Bytes per piece; a longer line without an end is sent in several pieces."""
PIECE_LINES = 1000
"""Lines per piece: short lines cost mostly their JSON around them."""
POLL_S = 0.2  # log files are polled
POLL_EACH_S = 0.004  # ... less often when many logs are followed: a few percent of a core in all
MAX_POLL_S = 2.0
TAIL_BYTES = 1 << 20  # read of one log at once, so that endless lines do not hide other workers
READS = 4  # reads of one log per turn, so that a busy log does not delay others
KEPT_BYTES = 1 << 20  # newest pieces of one log shared by its followers
_CUT_CHARACTER = 3  # bytes of a split UTF-8 character that a read may leave for the next one

_LINE_END = re.compile(rb"\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e]")

log = structlog.get_logger(__name__)

ReadLogs = Callable[[str, LogCursor, int, str | None], Awaitable[list[LogChunk]]]
"""Job, offsets, byte limit, worker."""
WhereLogsEnd = Callable[[str], Awaitable[Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some lines of one worker as they are sent, and their offsets in its log."""

    worker: str
    begin: int
    end: int
    lines: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


def pieces(worker: str, begin: int, chunk: LogChunk, *, final: bool) -> Iterator[LogPiece]:
    """Split what was read into pieces. ``final`` includes a last line without an end, which waits for it otherwise."""
    data = chunk.text.encode("utf-8", "surrogateescape")
    whole = data.rfind(b"\n") + 1
    if final or (not whole and len(data) >= PIECE_BYTES - _CUT_CHARACTER):
        whole = len(data)
    at = 0
    for place in _cut_points(data[:whole]):
        lines = data[at:place].decode("utf-8", "replace").splitlines()
        end = chunk.offset - (len(data) - place)
        yield LogPiece(
            worker, begin, end, tuple(msgspec.json.encode({"worker": worker, "text": text}) for text in lines)
        )
        at, begin = place, end


def _cut_points(data: bytes) -> Iterator[int]:
    """Where to split a text so that no piece is too large: after one-byte line ends, not inside a character."""
    at = count = place = 0
    for match in _LINE_END.finditer(data):
        if place > at and match.end() - at > PIECE_BYTES:
            yield place
            at, count = place, 0
        place, count = match.end(), count + 1
        if count == PIECE_LINES:
            yield place
            at, count = place, 0
    if at < len(data):
        if at < place < len(data) and len(data) - at > PIECE_BYTES:
            yield place
        yield len(data)


@dataclass(slots=True)
class Tail:
    """The growing end of one log."""

    job: str
    offsets: dict[str, int] = field(default_factory=dict)  # worker -> bytes known to be written, in whole lines
    over: bool = False  # its job has ended; the rest is still to be read
    ended: bool = False  # everything was read
    version: int = 0  # counts changes
    followers: int = 0
    failed: FairleadError | None = None
    _kept: OrderedDict[tuple[str, int], LogPiece] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def take(self, piece: LogPiece) -> None:
        """Keep a new piece, evicting the oldest."""
        self.offsets[piece.worker] = piece.end
        self._kept[piece.worker, piece.begin] = piece
        self._bytes += piece.size
        while self._bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size

    def piece(self, worker: str, begin: int) -> LogPiece | None:
        """The piece that begins at this offset, if it is still kept."""
        return self._kept.get((worker, begin))

    def changed(self) -> None:
        self.version += 1
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, version: int) -> None:
        """Wait until there is more than at this version."""
        while self.version == version and self.failed is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        if self.failed is not None:
            raise self.failed


class LogTails:
    """All followed logs. One task polls them in turn and asks once for all whether their jobs have ended."""

    def __init__(
        self,
        read: ReadLogs,
        ends: WhereLogsEnd,
        ended: Callable[[Collection[str]], Awaitable[Collection[str]]],
        published: Callable[[], int],
    ) -> None:
        self._read, self._ends, self._ended = read, ends, ended
        self._published = published  # counter that grows when something was stored
        self._tails: dict[str, Tail] = {}
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def tail(self, job: str) -> Iterator[Tail]:
        """The job's tail, shared by all its followers."""
        tail = self._tails.setdefault(job, Tail(job))
        tail.followers += 1
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
            self._task.add_done_callback(_log_failure)
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers and self._tails.get(job) is tail:
                del self._tails[job]

    async def _watch(self) -> None:
        """Poll until nobody follows."""
        seen = -1
        try:
            while self._tails:
                self._joined.clear()
                try:
                    seen = await self._refresh_ended(seen)
                    for tail in [each for each in self._tails.values() if not each.ended]:
                        await self._poll(tail)
                except FairleadError as error:
                    log.warning("followed logs cannot be read at the moment", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(MAX_POLL_S, max(POLL_S, POLL_EACH_S * len(self._tails)))):
                        await self._joined.wait()
        finally:  # remaining followers would wait forever
            for tail in self._tails.values():
                tail.failed = Unavailable("this log cannot be followed any more", fix="follow it again")
                tail.changed()
            self._tails.clear()

    async def _refresh_ended(self, seen: int) -> int:
        """Find out which jobs have ended: one query for all, when something was stored or a follower joined."""
        published, going = self._published(), [each for each in self._tails.values() if not each.over]
        if published != seen or any(not each.version for each in going):
            over = await self._ended([each.job for each in going])
            for tail in going:
                tail.over = tail.job in over
        return published

    async def _poll(self, tail: Tail) -> None:
        """Read what was written since; everything once the job has ended."""
        over, grown = tail.over, not tail.version
        if not tail.version:  # each follower reads earlier output itself
            tail.offsets.update(await self._ends(tail.job))
        for _ in range(READS):
            found = False
            for chunk in await self._read(tail.job, tail.offsets, TAIL_BYTES, None):
                for piece in pieces(chunk.worker, tail.offsets.get(chunk.worker, 0), chunk, final=over):
                    tail.take(piece)
                    found = grown = True
            if not found:
                tail.ended = over
                break
        if grown or tail.ended:
            tail.changed()


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("following logs failed", error=repr(error))


class LogReader:
    """One reader of one job's log. ``cursor`` is its offset per worker, updated after each piece."""

    def __init__(
        self, tails: LogTails, read: ReadLogs, job: str, cursor: Mapping[str, int], until: Mapping[str, int],
        worker: str | None,
    ) -> None:  # fmt: skip
        self.cursor = dict(cursor)
        self._tails, self._read, self._job, self._until, self._worker = tails, read, job, dict(until), worker

    async def written(self) -> AsyncGenerator[LogPiece, None]:
        """What was written before the reader was created, one worker after the other."""
        for worker, end in self._until.items():
            while self.cursor.get(worker, 0) < end:
                piece = await self._next(worker, end)
                if piece is None:
                    break
                yield piece

    async def follow(self) -> AsyncGenerator[LogPiece, None]:
        """Everything, until the job has ended and all was read."""
        with self._tails.tail(self._job) as tail:
            while True:
                version, ended = tail.version, tail.ended
                for worker, end in list(tail.offsets.items()):
                    while self._worker in (None, worker) and self.cursor.get(worker, 0) < end:
                        piece = tail.piece(worker, self.cursor.get(worker, 0))
                        if piece is not None:
                            self.cursor[worker] = piece.end
                        else:
                            piece = await self._next(worker, end)
                        if piece is None:
                            break
                        yield piece
                if ended:
                    return
                if version == tail.version:
                    await tail.wait(version)

    async def _next(self, worker: str, end: int) -> LogPiece | None:
        """The next piece of this worker's log, up to an offset that is the end of a line."""
        begin = self.cursor.get(worker, 0)
        limit = min(PIECE_BYTES, end - begin)
        for chunk in await self._read(self._job, {worker: begin}, limit, worker):
            final = begin + limit >= end >= chunk.offset  # after a dropped part it may read too far
            for piece in pieces(worker, begin, chunk, final=final):
                self.cursor[worker] = piece.end
                return piece
        self.cursor[worker] = end  # the log is shorter now: dropped or removed
        return None
