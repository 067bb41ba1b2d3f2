"""What a user's own training loop is given: who it is, its part of the data, and where to report and keep its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, Subset

from fairlead.errors import InvalidSpec
from fairlead.training.batch_ranges import part
from fairlead.training.seeds import epoch_order

State = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Tensors, numbers, texts, lists and maps of them; or a function that gives them when they are wanted."""

_PLAIN = (torch.Tensor, int, float, bool, str, bytes, type(None))


class LoopBackend(Protocol):
    """What stands behind a context: the loop of one generation."""

    rank: int
    size: int
    generation: int
    device: torch.device
    seed: int

    def report(self, step: int, of: int, epoch: int, values: dict[str, float]) -> None: ...
    def snapshot(self, state: State) -> None: ...
    def restored(self) -> dict[str, Any] | None: ...


class Context:
    """Handed to the loop, anew in every generation: when the gang changes, the loop ends within ``report`` or
    ``snapshot`` and is called again, in as many workers as there are then.

    With more than one worker ``torch.distributed`` is ready for use: DDP, FSDP or plain collectives.
    """

    def __init__(self, behind: LoopBackend) -> None:
        self._behind = behind

    @property
    def rank(self) -> int:
        return self._behind.rank

    @property
    def world(self) -> int:
        """How many workers there are in this generation."""
        return self._behind.size

    @property
    def device(self) -> torch.device:
        return self._behind.device

    @property
    def generation(self) -> int:
        return self._behind.generation

    @property
    def seed(self) -> int:
        """The same on every worker and in every generation."""
        return self._behind.seed

    def shard(self, data: Any, *, epoch: int | None = None) -> Any:
        """This worker's part of the data; the parts of all workers are the whole, each sample once.

        A tuple is taken as columns of one length. With ``epoch`` the samples are shuffled first, in the same order on
        every worker and for any number of them.
        """
        count = _length(data)
        mine = part(count, (1.0,) * self.world, self.rank)
        if epoch is None:
            index = torch.arange(mine.start, mine.stop)
        else:
            index = epoch_order(self.seed, epoch, count)[mine.start : mine.stop]
        return tuple(_taken(column, index) for column in data) if isinstance(data, tuple) else _taken(data, index)

    def report(self, *, step: int, loss: float, of: int = 0, epoch: int = 0, **metrics: float) -> None:
        """Say how far the training is; called alike by all workers, as each step (of ``of``) is done.

        Loss and metrics are averaged over the workers. This is where a generation may end.
        """
        values = {name: _number(value) for name, value in {"loss": loss, **metrics}.items()}
        self._behind.report(step, of, epoch, values)

    def snapshot(self, state: State) -> None:
        """Offer the state after the step that was reported last; called alike by all workers.

        It may be called after every step: it is copied only when a snapshot is due or the generation ends.
        """
        self._behind.snapshot(state)

    def restore(self) -> dict[str, Any] | None:
        """The newest state that was offered, by any worker in any generation; None at the very beginning."""
        return self._behind.restored()


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def plain(state: Any, where: str = "state") -> Any:
    """The state as it is kept: tensors as they are, maps and lists anew; anything else is refused by its place."""
    if isinstance(state, _PLAIN):
        return state.detach() if isinstance(state, torch.Tensor) else state
    if isinstance(state, Mapping):
        return {key: plain(value, f"{where}[{key!r}]") for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(plain(value, f"{where}[{place}]") for place, value in enumerate(state))
    raise InvalidSpec(
        f"{type(state).__name__} cannot be kept", field=where,
        fix="pass tensors, numbers, texts, lists and maps: state_dict() rather than the object",
    )  # fmt: skip


def _length(data: Any) -> int:
    if isinstance(data, tuple):
        lengths = {len(column) for column in data}
        if len(lengths) != 1:
            raise InvalidSpec(f"columns have different lengths {sorted(lengths)}", field="data")
        return lengths.pop()
    if not hasattr(data, "__len__"):
        raise InvalidSpec(
            f"{type(data).__name__} has no length", field="data", fix="pass a tensor, an array, a list, a tuple of "
            "columns or a Dataset with a length",
        )  # fmt: skip
    return len(data)


def _taken(column: Any, index: torch.Tensor) -> Any:
    if isinstance(column, torch.Tensor):
        return column[index.to(column.device)]
    if hasattr(column, "shape"):
        return column[index.numpy()]
    if isinstance(column, Dataset):
        return Subset(column, index.tolist())
    return [column[place] for place in index.tolist()]
