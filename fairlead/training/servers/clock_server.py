"""The keeper of the clocks: one rank answers all of them, and tells everybody what ends the generation."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fairlead.training.group import PATIENCE_S
from fairlead.training.servers.clocks import Clocks, Turn
from fairlead.training.servers.messages import (
    Answer,
    Done,
    Fail,
    Keeping,
    Lost,
    Settle,
    Settled,
    Take,
    Well,
    Why,
)

FAREWELL_S = 4.0
"""How long the keeper stays after a failure, so that all hear of it from itself."""


class ClockServer:
    """Answers one question at a time, from whatever thread it comes."""

    def __init__(self, clocks: Clocks, ranks: int, lost: Callable[[], str | None]) -> None:
        self._clocks, self._ranks, self._lost = clocks, ranks, lost
        self._ticked = threading.Condition()
        self._failure: Fail | None = None
        self._told: set[int] = set()

    def answer(self, rank: int, asked: Keeping) -> Answer:
        """Who has to wait is answered after a moment, so that it can look around and ask again."""
        with self._ticked:
            if isinstance(asked, Take) and asked.done is not None:
                self._note(rank, asked.done)
            found = self._answer(rank, asked)
            if _waits(found):
                self._ticked.wait(PATIENCE_S)
                found = self._answer(rank, asked)
            return found

    def _note(self, rank: int, done: Done) -> None:
        self._clocks.done(rank, done.step, done.loss, done.weight, done.compute_s)
        self._ticked.notify_all()

    def farewell(self) -> None:
        """Stay until everybody has heard of the failure, or for a moment."""
        with self._ticked:
            self._ticked.wait_for(lambda: len(self._told) == self._ranks, FAREWELL_S)

    def _answer(self, rank: int, asked: Keeping) -> Answer:
        if isinstance(asked, Fail) and self._failure is None:
            self._failure = asked
        if self._failure is not None:
            self._told.add(rank)
            self._ticked.notify_all()
            return self._failure
        lost = self._lost()
        if lost is not None:
            return Lost(lost)
        return self._tick(rank, asked)

    def _tick(self, rank: int, asked: Keeping) -> Answer:
        clocks = self._clocks
        match asked:
            case Take(step=step, leaving=leaving):
                turn = clocks.take(rank, step, leaving=leaving)
                return clocks.close(step) if turn.piece is None and not turn.wait else turn
            case Settle(step=step, after=after):
                losses = list(clocks.losses(after))[: step + 1 - after] if clocks.complete > step else None
                return Settled(losses, clocks.finished)
            case Fail() | Why():
                pass
        return Well()


def _waits(answer: Answer) -> bool:
    return (isinstance(answer, Turn) and answer.wait) or (isinstance(answer, Settled) and answer.losses is None)
