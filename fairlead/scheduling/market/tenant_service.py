"""Predicts what tenants will have had by the end of a round: devices, and the part of them that does useful work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairlead.cluster import same_seats
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.device_worth import TINY, BidColumns
from fairlead.scheduling.market.gang_choice import ChosenGangs
from fairlead.scheduling.market.menus import Floats
from fairlead.scheduling.market.offers import Offers
from fairlead.scheduling.market.queue_rules import charges
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.state import JobState

Seats = tuple[str, ...]


def accounts_after_round(
    jobs: Sequence[JobState], book: BidColumns, choices: Offers, chosen: ChosenGangs, seats: Mapping[str, Seats],
    shares: Shares,
    round_s: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The accounts for the next round, after all jobs have held these seats for ``round_s``.

    A job that ends early leaves its devices idle until the round is over, and a restarting job does no work: neither is
    useful to its tenant. Such losses are shared by all tenants that want more than they have; only a tenant that loses
    more than the others is owed the difference.
    """
    charge = charges(jobs, shares.whole)

    def by_queue(amounts: Floats) -> dict[str, float]:
        charged = amounts if charge is None else amounts * charge
        sums = np.bincount(book.group, charged, len(shares.names)).tolist() if jobs else [0.0] * len(shares.names)
        return shares.tree.summed(dict(zip(shares.names, sums, strict=True)))

    workers = np.array([len(seats.get(name, ())) for name in read_column(jobs, "id")], dtype=np.float64)
    worth = _useful(choices, chosen)
    if round_s is None or len(shares.names) == 1 or not jobs:
        return shares.memory(by_queue(workers), by_queue(workers * worth))
    served, ends = _served(jobs, book, choices, chosen, seats, round_s)
    memory = shares.memory(by_queue(workers), by_queue(workers * worth * served))
    if bool((served < 1.0).any()):
        wanted = by_queue(np.array(read_column(jobs, "max_workers"), dtype=np.float64) * ends)
        short = {name for name in shares.names if wanted[name] > shares.entitled[name] + 1e-9}
        theirs = workers * np.array([name in short for name in shares.names])[book.group]
        common = float(theirs @ served) / max(float(theirs.sum()), 1e-9) if theirs.any() else 1.0
        memory["accounts"] = {
            name: replace(account, entitled=account.entitled * common if name in short else wanted[name])
            for name, account in memory["accounts"].items()
        }
    return memory


def _useful(choices: Offers, chosen: ChosenGangs) -> Floats:
    """Worth of a device of its gang to each job, relative to the best type for that gang size."""
    rows, column = np.arange(choices.jobs), np.maximum(chosen.column, 0)
    speed, size = choices.speed[rows, column], choices.size[rows, column]
    best = np.where(choices.size == size[:, None], choices.speed, 0.0).max(axis=1, initial=0.0)
    return np.where((chosen.column >= 0) & (best > 0), speed / np.maximum(best, TINY), 1.0)


def _served(
    jobs: Sequence[JobState],
    book: BidColumns,
    choices: Offers,
    chosen: ChosenGangs,
    seats: Mapping[str, Seats],
    round_s: float,
) -> tuple[Floats, Floats]:
    """The part of the round in which each job works, and the part until it is done."""
    again = np.zeros(len(jobs), dtype=bool)
    for at, (name, done) in enumerate(zip(read_column(jobs, "id"), read_column(jobs, "work_done"), strict=True)):
        again[at] = done > 0 and _restarts(jobs[at], seats.get(name, ()))
    lost_s = np.minimum(np.where(again, book.restart_s, 0.0), round_s)
    rows, column = np.arange(choices.jobs), np.maximum(chosen.column, 0)
    needs_s = book.left / np.maximum(choices.speed[rows, column], TINY)
    known = book.declared & (chosen.column >= 0)
    works_s = np.where(known, np.minimum(needs_s, round_s - lost_s), round_s - lost_s)
    return works_s / round_s, np.where(known & (works_s < round_s - lost_s), (lost_s + works_s) / round_s, 1.0)


def _restarts(job: JobState, seats: Seats) -> bool:
    """Whether a job that has done work restarts on these seats; the time of a first start belongs to the job."""
    return bool(seats) and seats != job.seats and not same_seats(seats, job.seats)
