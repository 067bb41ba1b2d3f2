"""Jobs with their fields as columns, read in one go: objects lie all over the memory, so that each look costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from fairlead.scheduling.state import JobState

NAMES = (
    "id", "tenant", "person", "submitted_s", "min_workers", "max_workers", "demand", "device_type", "only", "priority",
    "finish_by_s", "seats", "curve", "work_left", "work_done", "weight", "ran_s", "restart_cost_s", "facts",
    "since_s", "starts_over",
)  # fmt: skip

AT_A_TIME = 128
"""Jobs that are read before the next field is: so many stay in the cache meanwhile."""

_GETTERS = tuple(map(attrgetter, NAMES))


class Read(tuple[JobState, ...]):
    """The jobs, and next to them their columns: it goes wherever a sequence of jobs does."""

    columns: dict[str, Sequence[Any]]

    @classmethod
    def in_order(cls, jobs: Iterable[JobState]) -> Read:
        """By the time of submission, and by name where that is the same: so the order of the input does not matter."""
        return cls.of(sorted(sorted(jobs, key=attrgetter("id")), key=attrgetter("submitted_s")))

    @classmethod
    def of(cls, jobs: Iterable[JobState]) -> Read:
        found = cls(jobs)
        columns: list[list[Any]] = [[] for _ in NAMES]
        for begin in range(0, len(found), AT_A_TIME):  # no row is ever an object: the collector would look at them all
            some = found[begin : begin + AT_A_TIME]
            for getter, column in zip(_GETTERS, columns, strict=True):
                column.extend(map(getter, some))
        found.columns = dict(zip(NAMES, columns, strict=True))
        return found

    @classmethod
    def lazily(cls, jobs: Iterable[JobState]) -> Read:
        """For when only a few fields are asked for, each maybe several times: it is read when it is asked for first."""
        found = cls(jobs)
        found.columns = {}
        return found


def read(jobs: Sequence[JobState], name: str) -> Sequence[Any]:
    """One field of all these jobs, from what was read already if it was."""
    if not isinstance(jobs, Read):
        return [getattr(job, name) for job in jobs]
    column = jobs.columns.get(name)
    if column is None:
        column = jobs.columns[name] = list(map(attrgetter(name), jobs))
    return column
