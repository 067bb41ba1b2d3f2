"""The job that loads a data set: reads, fits, prepares, puts blocks into the grid, and reports what it made.

It is a Training with a custom loop, so it queues, is limited, logged and recovered like any other job of its tenant, in
the tenant's sandbox.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused
from fairlead.grid.values import BlockId
from fairlead.training.channel import log
from fairlead.training.custom_loop.context import Context
from fairlead.training.definition import Training
from fairlead.training.grid_dataset import granted_dataset
from fairlead.training.result import DataMade

if TYPE_CHECKING:
    from fairlead.data.manifest import BlockRef, Manifest
    from fairlead.data.recipes.recipe import FittedRecipe
    from fairlead.data.source import Source
    from fairlead.grid import Grid

RUN = "fairlead.training.dataset_ingest:load"
"""The ``run`` of such jobs."""
HASHING_S, HASHED_BYTES_PER_S = 5.0, 1e8
"""How long a load waits for the hashes of its blocks, and the rate by which large data gets more time."""


def load(
    source: str, name: str, recipe: Any = None, target: str | None = None, test: float = 0.0, workers: int = 0,
    like: str | None = None, append: bool = False, how: Any = None, local: str | None = None,
) -> Training:  # fmt: skip
    """The Training that loads ``source`` as ``name``; ``local`` only records where the source came from."""

    def loop(context: Context) -> DataMade:
        if context.world > 1:
            raise InvalidSpec("a data set is loaded by one worker", field="workers", fix="leave workers out")
        return _load(source, name, recipe, target, test, workers or None, like, append, dict(how or {}))

    return Training(loop=loop)


def _load(
    source: str, name: str, recipe: Any, target: str | None, test: float, workers: int | None, like: str | None,
    append: bool, how: Mapping[str, Any],
) -> DataMade:  # fmt: skip
    from fairlead.data.preparation import prepare
    from fairlead.data.reading import read
    from fairlead.data.spool import Spool
    from fairlead.data.train_test_split import split
    from fairlead.grid import Grid

    grid = Grid.of_this_worker()
    if grid is None:
        raise InvalidSpec("this worker has no grid to put data into", field="data", fix="run it as a job")
    if append:
        return _append(source, name, grid, workers, how)
    opened = read(source, **how)
    spool = Spool(opened)
    train, rest = split(1.0 - test) if test else (None, None)
    if like is not None:
        fitted = _fitted_recipe(like)[1]
    else:
        fitted = _recipe(recipe, target, opened).fit(spool, part=train, workers=workers)
    if rest is not None and spool.rows is not None and rest.count(0, spool.rows) == 0:
        raise InvalidSpec(f"{test:g} of {spool.rows:,} rows is none at all", field="test", value=test,
                          fix="set more of them apart, or leave it out")  # fmt: skip
    sets = [prepare(spool, fitted, grid, name=name, part=train, workers=workers)]
    if rest is not None:
        sets.append(prepare(spool, fitted, grid, name=f"{name}-test", part=rest, workers=workers))
    return _register(sets, fitted, grid)


def _append(source: str, name: str, grid: Grid, workers: int | None, how: Mapping[str, Any]) -> DataMade:
    """Load the rows that were added to the source since the parent was read, with the parent's recipe."""
    from fairlead.data.preparation import prepare
    from fairlead.data.reading import read

    parent, fitted = _fitted_recipe(name)
    _check_blocks_exist(parent, grid)
    fresh = read(source, **{**how, "after": parent.watermark})
    child = prepare(fresh, fitted, grid, name=name, parent=parent, workers=workers)
    if child.rows == parent.rows:
        log(f"{name}@{parent.version} is up to date")
        return DataMade()
    return _register([child], fitted, grid, {block.id for block in parent.blocks})


def _check_blocks_exist(parent: Manifest, grid: Grid) -> None:
    """Refuse to append to blocks that are gone: they die with their nodes, while the version's name stays."""
    here = {str(each.id) for each in grid.blocks()}
    for block in parent.blocks:
        if block.id in here:
            continue
        try:
            grid.open(BlockId(block.id)).close()  # fetched from another node if need be
        except NotFound:
            raise Refused(
                f"{parent.name}@{parent.version} is not in memory any more, so nothing can be added to it",
                field="data", value=parent.name, fix=f"load it anew: fairlead data load SOURCE --name {parent.name}",
            ) from None  # fmt: skip


def _fitted_recipe(name: str) -> tuple[Manifest, FittedRecipe]:
    """A data set that this job may read, and the recipe it was prepared with."""
    from fairlead.data.manifest import Manifest
    from fairlead.data.recipes.recipe import FittedRecipe

    granted = granted_dataset(name)
    if granted is None or granted.get("recipe") is None:
        raise InvalidSpec(f"there is no data set {name!r} with a recipe", field="data", value=name,
                          fix="see fairlead data list")  # fmt: skip
    manifest = Manifest.from_json(msgspec.json.encode(granted["manifest"]))
    return manifest, FittedRecipe.from_json(msgspec.json.encode(granted["recipe"]), expect=manifest.recipe)


