"""Reserves devices for work with deadlines: on each queue's own share first, then on what other queues can spare."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from fairlead.scheduling.market.menus import Floats, Ints

SURELY = 1.0 - 1e-9
"""Tolerance for rounding where work is compared with what is possible."""

Row = list[float]
"""Free devices by time interval."""


@dataclass(frozen=True, slots=True)
class GangSizes:
    """The sizes of one job on one device type, ascending, with the speed and the offer's column of each."""

    sizes: Sequence[int]
    speeds: Sequence[float]
    columns: Sequence[int]
    kind: int = 0

    def speed(self, free: float) -> float:
        """Speed of the largest gang that so many devices allow."""
        at = bisect_right(self.sizes, free) - 1
        return float(self.speeds[at]) if at >= 0 else 0.0

    def column(self, size: int) -> int:
        """The offer of exactly this size."""
        return int(self.columns[bisect_left(self.sizes, size)])


@dataclass(frozen=True, slots=True)
class DeadlineReservation:
    """The devices reserved for a job."""

    devices: Ints  # by time interval
    column: int = -1  # its offer in the first interval; -1: none


class Plan:
    """Time intervals up to the last deadline, and the devices that are free in each.

    ``within`` are further rows by device type that several plans may share: a reservation must fit in them as well, and
    is taken from them. They have one more entry than there are intervals: the devices free after the last.
    """

    def __init__(
        self, edges_s: Floats, devices: float, free: Floats | None = None,
        within: Mapping[int, Sequence[Row]] | None = None,
    ) -> None:  # fmt: skip
        self.begins_s = float(edges_s[0])
        self.devices = devices
        self.ends_s: list[float] = edges_s[1:].tolist()
        self.seconds: list[float] = np.diff(edges_s).tolist()
        self.free: Row = [devices] * len(self.seconds) if free is None else free.tolist()
        self.within: Mapping[int, Sequence[Row]] = within or {}

    def reserve(self, size_options: Sequence[GangSizes], left: float, deadline_s: float) -> DeadlineReservation | None:
        """Reserve the smallest gang that meets the deadline, as late as possible; None if no gang does."""
        last = bisect_right(self.ends_s, deadline_s + 1e-6)
        if last == 0 or not size_options:
            return None
        fastest = max(max(option.speeds) for option in size_options)
        if fastest * (self.ends_s[last - 1] - self.begins_s) < left * SURELY:
            return None
        for option in size_options:
            taken = self._smallest(option, left, last)
            if taken is not None:
                return taken
        return self._widest(size_options, left, last)

    def _free(self, kind: int) -> Row:
        """Free devices of this type by interval."""
        within = self.within.get(kind)
        return list(map(min, self.free, *within)) if within else self.free

    def _smallest(self, option: GangSizes, left: float, last: int) -> DeadlineReservation | None:
        """Reserve the smallest gang on one type, which is nearly always enough."""
        size, speed, seconds = option.sizes[0], option.speeds[0], self.seconds
        if speed * (self.ends_s[last - 1] - self.begins_s) < left * SURELY:
            return None
        rows = (self.free, *self.within.get(option.kind, ()))
        first, second = rows[0], rows[-1]
        done, since, stretches = 0.0, last, []
        while since == last or done < left:
            if since == 0:
                return None
            since -= 1
            if first[since] >= size and second[since] >= size and (len(rows) < 3 or _fits(rows, since, size)):
                done += speed * seconds[since]
                stretches.append(since)
        for row in rows:
            for at in stretches:
                row[at] -= size
        taken = np.zeros(last, dtype=np.int64)
        taken[stretches] = size
        return DeadlineReservation(taken, int(option.columns[0]) if taken[0] else -1)

    def _widest(self, size_options: Sequence[GangSizes], left: float, last: int) -> DeadlineReservation | None:
        """Reserve gangs that take all free devices of the fastest type, up to the smallest sufficient size."""
        size_limits = sorted({int(size) for option in size_options for size in option.sizes})
        speed = np.zeros((len(size_limits), last))  # by size limit and interval
        size, of = np.zeros(speed.shape, dtype=np.int64), np.full(speed.shape, -1, dtype=np.int64)
        for number, option in enumerate(size_options):
            sizes, speeds = _with_none(option)
            widest = np.searchsorted(option.sizes, self._free(option.kind)[:last], side="right") - 1
            allowed = np.searchsorted(option.sizes, size_limits, side="right") - 1
            at = np.minimum(widest, allowed[:, None])
            better = speeds[at] > speed
            speed = np.where(better, speeds[at], speed)
            size, of = np.where(better, sizes[at], size), np.where(better, number, of)
        from_end = np.cumsum((speed * self.seconds[:last])[:, ::-1], axis=1)[:, ::-1]
        enough = from_end[:, 0] >= left
        limit = int(enough.argmax())
        if not enough[limit]:
            return None
        since = int(np.nonzero(from_end[limit] >= left)[0][-1])
        taken = np.where(np.arange(last) >= since, size[limit], 0)
        for number, option in enumerate(size_options):
            mine = np.where(of[limit] == number, taken, 0)
            for row in (self.free, *self.within.get(option.kind, ())):
                row[:last] = (np.array(row[:last]) - mine).tolist()
        now = int(taken[0])
        return DeadlineReservation(taken, size_options[of[limit, 0]].column(now) if now else -1)

    def soonest(self, size_options: Sequence[GangSizes], left: float, most: float = inf) -> float:
        """When so much work can be done on gangs of up to this size, beside all reservations."""
        begins_s, free = self.begins_s, [self._free(option.kind) for option in size_options]
        for at, end_s in enumerate(self.ends_s):
            speed = max((option.speed(min(row[at], most)) for option, row in zip(size_options, free, strict=True)),
                        default=0.0)  # fmt: skip
            if speed > 0 and speed * (end_s - begins_s) >= left:
                return float(begins_s + left / speed)
            left -= speed * (end_s - begins_s)
            begins_s = end_s
        after = max((option.speed(min(self._after(option.kind), most)) for option in size_options), default=0.0)
        return float(begins_s + left / after) if after > 0 else inf

    def _after(self, kind: int) -> float:
        """Devices of this type that are free after all reservations."""
        return min([self.devices, *(row[-1] for row in self.within.get(kind, ()))])


