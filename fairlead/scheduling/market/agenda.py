"""Work to be done by a time, on devices that are somebody's: each on its own share first, then on what others spare."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.menus import Floats, Ints


@dataclass(frozen=True, slots=True)
class Ladder:
    """The sizes of one job, ascending, with the best speed at each and the column of that offer."""

    sizes: Sequence[int]
    speeds: Sequence[float]
    columns: Sequence[int]

    def up_to(self, size: float) -> Ladder:
        """Without the gangs that are larger than this."""
        kept = bisect_right(self.sizes, size)
        return Ladder(self.sizes[:kept], self.speeds[:kept], self.columns[:kept])


class Plan:
    """Stretches of time up to the last deadline, and the devices that are free in each."""

    def __init__(self, edges_s: Floats, devices: float, free: Floats | None = None) -> None:
        self.begins_s = float(edges_s[0])
        self.devices = devices
        self.ends_s: list[float] = edges_s[1:].tolist()
        self.seconds: list[float] = np.diff(edges_s).tolist()
        self.free: list[float] = [devices] * len(self.seconds) if free is None else free.tolist()

    def reserve(self, ladder: Ladder, left: float, deadline_s: float) -> Ints | None:
        """The smallest gang that makes it, from as late as possible on; devices by stretch, or None if nothing does."""
        last = bisect_right(self.ends_s, deadline_s + 1e-6)
        if last == 0:
            return None
        taken = self._smallest(ladder, left, last)
        if taken is not None:
            return taken
        widest = np.searchsorted(ladder.sizes, self.free[:last], side="right") - 1  # -1: not even the smallest fits
        rungs = len(ladder.sizes)
        sizes, speeds = np.zeros(rungs + 1, dtype=np.int64), np.zeros(rungs + 1)  # what is at -1 is nothing
        sizes[:rungs], speeds[:rungs] = ladder.sizes, ladder.speeds
        at = np.minimum(widest, np.arange(rungs)[:, None])  # by rung and stretch
        from_end = np.cumsum((speeds[at] * self.seconds[:last])[:, ::-1], axis=1)[:, ::-1]
        enough = from_end[:, 0] >= left
        rung = int(enough.argmax())
        if not enough[rung]:
            return None
        since = int(np.nonzero(from_end[rung] >= left)[0][-1])
        taken = np.where(np.arange(last) >= since, sizes[at[rung]], 0)
        self.free[:last] = (np.array(self.free[:last]) - taken).tolist()
        return np.asarray(taken, dtype=np.int64)

    def _smallest(self, ladder: Ladder, left: float, last: int) -> Ints | None:
        """The same for the smallest gang alone, nearly always enough, and found a few stretches from the end."""
        size, speed, free, seconds = ladder.sizes[0], ladder.speeds[0], self.free, self.seconds
        done, since = 0.0, last
        while since == last or done < left:
            if since == 0:
                return None
            since -= 1
            if free[since] >= size:
                done += speed * seconds[since]
        taken = np.zeros(last, dtype=np.int64)
        for at in range(since, last):
            if free[at] >= size:
                free[at] -= size
                taken[at] = size
        return taken

    def soonest(self, ladder: Ladder, left: float, rung: int) -> float:
        """When so much work can be done on gangs of up to this rung, beside all that is reserved already."""
        begins_s = self.begins_s
        for end_s, free in zip(self.ends_s, self.free, strict=True):
            at = min(bisect_right(ladder.sizes, free) - 1, rung)
            speed = ladder.speeds[at] if at >= 0 else 0.0
            if speed * (end_s - begins_s) >= left:
                return float(begins_s + left / speed)
            left -= speed * (end_s - begins_s)
            begins_s = end_s
        at = min(bisect_right(ladder.sizes, self.devices) - 1, rung)
        return float(begins_s + left / ladder.speeds[at]) if at >= 0 else float(np.inf)


@dataclass(frozen=True, slots=True)
class Tiers:
    """What each queue may claim with all below it, and who stands above it: a list of tenants is a tree of one tier."""

    entitled: Floats
    above: Ints  # the number of the queue above, -1 at the top


@dataclass(frozen=True, slots=True)
class Task:
    """A job with a deadline, and the work that has to be done by then."""

    job: int
    group: int  # the number of the queue in which it stands
    ladder: Ladder
    left: float
    deadline_s: float


class Agenda:
    """The plans of all queues: one each on its share, and for every queue above others one on what those can spare."""

    def __init__(self, edges_s: Floats, devices: float, tiers: Tiers | None, guarded: float) -> None:
        self.ends_s, self._edges_s, self._guarded = edges_s[1:], edges_s, guarded
        shares = [] if tiers is None else tiers.entitled.tolist()
        self._shares: list[float] = [*shares, devices]  # the last one is everything: above all others, or all there is
        top = len(shares)
        above = [] if tiers is None else tiers.above.tolist()
        self._above = [top if parent < 0 else parent for parent in above]
        self._below: list[list[int]] = [[] for _ in self._shares]
        for queue, parent in enumerate(self._above):
            self._below[parent].append(queue)
        self._taken = np.zeros((len(self._shares), len(self.ends_s)))  # by queue, beside what those below it have

    def planned(self, tasks: Sequence[Task]) -> list[tuple[Task, Ints | None]]:
        """Each task with its devices by stretch of time; None where nothing makes it, none where others need them."""
        found = self._on_own_shares(tasks)
        late = [task for task in tasks if found[task.job] is None]
        if late and self._above:
            for queue in self._lenders():
                below = [task for task in late if found[task.job] is None and queue in self._path(task.group)]
                found |= self._spared(below, queue, self._guarded)
            late = [task for task in late if found[task.job] is None]
            taken = self._spared(late, len(self._above), 0.0)  # who needs still more is not hopeless, but waits
            found |= {job: None if one is None else np.zeros_like(one) for job, one in taken.items()}
        return [(task, found[task.job]) for task in tasks]

    def _on_own_shares(self, tasks: Sequence[Task]) -> dict[int, Ints | None]:
        plans: dict[int, Plan] = {}
        found: dict[int, Ints | None] = {}
        for task in tasks:
            queue = task.group if self._above else 0
            if queue not in plans:
                plans[queue] = Plan(self._edges_s, self._shares[queue])
            found[task.job] = reserved(plans[queue], task)
        for queue, plan in plans.items():
            self._taken[queue] = plan.devices - np.array(plan.free)
        return found

    def _path(self, queue: int) -> list[int]:
        """Everybody above it."""
        found: list[int] = []
        while queue < len(self._above):
            queue = self._above[queue]
            found.append(queue)
        return found

    def _lenders(self) -> list[int]:
        """Queues above others, the deepest first, so that those beside one lend before strangers do."""
        return sorted((queue for queue, below in enumerate(self._below) if below), key=lambda at: -len(self._path(at)))

    def _kept(self, queue: int, guarded: float) -> Floats:
        """What it and all below it hold by stretch of time, and at least the guarded part of its share."""
        taken = self._taken[queue] + sum(self._kept(one, guarded) for one in self._below[queue])
        return np.asarray(np.maximum(taken, guarded * self._shares[queue]), dtype=np.float64)

    def _spared(self, late: Sequence[Task], queue: int, guarded: float) -> dict[int, Ints | None]:
        """On what is left of this queue's share when everybody below it keeps the guarded part of its own."""
        found: dict[int, Ints | None] = {}
        if not late:
            return found
        kept, share = sum(self._kept(one, guarded) for one in self._below[queue]), self._shares[queue]
        plan = Plan(self._edges_s, share, np.maximum(0.0, share - kept - self._taken[queue]))
        for task in late:
            taken = found[task.job] = reserved(plan, task)
            if taken is not None:
                self._taken[queue, : len(taken)] += taken
        return found


def reserved(plan: Plan, task: Task) -> Ints | None:
    return plan.reserve(task.ladder, task.left, task.deadline_s) if len(task.ladder.sizes) else None