def _recipe(written: Any, target: str | None, source: Source) -> Any:
    """The given recipe, or the default: impute gaps, normalise numbers, one-hot encode text, assemble."""

    from fairlead.data.recipes.recipe import Recipe

    if written is not None:
        document = dict(written) if isinstance(written, Mapping) else {"steps": written}
        return Recipe.from_dict(document | ({"target": target} if target is not None else {}))
    if target is not None and target not in source.schema.names:
        raise InvalidSpec(f"there is no column {target}", field="target", value=target,
                          fix=f"name one of {', '.join(source.schema.names[:20])}")  # fmt: skip
    types = {field.name: field.type for field in source.schema if field.name != target}
    has_text = any(_is_text(kind) for kind in types.values())
    has_numbers = any(_is_number(kind) for kind in types.values())
    steps: list[dict[str, Any]] = [{"impute": {}}, {"normalise": {}}] if has_numbers else []
    steps += [{"encode": {"how": "onehot"}}] if has_text else []
    if target is not None and _is_text(source.schema.field(target).type):
        steps.append({"encode": {"columns": target, "unseen": "refuse"}})
    return Recipe.from_dict({"steps": [*steps, {"assemble": {}}], "target": target})


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _register(sets: list[Manifest], fitted: FittedRecipe, grid: Grid, before: Collection[str] = ()) -> DataMade:
    """Manifests with the hashes of their blocks, as plain values; blocks of ``before`` may lie on other nodes."""
    new = [block for each in sets for block in each.blocks if block.id not in before]
    digests = _block_hashes(sets[0].name, new, grid)
    recipe = msgspec.json.decode(fitted.to_json())
    made = []
    for each in sets:
        _drop_previous_blocks(each, grid)
        blocks = [msgspec.structs.replace(one, hash=one.hash or digests.get(one.id, "")) for one in each.blocks]
        manifest = msgspec.to_builtins(msgspec.structs.replace(each, blocks=blocks))
        made.append({"manifest": manifest, "recipe": recipe})
        log(f"{each.name}@{each.version}: {each.rows} rows in {len(each.blocks)} blocks, {each.nbytes} bytes")
    return DataMade(made)


def _block_hashes(name: str, blocks: Sequence[BlockRef], grid: Grid) -> dict[str, str]:
    """The hashes of new blocks; refuses a load of which some blocks were evicted for the others."""
    until_s = time.monotonic() + HASHING_S + sum(block.bytes for block in blocks) / HASHED_BYTES_PER_S
    while True:
        held = {str(each.id): each for each in grid.blocks()}
        lost = [block for block in blocks if block.id not in held]
        if lost:
            raise _no_room(name, blocks, lost, grid)
        late = [block for block in blocks if not held[block.id].digest and held[block.id].where == "resident"]
        if not late or time.monotonic() > until_s:
            break
        time.sleep(0.02)
    if late:
        log(f"{name}: {len(late)} of {len(blocks)} blocks have no hash yet; the grid computes them later")
    return {block.id: held[block.id].digest for block in blocks}


def _no_room(name: str, blocks: Sequence[BlockRef], lost: Sequence[BlockRef], grid: Grid) -> Refused:
    """The error for a load that does not fit; drops the new blocks, since parts of a data set are of no use."""
    usage = grid.usage()
    for block in blocks:
        with contextlib.suppress(FairleadError):
            grid.drop(BlockId(block.id))
    needed = sum(block.bytes for block in blocks)
    return Refused(
        f"{name} does not fit into the grid: it has {needed:,} bytes, the tenant's quota on a node is {usage.quota:,} "
        f"and {usage.spilled:,} lie on its disk; {len(lost)} of {len(blocks)} blocks were evicted for the others",
        field="data", value=name,
        fix="raise the quota (fairlead tenant update TENANT --grid SIZE), drop other data, or load fewer columns",
    )  # fmt: skip


def _drop_previous_blocks(made: Manifest, grid: Grid) -> None:
    """Drop the old blocks of a version whose content was loaded again into new ones."""
    former = (granted_dataset(made.name) or {}).get("manifest", {})
    kept = {block.id for block in made.blocks}
    for block in former.get("blocks", []) if former.get("version") == made.version else []:
        if block["id"] in kept:
            continue
        try:
            grid.drop(BlockId(block["id"]))
        except FairleadError as error:  # in use, or on another node: evicted when room is needed
            log(f"{made.name}: an old block was not dropped yet: {error.message}")
