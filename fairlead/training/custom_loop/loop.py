"""One generation of a loop that the user wrote: called, interrupted where it reports, and called again in the next."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from fairlead import wire
from fairlead.errors import TrainingFailed
from fairlead.training.control_messages import ControlConnection, SnapshotStore, listen
from fairlead.training.custom_loop.context import Context, State, plain
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.group import Group, PeerLost, in_words, is_loss
from fairlead.training.loop import LoopEnd, Outcome
from fairlead.training.reporting import Reporter
from fairlead.training.seeds import digest, seed_everything
from fairlead.training.step_flags import not_a_number

STATE_WITHIN_S = 8.0
"""How long a loop that is told to leave may go on until it offers its state again."""

_REPORTS, _RETURNED = 1.0, 2.0


class _Interrupted(BaseException):
    """Ends the user's function; no ``except Exception`` of its own holds it up."""

    def __init__(self, lost: PeerLost | None = None) -> None:
        super().__init__()
        self.lost = lost  # None: everybody leaves


class CustomLoop:
    """What stands behind the context in one generation. All ranks come to ``report`` alike; there they agree."""

    shares: tuple[float, ...] = ()  # who takes which part of a batch is the loop's own business

    def __init__(
        self, session: CustomSession, group: Group, channel: ControlConnection, snapshots: SnapshotStore
    ) -> None:
        self._session, self._group, self._channel, self._snapshots = session, group, channel, snapshots
        self.rank, self.size, self.generation = group.rank, group.size, group.generation
        self.device, self.seed = session.device, session.seed
        session.begin()
        self.reporter = Reporter(channel, session, group)
        self.leave: wire.Leave | None = None
        self._leaving_s: float | None = None  # since when all of them know that they leave
        self._ends = self._due = self._offered = False

    def run(self) -> Outcome:
        """Call the loop; returns when it has, or when all leave."""
        session = self._session
        seed_everything(session.seed)
        try:
            self._connect()
            session.returned = session.loop(Context(self))
            self._meet(_RETURNED, {})
            return Outcome(LoopEnd.FINISHED)
        except _Interrupted as interrupted:
            if interrupted.lost is not None:
                raise interrupted.lost from None
            if not session.live:
                session.undo_half_step()  # it offered nothing before it had to go
            return Outcome(LoopEnd.LEFT, self.leave)
        except PeerLost:
            raise
        except Exception as error:
            if self.size > 1 and is_loss(error):  # in whatever the user's own library made of it
                raise PeerLost(in_words(error)) from error
            error.add_note(f"rank {self.rank}, step {session.step + 1}")
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def _connect(self) -> None:
        """torch's own group, for whatever the loop does with it."""
        if self.size > 1:
            dist.init_process_group(
                "nccl" if self.device.type == "cuda" else "gloo", store=self._group.store("torch"), rank=self.rank,
                world_size=self.size, timeout=timedelta(seconds=self._group.silence_s),
            )  # fmt: skip

    # ------------------------------------------------------------ for the context

    def report(self, step: int, of: int, epoch: int, values: dict[str, float]) -> None:
        session = self._session
        if step <= session.step:
            raise TrainingFailed(f"step {step} was reported after step {session.step}", field="report")
        if self._ends:
            raise _Interrupted  # nothing was offered since: the next generation begins from the last snapshot
        before, session.step, session.total_steps = session.step, step, of
        try:
            self.leave = listen(self._channel, self._group) or self.leave
            means = self._meet(_REPORTS, values)
        except PeerLost as lost:
            session.step = before
            raise _Interrupted(lost) from None
        session.history.add({"step": float(step), "epoch": float(epoch), "time_s": time.time()} | means)
        self.reporter.stepped((step - before) * session.training.batch_size)

    def snapshot(self, state: State) -> None:
        session, self._offered = self._session, True
        if self._leaving_s is None and not self._due:
            return
        offered = plain(state() if callable(state) else state)
        if self._leaving_s is not None:
            session.keep(_copied(offered))
            raise _Interrupted
        self._due = False
        if self.rank == 0:
            self._snapshots.write(session.step, session.state(offered, session.step))

    def restored(self) -> dict[str, Any] | None:
        """A copy, for the loop may change what it is given."""
        kept = self._session.kept
        return None if kept is None else _copied(kept)

    # ------------------------------------------------------------ agreeing

    def _meet(self, what: float, values: dict[str, float]) -> dict[str, float]:
        """Everybody is at the same point: their values averaged, and what is to come agreed on."""
        session, first = self._session, self.rank == 0
        late = self._leaving_s is not None and time.monotonic() - self._leaving_s > STATE_WITHIN_S
        names = sorted(values)
        word = [what, float(session.step), float(digest(",".join(names)) >> 20), float(self.leave is not None)]
        word += [float(first and self._snapshots.due()), float(first and late)]
        heard = self._group.gather(torch.tensor(word, dtype=torch.float64, device=self._group.device)).tolist()
        self._check_alike(heard)
        if all(row[3] for row in heard) and self._leaving_s is None:
            self._leaving_s = time.monotonic()
            self._ends = not self._offered
        self._due, self._ends = bool(heard[0][4]), self._ends or bool(heard[0][5])
        return self._means(names, values) if names else {}

    def _means(self, names: list[str], values: dict[str, float]) -> dict[str, float]:
        own = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self._group.device)
        rows = self._group.gather(own)
        for rank, loss in enumerate(rows[:, names.index("loss")].tolist()):
            if not math.isfinite(loss):
                raise not_a_number(loss, self._session.step - 1, rank)
        return dict(zip(names, rows.mean(dim=0).tolist(), strict=True))

    def _check_alike(self, heard: list[list[float]]) -> None:
        """Ranks that came with something else would wait for each other for ever; all raise the same."""
        for rank, row in enumerate(heard):
            if row[:3] != heard[0][:3]:
                self._refuse(rank, row, heard[0])

    def _refuse(self, rank: int, row: list[float], first: list[float]) -> NoReturn:
        def doing(said: list[float]) -> str:
            return "has returned" if said[0] == _RETURNED else f"reports step {int(said[1])}"

        other = " with other metrics" if row[:2] == first[:2] else ""
        raise TrainingFailed(
            f"rank {rank} {doing(row)}{other} while rank 0 {doing(first)}", field="report",
            fix="let all ranks report the same steps with the same metrics",
        )  # fmt: skip


def _copied(state: Any) -> Any:
    """With tensors of its own: the loop's go on changing."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value) for value in state)
    return state
