"""What a worker tells of its progress: often enough to be seen alive, seldom enough to cost nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from fairlead import wire
from fairlead.training.group import Group
from fairlead.training.parallel.batch_balance import Balance

INTERVAL_S = 0.2
CAREFUL_S = 2.0  # ten times as long as what is not told of a worker that dies


class ReportReceiver(Protocol):
    """Who is told."""

    def send(self, message: msgspec.Struct) -> None: ...


class Past(Protocol):
    """The steps that were taken, in rows."""

    def __len__(self) -> int: ...
    def recent(self) -> int: ...
    def rows(self, after: int) -> Iterator[dict[str, float]]: ...


class Course(Protocol):
    """What is told of."""

    @property
    def history(self) -> Past: ...
    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def epoch_is_open(self) -> bool: ...


class Reporter:
    """Progress of one generation: a sign of life from every rank, the history from rank 0, each step once."""

    def __init__(self, channel: ReportReceiver, session: Course, group: Group, balance: Balance | None = None) -> None:
        self._channel, self._session, self._group, self._balance = channel, session, group, balance
        self._reported = session.history.recent()
        self._careful_from, self._careful_until_s = group.careful_from, 0.0
        self._last_s = 0.0  # so that the first step is reported at once
        self._begun_s, self._begun_step = time.monotonic(), session.step
        self._samples, self._step_s, self._samples_per_s = 0, 0.0, 0.0

    def stepped(self, samples: int) -> None:
        """A step of the whole gang is done."""
        self._samples += samples
        self.alive()

    def alive(self) -> None:
        now = time.monotonic()
        if now - self._last_s >= INTERVAL_S or self._careful(now):
            self._send(now)

    def _careful(self, now: float) -> bool:
        """Whether this step is told at once: a gang that died hereabouts may do so again, at the same step."""
        step = self._session.step
        if self._careful_from is None or step < self._careful_from or step <= self._begun_step:
            return False
        self._careful_until_s = self._careful_until_s or now + CAREFUL_S
        return now < self._careful_until_s

    def flush(self) -> None:
        """Say what has not been said yet, before the generation ends or the worker does."""
        if self._group.rank == 0 and self._reported < len(self._session.history):
            self._send(time.monotonic())

    def _send(self, now: float) -> None:
        session = self._session
        steps, elapsed = session.step - self._begun_step, now - self._begun_s
        if steps > 0:
            self._step_s, self._samples_per_s = elapsed / steps, self._samples / elapsed
            self._begun_s, self._begun_step, self._samples = now, session.step, 0
        self._last_s = now
        rows: list[dict[str, float]] = []
        if self._group.rank == 0:
            rows = list(session.history.rows(self._reported))
            self._reported = len(session.history) - self._held_back()
        self._channel.send(
            wire.Progress(
                generation=self._group.generation, step=session.step, total_steps=session.total_steps,
                epoch=max(0, session.step - 1) // session.steps_per_epoch, samples_per_s=self._samples_per_s,
                step_s=self._step_s, steps=rows[: len(rows) - self._held_back()], **self._balanced(),
            )
        )  # fmt: skip

    def _balanced(self) -> dict[str, Any]:
        """How the work lies on the ranks; nothing while it has not been measured."""
        window = None if self._balance is None else self._balance.last
        if window is None or self._balance is None:
            return {}
        rank = self._group.rank
        return {
            "compute_s": window.compute_s[rank], "spread": window.spread, "share": self._balance.share(rank),
            "straggler": rank in window.stragglers, "slow_s": self._balance.slow_s[rank],
        }  # fmt: skip

    def _held_back(self) -> int:
        """The last step of an epoch is told only with its metrics, so that it is told once."""
        return int(self._session.epoch_is_open)
