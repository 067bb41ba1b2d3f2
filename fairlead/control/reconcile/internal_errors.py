"""Handles unexpected errors of the platform itself: decides which end the control plane, logs the others, backs off."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, NotSupportedError, ProgrammingError

from fairlead.control.observability import live_metrics, metric_families
from fairlead.errors import Unavailable

log = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""The first and the longest pause before a retry; each is twice as long as the one before."""


def must_propagate(error: BaseException) -> bool:
    """True for errors that no single job caused: lost leadership, or trouble of the store.

    An error in a statement that one job's data can cause belongs to the job: a value that a column cannot hold, that
    breaks a rule of its table, or that the driver cannot bind. A lost connection belongs to the store, whatever the
    error's type.
    """
    if isinstance(error, Unavailable):  # LostLeadership among them
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if isinstance(error, InterfaceError):  # SQLite raises it about values, PostgreSQL's driver about its connection
        return not isinstance(error.orig, sqlite3.InterfaceError)
    return not isinstance(error, DataError | IntegrityError | ProgrammingError | NotSupportedError)


def report_error(doing: str, error: BaseException, **facts: object) -> str:
    """Log the error with an id by which it can be found, and count it. Returns the id."""
    mark = uuid.uuid4().hex[:8]
    live_metrics.count(metric_families.INTERNAL_ERRORS, doing)
    log.error("an error of the platform's own", doing=doing, mark=mark, error=f"{type(error).__name__}: {error}"[:500],
              exc_info=error, **facts)  # fmt: skip
    return mark


@contextmanager
def guard_errors(doing: str, **facts: object) -> Iterator[None]:
    """Report an error of our own within this block and go on after the block."""
    try:
        yield
    except Exception as error:
        if must_propagate(error):
            raise
        report_error(doing, error, **facts)


async def run_forever(doing: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run endless work; restart it after a back-off when an error of our own ends it. Raises all other errors."""
    backoff = Backoff(time.monotonic)
    while True:
        try:
            return await work()
        except Exception as error:
            if must_propagate(error):
                raise
            report_error(doing, error)
            await asyncio.sleep(_pause_s(backoff.record_failure(doing)))


MAX_NAMES = 10_000
"""How many names are remembered: tenants influence how many there are."""


class Backoff:
    """Doubling pauses after failures, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[Hashable, tuple[int, float]] = {}  # failures in a row, end of the pause

    def is_waiting(self, name: Hashable) -> bool:
        """True while the pause after the last failure lasts. A clock that was set back never makes a pause longer."""
        tries, until_s = self._known.get(name, (0, 0.0))
        return 0.0 < until_s - self._clock() <= _pause_s(tries)

    def record_failure(self, name: Hashable) -> int:
        """Begin the next pause; returns how often it has failed in a row."""
        tries = self._known.pop(name, (0, 0.0))[0] + 1
        while len(self._known) >= MAX_NAMES:
            del self._known[next(iter(self._known))]  # the name that failed longest ago
        self._known[name] = tries, self._clock() + _pause_s(tries)
        return tries

    def failure_count(self, name: Hashable) -> int:
        """How often it has failed in a row."""
        return self._known.get(name, (0, 0.0))[0]

    def record_success(self, name: Hashable) -> None:
        """Forget the failures of this name."""
        self._known.pop(name, None)

    def waiting_names(self) -> set[Hashable]:
        """All names whose pause lasts."""
        return {name for name in self._known if self.is_waiting(name)}

    def retain(self, names: Collection[Hashable]) -> None:
        """Forget all names but these."""
        self._known = {name: known for name, known in self._known.items() if name in names}

    def __len__(self) -> int:
        return len(self._known)


def _pause_s(tries: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries - 1, 30))
