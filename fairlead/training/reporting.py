"""Reports a worker's progress: often enough to show that it is alive, seldom enough to cost nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from fairlead import wire
from fairlead.training.group import Group
from fairlead.training.parallel.batch_balance import Balance

INTERVAL_S = 0.2
CAREFUL_S = 2.0  # ten times the interval, which is the most that a dying worker leaves unreported


class ReportReceiver(Protocol):
    """The connection that reports go to."""

    def send(self, message: msgspec.Struct) -> None: ...


class ReportedHistory(Protocol):
    """The steps that were taken, as rows."""

    def __len__(self) -> int: ...
    def repeat_from(self) -> int: ...
    def rows(self, after: int) -> Iterator[dict[str, float]]: ...


class ReportedRun(Protocol):
    """A session, as far as reports need it."""

    @property
    def history(self) -> ReportedHistory: ...
    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def evaluation_due(self) -> bool: ...


class Reporter:
    """Reports the progress of one generation: signs of life from every rank, each step once from rank 0."""

    def __init__(
        self, channel: ReportReceiver, session: ReportedRun, group: Group, balance: Balance | None = None
    ) -> None:
        self._channel, self._session, self._group, self._balance = channel, session, group, balance
        self._reported = session.history.repeat_from()
        self._careful_from, self._careful_until_s = group.careful_from, 0.0
        self._last_s = 0.0  # so that the first step is reported at once
        self._begun_s, self._begun_step = time.monotonic(), session.step
        self._samples, self._step_s, self._samples_per_s = 0, 0.0, 0.0

    def record_step(self, samples: int) -> None:
        """Call after each step of the gang."""
        self._samples += samples
        self.report_if_due()

    def report_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last_s >= INTERVAL_S or self._reports_each_step(now):
            self._send(now)

    def _reports_each_step(self, now: float) -> bool:
        """Whether to report every step at once: a gang that died near this step may die there again."""
        step = self._session.step
        if self._careful_from is None or step < self._careful_from or step <= self._begun_step:
            return False
        self._careful_until_s = self._careful_until_s or now + CAREFUL_S
        return now < self._careful_until_s

    def flush(self) -> None:
        """Report the remaining steps before the generation or the worker ends."""
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
                step_s=self._step_s, steps=rows[: len(rows) - self._held_back()], **self._balance_figures(),
            )
        )  # fmt: skip

    def _balance_figures(self) -> dict[str, Any]:
        """Compute time, share and straggler state of this rank; empty before they were measured."""
        window = None if self._balance is None else self._balance.last
        if window is None or self._balance is None:
            return {}
        rank = self._group.rank
        return {
            "compute_s": window.compute_s[rank], "spread": window.spread, "share": self._balance.share(rank),
            "straggler": rank in window.stragglers, "slow_s": self._balance.slow_s[rank],
        }  # fmt: skip

    def _held_back(self) -> int:
        """Hold back the last step of an epoch until its metrics are there, so that it is reported once."""
        return int(self._session.evaluation_due)
