"""The context of a custom loop: its rank, its part of the data, reports and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, Subset

from fairlead.errors import InvalidSpec
from fairlead.training.batch_ranges import rank_range
from fairlead.training.seeds import epoch_order

State = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Tensors, numbers, strings, lists and maps of them; or a function that returns them when a snapshot is taken."""

_PLAIN = (torch.Tensor, int, float, bool, str, bytes, type(None))


class LoopBackend(Protocol):
    """What a context calls: the loop of one generation."""

    rank: int
    size: int
    generation: int
    device: torch.device
    seed: int

    def report(self, step: int, of: int, epoch: int, values: dict[str, float]) -> None: ...
    def snapshot(self, state: State) -> None: ...
    def restored(self) -> dict[str, Any] | None: ...


class Context:
    """Passed to the custom loop, a new one in every generation.

    When the gang changes, the loop ends within ``report`` or ``snapshot`` and is called again by the workers of the
    next generation. With more than one worker ``torch.distributed`` is initialised: use DDP, FSDP or plain collectives.
    """

    def __init__(self, backend: LoopBackend) -> None:
        self._backend = backend

    @property
    def rank(self) -> int:
        return self._backend.rank

    @property
    def world(self) -> int:
        """The number of workers in this generation."""
        return self._backend.size

    @property
    def device(self) -> torch.device:
        return self._backend.device

    @property
    def generation(self) -> int:
        return self._backend.generation

    @property
    def seed(self) -> int:
        """The same on every worker and in every generation."""
        return self._backend.seed

    def shard(self, data: Any, *, epoch: int | None = None) -> Any:
        """This worker's part of the data; the parts of all workers are the whole, each sample once.

        A tuple is taken as columns of one length. With ``epoch`` the samples are shuffled first, in the same order on
        every worker and for any number of workers.
        """
        count = _length(data)
        mine = rank_range(count, (1.0,) * self.world, self.rank)
        if epoch is None:
            index = torch.arange(mine.start, mine.stop)
        else:
            index = epoch_order(self.seed, epoch, count)[mine.start : mine.stop]
        return tuple(_select(column, index) for column in data) if isinstance(data, tuple) else _select(data, index)

    def report(self, *, step: int, loss: float, of: int = 0, epoch: int = 0, **metrics: float) -> None:
        """Report progress; all workers call it alike after each step (of ``of``).

        Loss and metrics are averaged over the workers. A generation may end here.
        """
        values = {name: _number(value) for name, value in {"loss": loss, **metrics}.items()}
        self._backend.report(step, of, epoch, values)

    def snapshot(self, state: State) -> None:
        """Offer the state after the step that was reported last; all workers call it alike.

        It may be called after every step: the state is copied only when a snapshot is due or the generation ends.
        """
        self._backend.snapshot(state)

    def restore(self) -> dict[str, Any] | None:
        """The newest state that any worker offered in any generation; None at the very start."""
        return self._backend.restored()


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def checked_state(state: Any, where: str = "state") -> Any:
    """The state as it is stored: tensors, and new maps and lists; refuses any other value and names its place."""
    if isinstance(state, _PLAIN):
        return state.detach() if isinstance(state, torch.Tensor) else state
    if isinstance(state, Mapping):
        return {key: checked_state(value, f"{where}[{key!r}]") for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(checked_state(value, f"{where}[{place}]") for place, value in enumerate(state))
    raise InvalidSpec(
        f"{type(state).__name__} cannot be stored in a snapshot", field=where,
        fix="pass tensors, numbers, strings, lists and maps: state_dict() rather than the object",
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


def _select(column: Any, index: torch.Tensor) -> Any:
    if isinstance(column, torch.Tensor):
        return column[index.to(column.device)]
    if hasattr(column, "shape"):
        return column[index.numpy()]
    if isinstance(column, Dataset):
        return Subset(column, index.tolist())
    return [column[place] for place in index.tolist()]
