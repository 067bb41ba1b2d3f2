"""Training on data sets by name: their manifests were handed to this worker, their blocks lie in its node's grid."""

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

_handed: dict[str, Any] = {}
"""By name: manifest and fitted recipe, as the order of this worker has them."""


def hand_over(manifests: Mapping[str, Any]) -> None:
    """What this worker may read, before its Training is loaded."""
    _handed.clear()
    _handed.update(manifests)


def handed(name: str) -> dict[str, Any] | None:
    """Manifest and fitted recipe of a data set that this worker may read."""
    return _handed.get(name)


class Pieces:
    """A data set in several blocks: a batch is gathered from those that hold some of it, and put on the device."""

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
        """The rows of all blocks, those of the first block first."""
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


def open_named(field: str, data: str | DatasetRef, device: torch.device) -> Resident | Pieces:
    """The data set, mapped; blocks that are not on this node are brought there first.

    On another device than the cpu one block lies there as a whole, and of several each batch is put there.
    """
    from fairlead.grid import Grid  # most workers need none

    meant = dataset(data) if isinstance(data, str) else data
    told = _handed.get(meant.name)
    if told is None or (meant.version is not None and not told["manifest"]["version"].startswith(meant.version)):
        raise InvalidSpec(
            f"there is no data set {str(meant)!r} for this job", field=field, value=str(meant),
            fix=f"load it before the job is submitted, or name it there: data: [{meant}] (fairlead data list)",
        )  # fmt: skip
    manifest = told["manifest"]
    inputs, target = _columns(field, meant, manifest, told.get("recipe"))
    grid = Grid.of_this_worker()
    if grid is None:
        raise InvalidSpec("this worker has no grid to read data sets from", field=field, value=str(meant),
                          fix="run it as a job of a platform: fairlead run")  # fmt: skip
    blocks = _opened(field, meant, grid, manifest, inputs, target)
    if not blocks:
        raise InvalidSpec(f"{meant} is empty", field=field, value=str(meant), fix="load some rows first")
    source = {
        "name": meant.name, "version": manifest["version"], "recipe": manifest.get("recipe") or "",
        "rows": int(manifest["rows"]), "blocks": [each["id"] for each in manifest["blocks"]],
    }  # fmt: skip
    if len(blocks) > 1:
        return Pieces(blocks, source, device)
    return Resident([column.to(device) for column in blocks[0]], source=source)


def _opened(
    field: str, meant: DatasetRef, grid: Grid, manifest: Mapping[str, Any], inputs: Sequence[str], target: str
) -> list[tuple[torch.Tensor, ...]]:
    """All blocks, in memory at once: batches are drawn from the whole."""
    from fairlead.grid import BlockId

    try:
        return [_ready(grid, BlockId(each["id"]), inputs, target) for each in manifest["blocks"] if each["rows"]]
    except (Refused, TooLarge) as error:
        needed = sum(int(each.get("bytes", 0)) for each in manifest["blocks"])
        raise Refused(
            f"{meant} has to lie in the memory of the node as a whole while it is trained on: it has {needed:,} bytes, "
            f"the tenant's quota is {grid.usage().quota:,} ({error.message})", field=field, value=str(meant),
            fix="raise the quota (fairlead tenant update TENANT --grid SIZE), or load fewer rows or columns",
        ) from None  # fmt: skip
    except NotFound as error:
        raise Refused(
            f"{meant} is no longer in the grid, nor on its disk ({error.message})", field=field, value=str(meant),
            fix=f"load it anew: fairlead data load SOURCE --name {meant.name}",
        ) from None  # fmt: skip


def recipe_of(source: Mapping[str, Any] | None) -> str | None:
    """The fitted recipe of data that a training read by name, as a text whose SHA-256 is the recipe's hash."""
    told = _handed.get(str((source or {}).get("name")))
    if source is None or told is None or told.get("recipe") is None:
        return None
    from fairlead.data.recipes.array_json import canonical_json, content_hash

    return canonical_json(told["recipe"]) if content_hash(told["recipe"]) == source.get("recipe") else None


def _columns(
    field: str, meant: DatasetRef, manifest: Mapping[str, Any], recipe: Mapping[str, Any] | None
) -> tuple[list[str], str]:
    """What the model is called with, and what it is to say."""
    schema = manifest["schema"]
    known = [each["name"] if isinstance(each, Mapping) else str(each) for each in schema]
    declared = (recipe or {}).get("recipe", {}).get("target") or manifest.get("target")
    target = meant.target or declared
    if target is None or target not in known:
        raise InvalidSpec(f"has no target {target or ''}".rstrip(), field=field, value=str(meant),
                          fix=f"name one of {', '.join(known)}: fairlead.data.dataset(NAME, target=...)")  # fmt: skip
    inputs = list(meant.features) or [name for name in known if name != target]
    for name in inputs:
        if name not in known:
            raise InvalidSpec(f"has no column {name}", field=field, value=name, fix=f"it has {', '.join(known)}")
    return inputs, target


def _ready(grid: Grid, block: BlockId, inputs: Sequence[str], target: str) -> tuple[torch.Tensor, ...]:
    """One block's columns as the model takes them: everything as it lies there, but two copies in this worker.

    Single numbers are put side by side, and classes become the whole numbers that losses take.
    """
    columns = grid.open(block).tensors()
    wanted = [columns[name] for name in inputs]
    if len(wanted) > 1 and all(column.dim() == 1 for column in wanted):
        wanted = [torch.stack([column.float() for column in wanted], dim=1)]
    said = columns[target]
    whole = not said.is_floating_point() and said.dtype != torch.bool
    return (*wanted, said.long() if whole else said)  # what losses over classes take
