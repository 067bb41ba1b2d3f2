"""Opens data sets by name: the worker's spec brings their manifests, the blocks lie in the grid of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from fairlead.data.dataset_refs import DatasetRef, dataset
from fairlead.errors import InvalidSpec, NotFound, Refused, TooLarge
from fairlead.training.samples import Batch, Resident

if TYPE_CHECKING:
    from fairlead.grid import BlockId, Grid

_granted: dict[str, Any] = {}
"""Manifest and fitted recipe by name, from the worker's spec."""


def grant_datasets(manifests: Mapping[str, Any]) -> None:
    """Set the data sets that this worker may read, before its Training is loaded."""
    _granted.clear()
    _granted.update(manifests)


def granted_dataset(name: str) -> dict[str, Any] | None:
    """Manifest and fitted recipe of a data set that this worker may read; None if there is none."""
    return _granted.get(name)


class BlockSamples:
    """A data set in several blocks: a batch is gathered from the blocks that hold its rows, then put on the device."""

    def __init__(
        self, blocks: Sequence[Sequence[torch.Tensor]], source: Mapping[str, Any], device: torch.device
    ) -> None:
        self.source, self._device = source, device
        self._blocks = [tuple(column.contiguous() for column in block) for block in blocks]
        ends = list(accumulate(len(block[0]) for block in self._blocks))
        self._ends = torch.tensor(ends)
        self._begins = torch.tensor([0, *ends[:-1]])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, index: torch.Tensor, draw: int) -> Batch:
        index = index.cpu()
        which = torch.searchsorted(self._ends, index, right=True)
        within = index - self._begins[which]
        order = torch.argsort(which, stable=True)
        counts = torch.bincount(which, minlength=len(self._blocks)).tolist()
        found = self._gathered(torch.split(within[order], counts), counts, len(index))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return tuple(column.index_select(0, back).to(self._device) for column in found)

    def _gathered(self, places: Sequence[torch.Tensor], counts: Sequence[int], rows: int) -> list[torch.Tensor]:
        """The rows from all blocks, those of the first block first."""
        found = []
        for column in range(len(self._blocks[0])):
            out = self._blocks[0][column].new_empty((rows, *self._blocks[0][column].shape[1:]))
            begin = 0
            for block, some, count in zip(self._blocks, places, counts, strict=True):
                if count:
                    torch.index_select(block[column], 0, some, out=out[begin : begin + count])
                begin += count
            found.append(out)
        return found


def open_dataset(field: str, data: str | DatasetRef, device: torch.device) -> Resident | BlockSamples:
    """The data set, mapped into memory; blocks on other nodes are fetched first.

    On a GPU a data set of one block lies there as a whole; of several blocks each batch is copied there.
    """
    from fairlead.grid import Grid  # most workers need no grid

    ref = dataset(data) if isinstance(data, str) else data
    granted = _granted.get(ref.name)
    if granted is None or (ref.version is not None and not granted["manifest"]["version"].startswith(ref.version)):
        raise InvalidSpec(
            f"there is no data set {str(ref)!r} for this job", field=field, value=str(ref),
            fix=f"load it before the job is submitted, or name it there: data: [{ref}] (fairlead data list)",
        )  # fmt: skip
    manifest = granted["manifest"]
    inputs, target = _columns(field, ref, manifest, granted.get("recipe"))
    grid = Grid.of_this_worker()
    if grid is None:
        raise InvalidSpec("this worker has no grid to read data sets from", field=field, value=str(ref),
                          fix="run it as a job of a platform: fairlead run")  # fmt: skip
    blocks = _open_blocks(field, ref, grid, manifest, inputs, target)
    if not blocks:
        raise InvalidSpec(f"{ref} is empty", field=field, value=str(ref), fix="load some rows first")
    source = {
        "name": ref.name, "version": manifest["version"], "recipe": manifest.get("recipe") or "",
        "rows": int(manifest["rows"]), "blocks": [each["id"] for each in manifest["blocks"]],
    }  # fmt: skip
    if len(blocks) > 1:
        return BlockSamples(blocks, source, device)
    return Resident([column.to(device) for column in blocks[0]], source=source)


def _open_blocks(
    field: str, ref: DatasetRef, grid: Grid, manifest: Mapping[str, Any], inputs: Sequence[str], target: str
) -> list[tuple[torch.Tensor, ...]]:
    """All blocks, in memory at once, because batches are drawn from the whole data set."""
    from fairlead.grid import BlockId

    try:
        return [
            _block_columns(grid, BlockId(each["id"]), inputs, target) for each in manifest["blocks"] if each["rows"]
        ]
    except (Refused, TooLarge) as error:
        needed = sum(int(each.get("bytes", 0)) for each in manifest["blocks"])
        raise Refused(
            f"{ref} must fit into the node's memory while a job trains on it: it has {needed:,} bytes, "
            f"the tenant's quota is {grid.usage().quota:,} ({error.message})", field=field, value=str(ref),
            fix="raise the quota (fairlead tenant update TENANT --grid SIZE), or load fewer rows or columns",
        ) from None  # fmt: skip
    except NotFound as error:
        raise Refused(
            f"{ref} is no longer in the grid, nor on its disk ({error.message})", field=field, value=str(ref),
            fix=f"load it anew: fairlead data load SOURCE --name {ref.name}",
        ) from None  # fmt: skip


def recipe_of(source: Mapping[str, Any] | None) -> str | None:
    """The fitted recipe of data that a training read by name, as the text whose SHA-256 is the recipe's hash."""
    granted = _granted.get(str((source or {}).get("name")))
    if source is None or granted is None or granted.get("recipe") is None:
        return None
    from fairlead.data.recipes.array_json import canonical_json, content_hash

    return canonical_json(granted["recipe"]) if content_hash(granted["recipe"]) == source.get("recipe") else None


def _columns(
    field: str, ref: DatasetRef, manifest: Mapping[str, Any], recipe: Mapping[str, Any] | None
) -> tuple[list[str], str]:
    """The columns the model is called with, and the target column."""
    schema = manifest["schema"]
    known = [each["name"] if isinstance(each, Mapping) else str(each) for each in schema]
    declared = (recipe or {}).get("recipe", {}).get("target") or manifest.get("target")
    target = ref.target or declared
    if target is None or target not in known:
        raise InvalidSpec(f"has no target {target or ''}".rstrip(), field=field, value=str(ref),
                          fix=f"name one of {', '.join(known)}: fairlead.data.dataset(NAME, target=...)")  # fmt: skip
    inputs = list(ref.features) or [name for name in known if name != target]
    for name in inputs:
        if name not in known:
            raise InvalidSpec(f"has no column {name}", field=field, value=name, fix=f"it has {', '.join(known)}")
    return inputs, target


def _block_columns(grid: Grid, block: BlockId, inputs: Sequence[str], target: str) -> tuple[torch.Tensor, ...]:
    """One block's columns as the model takes them, without a copy except for two cases.

    Single numbers are stacked side by side, and integer classes become int64, as losses want them.
    """
    columns = grid.open(block).tensors()
    wanted = [columns[name] for name in inputs]
    if len(wanted) > 1 and all(column.dim() == 1 for column in wanted):
        wanted = [torch.stack([column.float() for column in wanted], dim=1)]
    targets = columns[target]
    classes = not targets.is_floating_point() and targets.dtype != torch.bool
    return (*wanted, targets.long() if classes else targets)
