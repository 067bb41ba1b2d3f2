"""One generation of a custom loop: calls it, interrupts it where it reports; the next generation calls it again."""

from __future__ import annotations

import math
import time
from typing import Any, NoReturn

import torch

from fairlead import wire
from fairlead.errors import TrainingFailed
from fairlead.training.control_messages import ControlConnection, SnapshotStore, read_messages
from fairlead.training.custom_loop.context import Context, State, checked_state
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.group import Group, PeerLost, explain_error, is_peer_loss
from fairlead.training.loop import LoopEnd, Outcome
from fairlead.training.reporting import Reporter
from fairlead.training.seeds import digest, seed_everything
from fairlead.training.step_flags import non_finite_loss

STATE_WITHIN_S = 8.0
"""How long a loop that is told to leave may run until it offers its state again."""

_REPORTS, _RETURNED = 1.0, 2.0


class _Interrupted(BaseException):
    """Ends the user's function; its own ``except Exception`` does not catch it."""

    def __init__(self, lost: PeerLost | None = None) -> None:
        super().__init__()
        self.lost = lost  # None: all ranks leave


class CustomLoop:
    """The backend of the context in one generation. All ranks reach ``report`` alike and agree there."""

    shares: tuple[float, ...] = ()  # the custom loop divides its batches itself

    def __init__(
        self, session: CustomSession, group: Group, channel: ControlConnection, snapshots: SnapshotStore
    ) -> None:
        self._session, self._group, self._channel, self._snapshots = session, group, channel, snapshots
        self.rank, self.size, self.generation = group.rank, group.size, group.generation
        self.device, self.seed = session.device, session.seed
        session.begin()
        self.reporter = Reporter(channel, session, group)
        self.leave: wire.Leave | None = None
        self._leaving_s: float | None = None  # since when all ranks know that they leave
        self._ends = self._due = self._offered = False

    def run(self) -> Outcome:
        """Call the user's loop until it returns or all ranks leave."""
        session = self._session
        seed_everything(session.seed)
        try:
            self._connect()
            session.returned = session.loop(Context(self))
            self._synchronise(_RETURNED, {})
            return Outcome(LoopEnd.FINISHED)
        except _Interrupted as interrupted:
            if interrupted.lost is not None:
                raise interrupted.lost from None
            if not session.live:
                session.roll_back_step()  # it offered no state before it had to leave
            return Outcome(LoopEnd.LEFT, self.leave)
        except PeerLost:
            raise
        except Exception as error:
            if self.size > 1 and is_peer_loss(error):  # wrapped by whatever library the user has
                raise PeerLost(explain_error(error)) from error
            error.add_note(f"rank {self.rank}, step {session.step + 1}")
            raise
        finally:
            self._group.close_torch()

    def _connect(self) -> None:
        """Initialise torch's global process group for the loop's own use."""
        if self.size > 1:
            self._group.init_torch()

    # ------------------------------------------------------------ for the context

    def report(self, step: int, of: int, epoch: int, values: dict[str, float]) -> None:
        session = self._session
        if step <= session.step:
            raise TrainingFailed(f"step {step} was reported after step {session.step}", field="report")
        if self._ends:
            raise _Interrupted  # no state was offered since: the next generation starts from the last snapshot
        before, session.step, session.total_steps = session.step, step, of
        try:
            self.leave = read_messages(self._channel, self._group) or self.leave
            means = self._synchronise(_REPORTS, values)
        except PeerLost as lost:
            session.step = before
            raise _Interrupted(lost) from None
        session.history.add({"step": float(step), "epoch": float(epoch), "time_s": time.time()} | means)
        self.reporter.record_step((step - before) * session.training.batch_size)

    def snapshot(self, state: State) -> None:
        session, self._offered = self._session, True
        if self._leaving_s is None and not self._due:
            return
        offered = checked_state(state() if callable(state) else state)
        if self._leaving_s is not None:
            session.keep(_copied(offered))
            raise _Interrupted
        self._due = False
        if self.rank == 0:
            self._snapshots.write(session.step, session.state(offered, session.step))

    def restored(self) -> dict[str, Any] | None:
        """A copy, because the loop may change it."""
        kept = self._session.kept
        return None if kept is None else _copied(kept)

    # ------------------------------------------------------------ agreement

    def _synchronise(self, what: float, values: dict[str, float]) -> dict[str, float]:
        """All ranks are at the same point: average their values and agree on leaving and snapshots."""
        session, first = self._session, self.rank == 0
        late = self._leaving_s is not None and time.monotonic() - self._leaving_s > STATE_WITHIN_S
        names = sorted(values)
        word = [what, float(session.step), float(digest(",".join(names)) >> 20), float(self.leave is not None)]
        word += [float(first and self._snapshots.due()), float(first and late)]
        rows = self._group.gather(torch.tensor(word, dtype=torch.float64, device=self._group.device)).tolist()
        self._check_alike(rows)
        if all(row[3] for row in rows) and self._leaving_s is None:
            self._leaving_s = time.monotonic()
            self._ends = not self._offered
        self._due, self._ends = bool(rows[0][4]), self._ends or bool(rows[0][5])
        return self._means(names, values) if names else {}

    def _means(self, names: list[str], values: dict[str, float]) -> dict[str, float]:
        own = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self._group.device)
        rows = self._group.gather(own)
        for rank, loss in enumerate(rows[:, names.index("loss")].tolist()):
            if not math.isfinite(loss):
                raise non_finite_loss(loss, self._session.step - 1, rank)
        return dict(zip(names, rows.mean(dim=0).tolist(), strict=True))

    def _check_alike(self, rows: list[list[float]]) -> None:
        """Raise on every rank if one is at another point: they would wait for each other for ever."""
        for rank, row in enumerate(rows):
            if row[:3] != rows[0][:3]:
                self._refuse(rank, row, rows[0])

    def _refuse(self, rank: int, row: list[float], first: list[float]) -> NoReturn:
        def doing(row: list[float]) -> str:
            return "has returned" if row[0] == _RETURNED else f"reports step {int(row[1])}"

        other = " with other metrics" if row[:2] == first[:2] else ""
        raise TrainingFailed(
            f"rank {rank} {doing(row)}{other} while rank 0 {doing(first)}", field="report",
            fix="let all ranks report the same steps with the same metrics",
        )  # fmt: skip


def _copied(state: Any) -> Any:
    """A deep copy: the loop goes on changing its tensors."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value) for value in state)
    return state
