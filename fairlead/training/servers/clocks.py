"""Which rank computes which piece of which step, and how far it may be ahead of the slowest: no clock, no I/O.

Stale-synchronous parallel (Ho et al., NIPS 2013), with one change: a rank does not own a part of every batch, it takes
the next free piece. So a straggler delays a step by the one piece that it computes, and gets fewer of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

import msgspec

REMEMBERED = 8
"""Pieces of each rank by which its speed is measured."""


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """What a rank does next in a step: a piece; nothing, as all are taken; or wait, as it is too far ahead."""

    piece: int | None = None
    wait: bool = False
    finished: int = 0  # pieces of all ranks so far: a waiting rank sees by it that others make progress
    complete: int = 0  # all steps before this one are done


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The end of a step for a rank: no piece is left to take."""

    loss: float  # of this step's finished pieces, or of the last step that has some
    compute_s: tuple[float, ...]  # per rank, the median of its last few pieces; 0: none yet
    pieces: tuple[int, ...]  # computed by each rank
    leave: bool  # all ranks were told to leave: this is the last step of the generation


class Clocks:
    """The pieces of the steps from ``first`` on. A step's pieces are taken only when those of all steps more than
    ``staleness`` before it are done: parameters read for it hold all their updates."""

    def __init__(self, ranks: int, staleness: int, first: int) -> None:
        self._ranks, self._staleness, self._first = ranks, staleness, first
        self.complete = first  # all steps before this one are done
        self._given: dict[int, int] = {}
        self._done: dict[int, list[tuple[float, float]]] = {}  # (part of the mean loss, part of the batch)
        self._losses: list[float] = []  # of the complete steps
        self._times: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(ranks)]
        self._pieces = [0] * ranks
        self._leaving: set[int] = set()
        self._furthest_step = first  # the furthest step that any rank has entered
        self._last_step: int | None = None  # the step after which all leave
        self._loss = 0.0

    @property
    def finished(self) -> int:
        return sum(self._pieces)

    def take(self, rank: int, step: int, *, leaving: bool) -> Turn:
        """Give this rank a piece of this step."""
        if leaving and rank not in self._leaving:
            self._leaving.add(rank)
            if len(self._leaving) == self._ranks:
                self._last_step = self._furthest_step
        if self.complete < step - self._staleness:
            return Turn(wait=True, finished=self.finished, complete=self.complete)
        given = self._given.get(step, 0)
        if step < self.complete or given >= self._ranks:
            return Turn(finished=self.finished, complete=self.complete)
        self._given[step] = given + 1
        return Turn(piece=given, finished=self.finished, complete=self.complete)

    def finish_piece(self, rank: int, step: int, loss: float, weight: float, compute_s: float) -> None:
        """The servers hold the gradients of a piece of this rank."""
        self._done.setdefault(step, []).append((loss, weight))
        self._pieces[rank] += 1
        self._times[rank].append(compute_s)
        while len(self._done.get(self.complete, ())) == self._ranks:
            self._losses.append(sum(part for part, _ in self._done.pop(self.complete)))
            self._given.pop(self.complete)
            self.complete += 1

    def close(self, step: int) -> Closed:
        """A rank is through with this step and enters the next one, unless all leave here."""
        leave = self._last_step is not None and step >= self._last_step
        if not leave:
            self._furthest_step = max(self._furthest_step, step + 1)
        self._loss = self._loss_of(step)
        times = tuple(median(times) if times else 0.0 for times in self._times)
        return Closed(self._loss, times, tuple(self._pieces), leave)

    def _loss_of(self, step: int) -> float:
        if step < self.complete:
            return self._losses[step - self._first]
        known = self._done.get(step, ())
        weight = sum(weight for _, weight in known)
        return sum(part for part, _ in known) / weight if weight else self._loss

    def losses(self, after: int) -> Sequence[float]:
        """Losses of all complete steps from this one on, each over its whole batch."""
        return self._losses[max(0, after - self._first) :]
