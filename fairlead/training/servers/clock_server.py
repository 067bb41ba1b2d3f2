"""The clock server: one rank keeps the clocks, answers all ranks, and tells all of them what ends the generation."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fairlead.training.group import PATIENCE_S
from fairlead.training.servers.clocks import Clocks, Turn
from fairlead.training.servers.messages import (
    Answer,
    AskFailure,
    ClockRequest,
    Done,
    Fail,
    Lost,
    Ok,
    Settle,
    Settled,
    Take,
)

FAILURE_LINGER_S = 4.0
"""How long the clock server stays after a failure, so that all ranks get it from there."""


class ClockServer:
    """Answers one request at a time, from any thread."""

    def __init__(self, clocks: Clocks, ranks: int, lost: Callable[[], str | None]) -> None:
        self._clocks, self._ranks, self._lost = clocks, ranks, lost
        self._changed = threading.Condition()
        self._failure: Fail | None = None
        self._informed: set[int] = set()

    def answer(self, rank: int, asked: ClockRequest) -> Answer:
        """A rank that has to wait is answered after a moment, so that it can check for abandonment and ask again."""
        with self._changed:
            if isinstance(asked, Take) and asked.done is not None:
                self._note(rank, asked.done)
            found = self._answer(rank, asked)
            if _waits(found):
                self._changed.wait(PATIENCE_S)
                found = self._answer(rank, asked)
            return found

    def _note(self, rank: int, done: Done) -> None:
        self._clocks.finish_piece(rank, done.step, done.loss, done.weight, done.compute_s)
        self._changed.notify_all()

    def wait_until_all_know(self) -> None:
        """Stay until every rank has got the failure, or for FAILURE_LINGER_S."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._informed) == self._ranks, FAILURE_LINGER_S)

    def _answer(self, rank: int, asked: ClockRequest) -> Answer:
        if isinstance(asked, Fail) and self._failure is None:
            self._failure = asked
        if self._failure is not None:
            self._informed.add(rank)
            self._changed.notify_all()
            return self._failure
        lost = self._lost()
        if lost is not None:
            return Lost(lost)
        return self._answer_clock(rank, asked)

    def _answer_clock(self, rank: int, asked: ClockRequest) -> Answer:
        clocks = self._clocks
        match asked:
            case Take(step=step, leaving=leaving):
                turn = clocks.take(rank, step, leaving=leaving)
                return clocks.close(step) if turn.piece is None and not turn.wait else turn
            case Settle(step=step, after=after):
                losses = list(clocks.losses(after))[: step + 1 - after] if clocks.complete > step else None
                return Settled(losses, clocks.finished)
            case Fail() | AskFailure():
                pass
        return Ok()


def _waits(answer: Answer) -> bool:
    return (isinstance(answer, Turn) and answer.wait) or (isinstance(answer, Settled) and answer.losses is None)
