"""Finds the changes that can begin now on the way to the market's targets.

Targets never overlap, so the changes cannot conflict. A gang gets a seat only once it is free; until then it awaits it,
and the gang that holds the seat gives up what it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.cluster import Resources, fits, same_seats, subtract
from fairlead.scheduling.state import JobState

Seats = tuple[str, ...]
Limit = tuple[str, str]
"""A queue and a type of device, or "" for all types."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Devices that quotas still allow by limit, and the limits that a seat of a job counts for."""

    left: Mapping[Limit, int] = field(default_factory=dict)
    of: Callable[[JobState, str], Iterable[Limit]] = lambda job, node: ()


@dataclass(frozen=True, slots=True)
class FeasibleChanges:
    """By job: its seats from now on (empty: it stops), and the seats that it is promised and cannot have yet."""

    changes: Mapping[str, Seats] = field(default_factory=dict)
    awaits: Mapping[str, Seats] = field(default_factory=dict)


def feasible_changes(
    jobs: Mapping[str, JobState], wanted: Mapping[str, Seats], bidders: Sequence[str], free: Mapping[str, Resources],
    limits: Limits | None = None,
) -> FeasibleChanges:  # fmt: skip
    """What the ``bidders``, the most important first, do now when so much of each node is ``free``.

    A waiting gang starts whole, or with fewer workers if it can grow later. A running gang changes at once if its new
    seats are free. Otherwise it takes the free ones without getting smaller, and gives up the seats that others await.
    A gang stops only for seats that another gang awaits, or if it is broken and has no target. Of gangs that wait for
    each other's seats the least important stops.
    """
    round_ = _Round(jobs, wanted, dict(free), limits or Limits())
    for name in bidders:
        round_.take(name)
    for name in bidders:
        round_.change(name)
    for name in reversed(bidders):
        round_.stop(name)
    awaits = {name: seats for name, seats in round_.missing.items() if seats}
    return FeasibleChanges(dict(sorted(round_.changes.items())), awaits)


class _Round:
    """The counts while one round of changes is worked out."""

    def __init__(
        self, jobs: Mapping[str, JobState], wanted: Mapping[str, Seats], free: dict[str, Resources], limits: Limits
    ) -> None:
        self.jobs, self.wanted, self.free, self.limits = jobs, wanted, free, limits
        self.left = dict(limits.left)
        self.short: set[Limit] = set()  # limits that keep a gang from a seat
        self.got: dict[str, Seats] = {}
        self.missing: dict[str, Seats] = {}
        self.awaited: Counter[str] = Counter()
        self.changes: dict[str, Seats] = {}
        self.sitting: dict[str, list[str]] = {}  # by node: the gangs that have a seat there
        for name, job in jobs.items():
            for seat in dict.fromkeys(job.seats):
                self.sitting.setdefault(seat, []).append(name)

    def take(self, name: str) -> None:
        """Reserve the new seats that are free with all that a worker needs; note the others as awaited."""
        job, found, target = self.jobs[name], [], self.wanted.get(name, ())
        self.got[name] = self.missing[name] = ()
        if not target or target == job.seats:
            return
        new = Counter(target) - Counter(job.seats)
        for seat in sorted(new.elements()):
            limits = tuple(self.limits.of(job, seat))
            full = [limit for limit in limits if self.left.get(limit, 1) <= 0]
            self.short.update(full)
            if not full and seat in self.free and fits(job.need, self.free[seat]):
                self.free[seat] = subtract(self.free[seat], job.need)
                for limit in limits:
                    self.left[limit] = self.left.get(limit, 1 << 30) - 1
                found.append(seat)
        self.got[name] = tuple(found)
        self.missing[name] = tuple(sorted((new - Counter(found)).elements()))
        self.awaited.update(self.missing[name])

    def change(self, name: str) -> None:
        """Start, grow, shrink or move, as far as possible now."""
        job, target = self.jobs[name], self.wanted.get(name, ())
        if not target or target == job.seats:
            return
        seats = self._running(job, target) if job.seats else self._waiting(job, target)
        if seats is not None and not same_seats(seats, job.seats):
            self.changes[name] = seats
            self.awaited.subtract(Counter(job.seats) - Counter(seats))

    def _waiting(self, job: JobState, target: Seats) -> Seats | None:
        got = self.got[job.id]
        if len(got) == len(target):
            return target
        return got if job.elastic and _runs_with(job, len(got)) else None

    def _running(self, job: JobState, target: Seats) -> Seats | None:
        """The seats of a running gang from now on; None: no change."""
        gives = any(self.awaited[seat] > 0 for seat in (Counter(job.seats) - Counter(target)))
        seats = (*_kept(job.seats, target), *self.got[job.id])
        if len(seats) == len(target):
            return None if job.starts_over else seats
        if not job.elastic or not _runs_with(job, len(seats)):
            return None
        return seats if gives or len(seats) > len(job.seats) else None

    def stop(self, name: str) -> None:
        """Send a gang back to the queue that has no target, or cannot leave the seats that others await."""
        job = self.jobs[name]
        if not job.seats or name in self.changes:
            return
        if not (self._is_in_the_way(job) or (job.broken and not self.wanted.get(name))):
            return
        if not self.wanted.get(name) or (not job.starts_over and self._waits_for_itself(name)):
            self.changes[name] = ()
            self.awaited.subtract(job.seats)

    def _is_in_the_way(self, job: JobState) -> bool:
        own = Counter(self.missing[job.id])
        if any(self.awaited[seat] > own[seat] for seat in job.seats):
            return True
        if not self.short:
            return False
        return any(limit in self.short for seat in job.seats for limit in self.limits.of(job, seat))

    def _waits_for_itself(self, name: str) -> bool:
        """Whether it is part of a cycle of gangs that wait for each other's seats."""
        seen, ahead = {name}, [name]
        while ahead:
            one = ahead.pop()
            for holder in {holder for seat in self.missing[one] for holder in self.sitting.get(seat, ())} - {one}:
                if holder == name:
                    return True
                if holder not in seen and holder not in self.changes and self.missing.get(holder):
                    seen.add(holder)
                    ahead.append(holder)
        return False


def _kept(seats: Seats, target: Seats) -> Seats:
    """The present seats that are part of the target, in their order."""
    left, found = Counter(target), []
    for seat in seats:
        if left[seat] > 0:
            left[seat] -= 1
            found.append(seat)
    return tuple(found)


def _runs_with(job: JobState, size: int) -> bool:
    """Whether its gang can run at this size, as far as is known."""
    return size >= max(1, job.min_workers) and (job.curve is None or size in job.curve.sizes)
