"""Reads the fields of many jobs as columns, in one pass: access to scattered objects is slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.state import JobState

NAMES = (
    "id", "tenant", "person", "submitted_s", "min_workers", "max_workers", "demand", "device_type", "only", "priority",
    "finish_by_s", "seats", "curve", "work_left", "work_done", "weight", "ran_s", "restart_cost_s", "facts",
    "since_s", "starts_over",
)  # fmt: skip

AT_A_TIME = 128
"""Jobs per block when columns are read: so many stay in the processor's cache."""

_GETTERS = tuple(map(attrgetter, NAMES))


class JobColumns(tuple[JobState, ...]):
    """A tuple of jobs with cached columns; usable wherever a sequence of jobs is."""

    columns: dict[str, Sequence[Any]]

    @classmethod
    def in_order(cls, jobs: Iterable[JobState]) -> JobColumns:
        """Sorted by submission time, then id, so that the order of the input does not matter."""
        return cls.of(sorted(sorted(jobs, key=attrgetter("id")), key=attrgetter("submitted_s")))

    @classmethod
    def of(cls, jobs: Iterable[JobState]) -> JobColumns:
        found = cls(jobs)
        columns: list[list[Any]] = [[] for _ in NAMES]
        for begin in range(0, len(found), AT_A_TIME):  # no row objects, which the garbage collector would scan
            some = found[begin : begin + AT_A_TIME]
            for getter, column in zip(_GETTERS, columns, strict=True):
                column.extend(map(getter, some))
        found.columns = dict(zip(NAMES, columns, strict=True))
        return found

    @classmethod
    def lazily(cls, jobs: Iterable[JobState]) -> JobColumns:
        """Columns are read when first asked for: for callers that need only a few fields."""
        found = cls(jobs)
        found.columns = {}
        return found


def read_column(jobs: Sequence[JobState], name: str) -> Sequence[Any]:
    """One field of all these jobs, from the cached column if there is one."""
    if not isinstance(jobs, JobColumns):
        return [getattr(job, name) for job in jobs]
    column = jobs.columns.get(name)
    if column is None:
        column = jobs.columns[name] = list(map(attrgetter(name), jobs))
    return column


def distinct_demands(jobs: Sequence[JobState]) -> tuple[list[Mapping[str, float]], NDArray[np.int64], list[int]]:
    """The distinct demands besides devices, the index of each job's demand, and the first job with each. There are
    thousands of jobs and a few dozen demands."""
    known = jobs.columns.get("demands") if isinstance(jobs, JobColumns) else None
    if known is None:
        every = read_column(jobs, "demand")
        rows: dict[tuple[tuple[str, float], ...], int] = {}
        asked = [tuple(demand.items()) for demand in every]
        for at, one in enumerate(asked):
            rows.setdefault(one, at)
        numbers = {one: number for number, one in enumerate(rows)}
        first = list(rows.values())
        known = ([every[at] for at in first], np.array([numbers[one] for one in asked], dtype=np.int64), first)
        if isinstance(jobs, JobColumns):
            jobs.columns["demands"] = known
    different, of_job, first = known
    return different, of_job, first
