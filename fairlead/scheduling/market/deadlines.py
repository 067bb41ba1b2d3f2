"""Who must run now, and on how much, so that as many deadlines as possible are kept; and whose cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Bools, Floats, Ints, Offers, Pool
from fairlead.scheduling.market.worth import Book

MOST_EDGES = 160
MOST_JOBS = 1_000
"""More jobs with deadlines are not planned for in one round: the smallest are."""


@dataclass(frozen=True, slots=True)
class Duties:
    """The column each job must have at least now (-1: none), and whose deadline is out of reach."""

    column: Ints
    hopeless: Bools
    planned: Bools
    wake_s: float = np.inf  # when the plan gives somebody more for the first time: then it is time to decide again


@dataclass(frozen=True, slots=True)
class Ladder:
    """The sizes of one job, ascending, with the best speed at each and the column of that offer."""

    sizes: Ints
    speeds: Floats
    columns: Ints

    def up_to(self, size: float) -> Ladder:
        """Without the gangs that are larger than this."""
        kept = self.sizes <= size
        return Ladder(self.sizes[kept], self.speeds[kept], self.columns[kept])


class Plan:
    """Stretches of time up to the last deadline, and the devices that are free in each."""

    def __init__(self, edges_s: Floats, devices: float) -> None:
        self.begins_s = float(edges_s[0])
        self.devices = devices
        self.ends_s = edges_s[1:]
        self.seconds = np.diff(edges_s)
        self.free = np.full(len(self.seconds), devices)

    def reserve(self, ladder: Ladder, left: float, deadline_s: float) -> Ints | None:
        """The smallest gang that makes it, from as late as possible on; devices by stretch, or None if nothing does."""
        last = int(np.searchsorted(self.ends_s, deadline_s + 1e-6, side="right"))
        if last == 0:
            return None
        free, seconds = self.free[:last], self.seconds[:last]
        taken = self._smallest(ladder, left, free, seconds)
        if taken is not None:
            self.free[:last] -= taken
            return taken
        widest = np.searchsorted(ladder.sizes, free, side="right") - 1  # -1: not even the smallest fits
        rungs = len(ladder.sizes)
        sizes, speeds = np.zeros(rungs + 1, dtype=np.int64), np.zeros(rungs + 1)  # what is at -1 is nothing
        sizes[:rungs], speeds[:rungs] = ladder.sizes, ladder.speeds
        at = np.minimum(widest, np.arange(rungs)[:, None])  # by rung and stretch
        from_end = np.cumsum((speeds[at] * seconds)[:, ::-1], axis=1)[:, ::-1]
        enough = from_end[:, 0] >= left
        rung = int(enough.argmax())
        if not enough[rung]:
            return None
        since = int(np.nonzero(from_end[rung] >= left)[0][-1])
        taken = np.where(np.arange(last) >= since, sizes[at[rung]], 0)
        self.free[:last] -= taken
        return np.asarray(taken, dtype=np.int64)

    def _smallest(self, ladder: Ladder, left: float, free: Floats, seconds: Floats) -> Ints | None:
        """The same for the smallest gang alone, which is nearly always enough, and found in a few steps."""
        size, speed = int(ladder.sizes[0]), float(ladder.speeds[0])
        fits = free >= size
        from_end = np.where(fits, speed * seconds, 0.0)[::-1].cumsum()[::-1]
        if from_end[0] < left:
            return None
        since = len(from_end) - int((from_end[::-1] >= left).argmax())  # one beyond the last that is early enough
        taken = np.where(fits, size, 0)
        taken[: since - 1] = 0
        return np.asarray(taken, dtype=np.int64)

    def soonest(self, ladder: Ladder, left: float, rung: int) -> float:
        """When so much work can be done on gangs of up to this rung, beside all that is reserved already."""
        begins_s = self.begins_s
        for end_s, free in zip(self.ends_s.tolist(), self.free.tolist(), strict=True):
            at = min(int(np.searchsorted(ladder.sizes, free, side="right")) - 1, rung)
            speed = float(ladder.speeds[at]) if at >= 0 else 0.0
            if speed * (end_s - begins_s) >= left:
                return float(begins_s + left / speed)
            left -= speed * (end_s - begins_s)
            begins_s = end_s
        at = min(int(np.searchsorted(ladder.sizes, self.devices, side="right")) - 1, rung)
        return float(begins_s + left / ladder.speeds[at]) if at >= 0 else float(np.inf)


def duties(book: Book, offers: Offers, pool: Pool, dials: Dials, entitled: Floats | None = None) -> Duties:
    """The smallest jobs first, as each kept deadline counts alike; each reserves as little as late as it can.

    With several tenants side by side each job is planned on its tenant's share, and only if that does not do, on what
    all others can spare; a deadline that needs still more is out of nobody's share, and no duty.
    """
    column = np.full(offers.jobs, -1, dtype=np.int64)
    hopeless, planned = np.zeros(offers.jobs, dtype=bool), np.zeros(offers.jobs, dtype=bool)
    bound = np.nonzero(np.isfinite(book.deadline_s))[0]
    if not len(bound):
        return Duties(column, hopeless, planned)
    efficient = (offers.speed / np.maximum(offers.size, 1)).max(axis=1)
    area = book.left / np.maximum(efficient, 1e-300)
    agenda = Agenda(edges(book.now_s, book.round_s, book.deadline_s[bound]), pool.devices, entitled, dials.guarded)
    tasks = []
    for job in bound[np.argsort(area[bound], kind="stable")][:MOST_JOBS].tolist():
        ladder = ladder_of(offers, job)
        left = promised(float(book.left[job]), ladder, float(book.restart_s[job]), dials)
        tasks.append(Task(job, int(book.group[job]), ladder, left, float(book.deadline_s[job])))
    wake_s = float(np.inf)
    for task, taken in agenda.planned(tasks):
        if taken is None:
            hopeless[task.job] = True
            continue
        planned[task.job] = True
        more = np.nonzero(taken > taken[0])[0]
        if len(more):
            wake_s = min(wake_s, float(agenda.ends_s[more[0] - 1]))
        if taken[0] > 0:
            column[task.job] = task.ladder.columns[int(np.searchsorted(task.ladder.sizes, taken[0]))]
    return Duties(column, hopeless, planned, wake_s)


@dataclass(frozen=True, slots=True)
class Task:
    """A job with a deadline, and the work that has to be done by then."""

    job: int
    group: int
    ladder: Ladder
    left: float
    deadline_s: float


class Agenda:
    """The plans of all tenants: one each on its share, and one on what they can spare together."""

    def __init__(self, edges_s: Floats, devices: float, entitled: Floats | None, guarded: float) -> None:
        self.ends_s, self._devices, self._guarded = edges_s[1:], devices, guarded
        self._own = [Plan(edges_s, float(share)) for share in ([devices] if entitled is None else entitled.tolist())]
        self._shared = Plan(edges_s, devices)

    def planned(self, tasks: Sequence[Task]) -> list[tuple[Task, Ints | None]]:
        """Each task with its devices by stretch of time; None where nothing makes it, none where others need them."""
        found: dict[int, Ints | None] = {}
        alone = len(self._own) == 1
        for task in tasks:
            found[task.job] = _reserved(self._own[0 if alone else task.group], task)
        late = [task for task in tasks if found[task.job] is None]
        if late and not alone:
            found |= self._spared(late)
        return [(task, found[task.job]) for task in tasks]

    def _spared(self, late: Sequence[Task]) -> dict[int, Ints | None]:
        """First on what is left when everybody keeps the guarded part; who needs more is not hopeless, but waits."""
        found: dict[int, Ints | None] = {}
        extra = np.zeros(len(self.ends_s))
        for guarded in (self._guarded, 0.0):
            kept = sum(np.maximum(plan.devices - plan.free, guarded * plan.devices) for plan in self._own)
            self._shared.free = np.maximum(0.0, self._devices - kept - extra)
            for task in late:
                if found.get(task.job) is not None:
                    continue
                taken = _reserved(self._shared, task)
                if taken is not None:
                    extra[: len(taken)] += taken
                found[task.job] = taken if taken is None or guarded > 0 else np.zeros_like(taken)
        return found


def _reserved(plan: Plan, task: Task) -> Ints | None:
    return plan.reserve(task.ladder, task.left, task.deadline_s) if len(task.ladder.sizes) else None


def promised(left: float, ladder: Ladder, restart_s: float, dials: Dials) -> float:
    """The work that has to fit before a deadline: a little more than there is, and a restart."""
    return left * dials.deadline_margin + float(ladder.speeds.max(initial=0.0)) * restart_s


def edges(now_s: float, round_s: float, deadlines_s: Floats) -> Floats:
    """Now, the end of this round, times that double, and the deadlines themselves."""
    ahead = deadlines_s - now_s
    ahead = _distinct(ahead[ahead > 0])
    if len(ahead) > MOST_EDGES:
        ahead = ahead[np.linspace(0, len(ahead) - 1, MOST_EDGES).astype(np.int64)]
    last = float(ahead[-1]) if len(ahead) else round_s
    doubling = round_s * 2.0 ** np.arange(0, max(1, int(np.ceil(np.log2(max(last / round_s, 1.0)))) + 1))
    inside = _distinct(np.concatenate([[0.0], ahead, doubling[doubling <= last], [last]]))
    return np.asarray(now_s + inside, dtype=np.float64)


def _distinct(values: Floats) -> Floats:
    """As ``np.unique``, which loads masked arrays when it is called first."""
    ordered = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]], dtype=np.float64)


def ladder_of(offers: Offers, job: int) -> Ladder:
    best: dict[int, int] = {}
    speeds, sizes = offers.speed[job].tolist(), offers.size[job].tolist()
    for column, (speed, size) in enumerate(zip(speeds, sizes, strict=True)):
        if speed > 0 and (size not in best or speed > speeds[best[size]]):
            best[size] = column
    columns = np.array([best[one] for one in sorted(best)], dtype=np.int64)
    return Ladder(offers.size[job, columns], offers.speed[job, columns], columns)