def reserve_in_turns(
    size_options: Sequence[GangSizes], left: float, seconds: Floats, slack: Floats, rows: Mapping[int, Sequence[Row]],
    most: float,
) -> DeadlineReservation | None:  # fmt: skip
    """Reserve the smallest gang that does this work in these intervals although it is larger than its queue's share.

    It runs in some intervals and not in others, as late as possible. ``slack`` are the device seconds that the queue
    has by the end of each interval, saved and still to come, beside its reservations; ``rows`` are the devices by type.
    The reservation is taken from both. No gang is larger than ``most``.
    """
    last, horizon_s = len(seconds), float(seconds.sum())
    if not last:
        return None
    for option in size_options:
        for size, speed, column in zip(option.sizes, option.speeds, option.columns, strict=True):
            if size > most + 1e-9:
                break
            needs_s = left / speed
            if needs_s * SURELY > horizon_s or needs_s * size * SURELY > slack[last - 1]:
                continue
            spent = _late(size, needs_s, seconds.tolist(), slack, rows.get(option.kind, ()))
            if spent is None:
                continue
            taken = np.where(spent > 0, size, 0)
            slack -= np.append(np.cumsum(spent * size), np.full(len(slack) - last, spent.sum() * size))
            for row in rows.get(option.kind, ()):
                row[:last] = (np.array(row[:last]) - taken).tolist()
            return DeadlineReservation(taken, int(column) if taken[0] else -1)
    return None


def _late(size: int, needs_s: float, seconds: Sequence[float], slack: Floats, rows: Sequence[Row]) -> Floats | None:
    """Seconds that a gang runs in each interval, filled from the last one back; None if they do not add up."""
    spent, enough_s = np.zeros(len(seconds)), needs_s * (1.0 - SURELY)
    tightest = float(slack[len(seconds) :].min(initial=inf))
    for at in range(len(seconds) - 1, -1, -1):
        tightest = min(tightest, float(slack[at]))
        if _fits(rows, at, size):
            spent[at] = max(0.0, min(seconds[at], needs_s, tightest / size))
            needs_s -= spent[at]
            tightest -= size * spent[at]
        if needs_s <= enough_s:
            return spent
    return None


def _fits(rows: Sequence[Row], at: int, size: int) -> bool:
    return all(row[at] >= size for row in rows)


