"""Reads samples by index: from tensors in memory, or from a torch Dataset that makes each one when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, default_collate

from fairlead.errors import InvalidSpec
from fairlead.training.seeds import mix, seed_everything

Batch = tuple[torch.Tensor, ...]
"""The columns of some samples: inputs, then the target."""


class Samples(Protocol):
    """The data that training reads from."""

    def __len__(self) -> int: ...

    def take(self, index: torch.Tensor, draw: int) -> Any:
        """The columns of these samples; ``draw`` seeds the random numbers of a data set that draws some."""


class Resident:
    """Tensors in memory: a batch is one index_select per column (2-4 times as fast as a DataLoader, measured).

    With ``channels_last`` images are stored with their channels innermost, which makes convolutions on a CPU a quarter
    faster (measured); shape and values stay the same.
    """

    def __init__(
        self, columns: Sequence[torch.Tensor], *, channels_last: bool = False, source: Mapping[str, Any] | None = None
    ) -> None:
        self.source = source  # name and version of the data set, if it has one
        self._columns = [_Column(column, channels_last and _is_image(column)) for column in columns]

    def __len__(self) -> int:
        return len(self._columns[0].rows)

    @property
    def images(self) -> bool:
        """Whether channels_last would change a column."""
        return any(column.order is None and _is_image(column.rows) for column in self._columns)

    def with_channels_last(self) -> Resident:
        return Resident([column.whole() for column in self._columns], channels_last=True, source=self.source)

    def take(self, index: torch.Tensor, draw: int) -> Batch:
        return tuple(column.take(index) for column in self._columns)


class _Column:
    """A column stored so that each sample is contiguous, and returned in its own shape."""

    def __init__(self, column: torch.Tensor, last: bool) -> None:
        last = last or (column.dim() == 4 and not column.is_contiguous() and _is_last(column))
        self.order = (0, 3, 1, 2) if last else None
        self.rows = column.permute(0, 2, 3, 1).contiguous() if last else column.contiguous()

    def take(self, index: torch.Tensor) -> torch.Tensor:
        rows = self.rows.index_select(0, index)
        return rows if self.order is None else rows.permute(self.order)

    def whole(self) -> torch.Tensor:
        return self.rows if self.order is None else self.rows.permute(self.order)


def _is_image(column: torch.Tensor) -> bool:
    return column.dim() == 4 and column.is_floating_point()


def _is_last(column: torch.Tensor) -> bool:
    return column.is_contiguous(memory_format=torch.channels_last)


class GeneratedSamples:
    """A data set that makes each sample when it is read, with a seed of its own: any worker makes the same one."""

    def __init__(self, data: Dataset[Any], name: str, device: torch.device) -> None:
        self._data, self._name, self._device = data, name, device

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]

    def take(self, index: torch.Tensor, draw: int) -> Batch:
        rows = [self._row(position, draw) for position in index.tolist()]
        return tuple(column.to(self._device) for column in default_collate(rows))

    def _row(self, position: int, draw: int) -> tuple[Any, ...]:
        seed_everything(mix(draw, position))
        row = self._data[position]
        if not isinstance(row, tuple | list) or len(row) < 2:
            raise InvalidSpec(
                f"sample {position} is {type(row).__name__}, not a tuple (input, ..., target)", field=self._name,
                fix="let the data set's __getitem__ return (input, target)",
            )  # fmt: skip
        return tuple(row)
