"""Plans deadlines: which jobs must run now and at which size to keep most deadlines, and which cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.deadline_agenda import Agenda, GangSizes, Plan, QueueTiers, Task
from fairlead.scheduling.market.device_worth import TINY, BidColumns
from fairlead.scheduling.market.offers import Bools, Floats, Ints, Offers, Pool
from fairlead.scheduling.market.row_reductions import largest

__all__ = ["DeadlineDuties", "GangSizes", "Plan", "duties", "sizes_by_type", "time_edges", "work_to_reserve"]

MOST_EDGES = 160
MOST_JOBS = 1_000
"""At most so many jobs with deadlines are planned in one round, the smallest ones."""


@dataclass(frozen=True, slots=True)
class DeadlineDuties:
    """The column that each job must have at least now (-1: none), and jobs whose deadline is out of reach."""

    column: Ints
    hopeless: Bools
    planned: Bools
    wake_s: float = np.inf  # when the plan first gives a job more devices: decide again then


def duties(
    book: BidColumns,
    offers: Offers,
    pool: Pool,
    config: MarketConfig,
    tiers: QueueTiers | None = None,
    saved: Floats | None = None,
) -> DeadlineDuties:
    """Plans the smallest jobs first, as each kept deadline counts the same; each reserves little, as late as possible.

    With several queues each job is planned on its own queue's share; if that is not enough, on what sibling queues and
    then queues further up can spare. A deadline that needs still more is not mandatory. With ``saved``, the device
    seconds in the bucket of each queue, a share can also be used in turns: a queue that is due two thirds of a device
    can promise what one device does in two thirds of the time.
    """
    column = np.full(offers.jobs, -1, dtype=np.int64)
    hopeless, planned = np.zeros(offers.jobs, dtype=bool), np.zeros(offers.jobs, dtype=bool)
    bound = np.nonzero(np.isfinite(book.deadline_s))[0]
    if not len(bound):
        return DeadlineDuties(column, hopeless, planned)
    efficient = largest(offers.efficient[bound])
    area = book.left[bound] / np.maximum(efficient, TINY)
    agenda = Agenda(time_edges(book.now_s, book.round_s, book.deadline_s[bound]), pool.devices, tiers, config.guarded,
                    pool.capacity.tolist(), saved)  # fmt: skip
    tasks = []
    urgent = bound[np.argsort(area, kind="stable")][:MOST_JOBS]
    told = (column[urgent].tolist() for column in (book.left, book.restart_s, book.group, book.deadline_s))
    for job, left, restart_s, group, deadline_s in zip(urgent.tolist(), *told, strict=True):
        size_options = sizes_by_type(offers, job)
        tasks.append(Task(job, group, size_options, work_to_reserve(left, size_options, restart_s, config), deadline_s))
    wake_s = float(np.inf)
    for task, taken in agenda.planned(tasks):
        if taken is None:
            hopeless[task.job] = True
            continue
        planned[task.job] = True
        more = int((taken.devices > taken.devices[0]).argmax())  # 0 where it never is
        if more:
            wake_s = min(wake_s, float(agenda.ends_s[more - 1]))
        column[task.job] = taken.column
    return DeadlineDuties(column, hopeless, planned, wake_s)


def jobs_with_deadlines(duty: DeadlineDuties, book: BidColumns) -> list[int]:
    """Jobs that can keep their deadlines and need not run yet, the first deadline first.

    The plan starts them at the last possible moment. That is risky on a share that changes as jobs come and go and
    whose turns are minutes apart: so they come first on their own queue's share, at no cost to other queues.
    """
    rows = np.nonzero(duty.planned & (duty.column < 0))[0]
    found: list[int] = rows[np.argsort(book.deadline_s[rows], kind="stable")].tolist()
    return found


def work_to_reserve(left: float, size_options: Sequence[GangSizes], restart_s: float, config: MarketConfig) -> float:
    """The work to reserve before a deadline: the work left with a safety factor, and a restart."""
    fastest = max((max(option.speeds) for option in size_options), default=0.0)
    return left * config.deadline_margin + fastest * restart_s


def time_edges(now_s: float, round_s: float, deadlines_s: Floats) -> Floats:
    """The ends of the plan's intervals: now, the end of this round, doubling times, and the deadlines."""
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


def sizes_by_type(offers: Offers, job: int) -> tuple[GangSizes, ...]:
    """The sizes at which a job can run, by device type; first the type where its smallest gang is fastest.

    A row of offers has each type's sizes in ascending order.
    """
    found: dict[int, tuple[list[int], list[float], list[int]]] = {}
    kinds, sizes, speeds = offers.kind[job].tolist(), offers.size[job].tolist(), offers.speed[job].tolist()
    for column, speed in enumerate(speeds):
        if speed > 0:
            rungs = found.get(kinds[column])
            if rungs is None:
                rungs = found[kinds[column]] = ([], [], [])
            rungs[0].append(sizes[column])
            rungs[1].append(speed)
            rungs[2].append(column)
    size_options = [GangSizes(*rungs, kind) for kind, rungs in found.items()]
    if len(size_options) > 1:
        size_options.sort(key=lambda one: (one.sizes[0], -one.speeds[0], one.kind))
    return tuple(size_options)
