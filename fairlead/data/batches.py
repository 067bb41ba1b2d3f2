"""Batches for a worker, gathered from the mapped blocks of a data set into buffers that are used again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fairlead.data.partitioning import partition
from fairlead.errors import InvalidSpec

Columns = Mapping[str, torch.Tensor]


class Batches:
    """The samples of a data set, so many at a time, as tuples of tensors in the order of ``columns``.

    A batch is one ``index_select`` a column, straight from the grid into a buffer: as fast as from a tensor of one's
    own. It is valid until the next one is asked for; ``clone()`` what shall stay. ``order`` says what comes when
    (a permutation for each seed and epoch, if nothing is said); ``start`` is how many of them were seen already.
    Of a data set in several blocks, the rows of a batch come block by block.
    """

    def __init__(
        self,
        blocks: Sequence[Columns],
        batch_size: int,
        *,
        columns: Sequence[str] = (),
        order: Any = None,
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
        drop_last: bool = False,
        trim: Mapping[str, str] | None = None,
    ) -> None:
        if batch_size < 1:
            raise InvalidSpec(f"{batch_size} is too small", field="batch_size", value=batch_size, fix="use 1 or more")
        if not blocks:
            raise InvalidSpec("there are no blocks", field="blocks", fix="give the blocks of a data set that has rows")
        self.columns = tuple(columns) or tuple(blocks[0])
        self._parts = [[_rows(block, name) for name in self.columns] for block in blocks]
        self._batch, self._drop_last, self._start = batch_size, drop_last, start
        sizes = [len(parts[0]) for parts in self._parts]
        self._begins = np.concatenate([[0], np.cumsum(sizes)])
        self._order = _order(order, int(self._begins[-1]), seed, epoch)
        self._trim = [(self.columns.index(name), self.columns.index(by)) for name, by in (trim or {}).items()]
        self._room = [part.new_empty((batch_size, *part.shape[1:])) for part in self._parts[0]]

    @property
    def samples(self) -> int:
        """How many come in all."""
        return max(0, len(self._order) - self._start)

    def __len__(self) -> int:
        whole, more = divmod(self.samples, self._batch)
        return whole + (1 if more and not self._drop_last else 0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        found = self._whole() if len(self._parts) == 1 else self._pieces()
        return self._trimmed(found) if self._trim else found

    def _cuts(self) -> Iterator[tuple[int, int]]:
        for place in range(len(self)):
            begin = self._start + place * self._batch
            yield begin, min(begin + self._batch, len(self._order))

    def _whole(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """From one block: what training usually reads."""
        order = torch.from_numpy(self._order)
        pairs, room = list(zip(self._parts[0], self._room, strict=True)), tuple(self._room)
        gather = torch.index_select
        for begin, end in self._cuts():
            index = order[begin:end]
            if end - begin == self._batch:
                for part, out in pairs:
                    gather(part, 0, index, out=out)
                yield room
            else:
                yield tuple(gather(part, 0, index) for part in self._parts[0])

    def _pieces(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """From several blocks, each of which fills its part of the buffer."""
        for begin, end in self._cuts():
            index = np.sort(self._order[begin:end])  # so that those of a block are next to each other
            bounds = np.searchsorted(index, self._begins)
            for block, parts in enumerate(self._parts):
                low, high = int(bounds[block]), int(bounds[block + 1])
                if low == high:
                    continue
                within = torch.from_numpy(index[low:high] - self._begins[block])
                for part, room in zip(parts, self._room, strict=True):
                    torch.index_select(part, 0, within, out=room[low:high])
            yield tuple(room[: end - begin] for room in self._room)

    def _trimmed(self, found: Iterator[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Padded columns cut to the longest of the batch."""
        for batch in found:
            cut = list(batch)
            for column, by in self._trim:
                longest = int(batch[by].max()) if len(batch[by]) else 0
                cut[column] = batch[column][:, : max(1, longest)]
            yield tuple(cut)


def _rows(block: Columns, name: str) -> torch.Tensor:
    if name not in block:
        raise InvalidSpec(f"has no column {name}", field="columns", value=name, fix=f"it has {', '.join(block)}")
    return block[name].contiguous()


def _order(order: Any, rows: int, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    """The samples in the order in which they come, as numbers that index_select takes."""
    if order is None:
        return partition(rows, 1, seed=seed, epoch=epoch).order
    found = np.ascontiguousarray(order, dtype=np.int64)
    if found.size and (found.min() < 0 or found.max() >= rows):
        raise InvalidSpec(f"asks for a sample that is not among the {rows:,}", field="order",
                          fix=f"use numbers from 0 to {rows - 1:,}")  # fmt: skip
    return found