def _with_none(option: GangSizes) -> tuple[Ints, Floats]:
    """Its sizes and speeds, with zeros for no gang at index -1."""
    return np.append(option.sizes, 0).astype(np.int64), np.append(option.speeds, 0.0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class QueueTiers:
    """What each queue may claim including the queues below it, and its parent; flat tenants are a tree of one tier."""

    entitled: Floats
    above: Ints  # index of the parent queue, -1 at the top


@dataclass(frozen=True, slots=True)
class Task:
    """A job with a deadline, and the work to be done by then."""

    job: int
    group: int  # index of its queue
    size_options: Sequence[GangSizes]  # by device type, the preferred type first
    left: float
    deadline_s: float


class Agenda:
    """The plans of all queues: one on each queue's share, and one per parent queue on what its children can spare.

    ``types`` are the devices by type: shares count all types together, but each device exists only once.
    """

    def __init__(
        self, edges_s: Floats, devices: float, tiers: QueueTiers | None, guarded: float, types: Sequence[float] = (),
        saved: Floats | None = None,
    ) -> None:  # fmt: skip
        self._saved = saved
        self.ends_s, self._edges_s, self._guarded = edges_s[1:], edges_s, guarded
        shares = [] if tiers is None else tiers.entitled.tolist()
        self._shares: list[float] = [*shares, devices]  # the last entry is the whole cluster
        top = len(shares)
        above = [] if tiers is None else tiers.above.tolist()
        self._above = [top if parent < 0 else parent for parent in above]
        self._below: list[list[int]] = [[] for _ in self._shares]
        for queue, parent in enumerate(self._above):
            self._below[parent].append(queue)
        self._taken = np.zeros((len(self._shares), len(self.ends_s)))  # by queue, without what its children have
        self._within = typed(types, len(self.ends_s))

    def planned(self, tasks: Sequence[Task]) -> list[tuple[Task, DeadlineReservation | None]]:
        """Each task with its reservation: None if the deadline is out of reach, zeros if others need the devices."""
        found = self._on_own_shares(tasks)
        late = [task for task in tasks if found[task.job] is None]
        if late and self._above and self._saved is not None:
            found |= self._in_turns(late, self._saved)
            late = [task for task in late if found[task.job] is None]
        if late and self._above:
            for queue in self._lenders():
                below = [task for task in late if found[task.job] is None and queue in self._path(task.group)]
                found |= self._spared(below, queue, self._guarded)
            late = [task for task in late if found[task.job] is None]
            taken = self._spared(late, len(self._above), 0.0)  # a task that needs still more is not hopeless, but waits
            found |= {
                job: None if one is None else DeadlineReservation(np.zeros_like(one.devices))
                for job, one in taken.items()
            }
        return [(task, found[task.job]) for task in tasks]

    def _on_own_shares(self, tasks: Sequence[Task]) -> dict[int, DeadlineReservation | None]:
        plans: dict[int, Plan] = {}
        found: dict[int, DeadlineReservation | None] = {}
        for task in tasks:
            queue = task.group if self._above else 0
            if queue not in plans:
                plans[queue] = Plan(self._edges_s, self._shares[queue], within=self._within)
            found[task.job] = plans[queue].reserve(task.size_options, task.left, task.deadline_s)
        for queue, plan in plans.items():
            self._taken[queue] = plan.devices - np.array(plan.free)
        return found

    def _in_turns(self, late: Sequence[Task], saved: Floats) -> dict[int, DeadlineReservation | None]:
        """Reservations on device seconds that a queue is due over time, beside all reservations so far."""
        seconds = np.diff(self._edges_s)
        everything = [(self._shares[-1] - self._taken.sum(axis=0)).tolist()]
        rows = {kind: [*everything, *self._within.get(kind, ())] for kind in range(max(1, len(self._within)))}
        slack: dict[int, Floats] = {}
        found: dict[int, DeadlineReservation | None] = {}
        for task in late:
            at, share = task.group, self._shares[task.group]
            if at not in slack:
                coming = share * (self.ends_s - self._edges_s[0])
                slack[at] = saved[at] + coming - np.cumsum(self._taken[at] * seconds)
            last = bisect_right(self.ends_s.tolist(), task.deadline_s + 1e-6)
            most = max(ceil(share), min((option.sizes[0] for option in task.size_options), default=0))
            taken = found[task.job] = reserve_in_turns(
                task.size_options, task.left, seconds[:last], slack[at], rows, most
            )
            if taken is not None:
                self._taken[at, :last] += taken.devices
        return found

    def _path(self, queue: int) -> list[int]:
        """The queues above it."""
        found: list[int] = []
        while queue < len(self._above):
            queue = self._above[queue]
            found.append(queue)
        return found

    def _lenders(self) -> list[int]:
        """Parent queues, the deepest first, so that siblings lend before distant queues."""
        return sorted((queue for queue, below in enumerate(self._below) if below), key=lambda at: -len(self._path(at)))

    def _kept(self, queue: int, guarded: float) -> Floats:
        """Devices that it and its children hold by interval, at least the guarded part of its share."""
        taken = self._taken[queue] + sum(self._kept(one, guarded) for one in self._below[queue])
        return np.asarray(np.maximum(taken, guarded * self._shares[queue]), dtype=np.float64)

    def _spared(self, late: Sequence[Task], queue: int, guarded: float) -> dict[int, DeadlineReservation | None]:
        """Reservations on what is left of this queue's share when its children keep the guarded part of theirs."""
        found: dict[int, DeadlineReservation | None] = {}
        if not late:
            return found
        kept, share = sum(self._kept(one, guarded) for one in self._below[queue]), self._shares[queue]
        plan = Plan(self._edges_s, share, np.maximum(0.0, share - kept - self._taken[queue]), self._within)
        for task in late:
            taken = found[task.job] = plan.reserve(task.size_options, task.left, task.deadline_s)
            if taken is not None:
                self._taken[queue, : len(taken.devices)] += taken.devices
        return found


def typed(types: Sequence[float], stretches: int) -> dict[int, list[Row]]:
    """The devices of each type as rows that plans share; empty with fewer than two types."""
    if len(types) < 2:
        return {}
    return {kind: [[float(devices)] * (stretches + 1)] for kind, devices in enumerate(types)}
