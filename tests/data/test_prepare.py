"""A data set is prepared in parallel and in bounded memory, is versioned, and grows without being loaded again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from fairlead.data import BadData, read
from fairlead.data.manifest import Manifest, SchemaChanged
from fairlead.data.preparation import _inherited_part, fit_and_prepare, prepare
from fairlead.data.recipes import Assemble, Encode, Flag, Normalise, Recipe
from fairlead.data.recipes.batch_columns import to_array
from fairlead.data.spool import Spool
from fairlead.data.train_test_split import _row_fractions, split
from fairlead.errors import InvalidSpec
from fairlead.grid import BlockId
from fairlead.grid.standalone import standalone_grid

RECIPE = Recipe([Normalise(), Encode(columns="c", how="onehot"), Encode(columns="y"), Assemble()], target="y")


class Blocks(dict[str, pa.RecordBatch]):
    """Where blocks go when there is no grid."""

    def put(self, batch: pa.RecordBatch) -> str:
        name = f"block-{len(self)}"
        self[name] = batch
        return name


def table(rows: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table({"a": draw.normal(size=rows), "b": draw.integers(0, 9, rows), "c": draw.choice(["p", "q"], rows),
                     "y": draw.choice(["no", "yes"], rows)})  # fmt: skip


def rows_of(blocks: Blocks, manifest: Manifest) -> pa.Table:
    return pa.Table.from_batches([blocks[block.id] for block in manifest.blocks])


def csv(path: Path, rows: pa.Table, *, more: bool = False) -> Path:
    text = rows.to_pandas().to_csv(index=False, header=not more)
    with path.open("a" if more else "w") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_hold_what_the_recipe_makes_of_every_row_in_its_order(workers: int) -> None:
    data, blocks = table(1_000), Blocks()
    fitted = RECIPE.fit(read(data, batch_rows=70))
    manifest = prepare(read(data, batch_rows=70), fitted, blocks.put, workers=workers, block_bytes=300 * 28)
    assert [block.rows for block in manifest.blocks] == [300, 300, 300, 100]
    assert [block.first for block in manifest.blocks] == [0, 300, 600, 900]
    wanted = pa.Table.from_batches([fitted.apply(data.combine_chunks().to_batches()[0])])
    assert rows_of(blocks, manifest).combine_chunks().equals(wanted.combine_chunks())
    assert manifest.rows == manifest.source_rows == 1_000 and manifest.target == "y"


def test_a_source_is_read_once_where_memory_allows_and_again_where_not() -> None:
    for memory_bytes, times in ((1 << 30, 1), (1_000, 2)):
        opened = []
        data = read(table(500), batch_rows=50)
        counted = Spool(_Counted(data, opened), memory_bytes)  # type: ignore[arg-type]
        fit_and_prepare(counted, RECIPE, Blocks().put)
        assert len(opened) == times


class _Counted:
    def __init__(self, source: object, opened: list[int]) -> None:
        self._source, self._opened = source, opened

    def __getattr__(self, name: str) -> object:
        if name == "batches":
            self._opened.append(1)
        return getattr(self._source, name)


def test_a_manifest_reads_back_and_its_version_is_what_it_was_made_from(tmp_path: Path) -> None:
    file, blocks = csv(tmp_path / "data.csv", table(300)), Blocks()
    fitted, manifest = fit_and_prepare(read(file), RECIPE, blocks.put, name="bank")
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.recipe == fitted.hash and manifest.version
    file.touch()
    assert fit_and_prepare(read(file), RECIPE, blocks.put, name="bank")[1].version == manifest.version
    csv(file, table(1, seed=3), more=True)
    assert fit_and_prepare(read(file), RECIPE, blocks.put, name="bank")[1].version != manifest.version
    with pytest.raises(InvalidSpec, match="is not a data set manifest"):
        Manifest.from_json('{"name": 1}')


def test_a_later_sync_appends_to_the_blocks_that_are_there_with_the_recipe_of_then(tmp_path: Path) -> None:
    file, blocks = csv(tmp_path / "data.csv", table(300)), Blocks()
    fitted, parent = fit_and_prepare(read(file), RECIPE, blocks.put, name="bank")
    before = list(parent.blocks)
    csv(file, table(40, seed=1), more=True)
    child = prepare(read(file, after=parent.watermark), fitted, blocks.put, name="bank", parent=parent)
    assert child.parent == parent.version != child.version
    assert child.labels[:-1] == parent.labels and len(set(child.labels)) == 2, "a label for each load"
    assert child.blocks[: len(before)] == before and len(blocks) == len(before) + 1
    assert (child.rows, child.blocks[-1].first, child.blocks[-1].rows) == (340, 300, 40)
    assert rows_of(blocks, child).num_rows == 340


def test_a_later_sync_keeps_training_and_test_rows_apart(tmp_path: Path) -> None:
    file, blocks = csv(tmp_path / "data.csv", table(100)), Blocks()
    train, rest = split(0.75)
    fitted = RECIPE.fit(read(file), part=train)
    parents = [prepare(read(file), fitted, blocks.put, name=n, part=p) for n, p in (("x", train), ("x-test", rest))]
    csv(file, table(100, seed=1), more=True)
    later = [prepare(read(file, after=p.watermark), fitted, blocks.put, name=p.name, parent=p) for p in parents]
    whole = fitted.apply(read(file).table().combine_chunks().to_batches()[0])
    masks = [part.mask(0, whole) for part in (train, rest)]
    for made, parent, mask in zip(later, parents, masks, strict=True):
        assert made.policy == parent.policy
        assert rows_of(blocks, made).equals(pa.Table.from_batches([whole.filter(pa.array(mask))]))
    assert sum(made.rows for made in later) == 200
    with pytest.raises(InvalidSpec, match="part"):
        prepare(read(file, after=parents[0].watermark), fitted, blocks.put, name="x", parent=parents[0], part=rest)


def calls(path: Path, values: list[float]) -> Path:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE IF EXISTS calls")
        database.execute("CREATE TABLE calls (id INTEGER, a REAL)")
        database.executemany("INSERT INTO calls VALUES (?, ?)", list(enumerate(values)))
    return path


@pytest.mark.parametrize("order", [None, "id"])
def test_a_table_that_was_changed_in_place_is_another_version(order: str | None, tmp_path: Path) -> None:
    recipe, blocks = Recipe([Assemble()]), Blocks()

    def version(values: list[float], **how: int) -> str:
        source = read(calls(tmp_path / "p.db", values), table="calls", order=order)
        return prepare(source, fitted, blocks.put, name="calls", **how).version

    fitted = recipe.fit(read(calls(tmp_path / "p.db", [1.0, 2.0, 3.0]), table="calls"))
    first = version([1.0, 2.0, 3.0])
    assert version([1.0, 9.0, 3.0]) != first
    assert version([1.0, 2.0, 3.0], block_bytes=16) == first  # however it is cut into blocks


def test_parts_by_another_key_are_another_version(tmp_path: Path) -> None:
    rows = pa.table({"a": [1.0] * 8, "k": list(range(8)), "l": list(range(8))})
    file = csv(tmp_path / "data.csv", rows)
    fitted = Recipe([Assemble()]).fit(read(file))
    made = [prepare(read(file), fitted, Blocks().put, part=split(0.5, key=key)[0]) for key in ("k", "l")]
    assert made[0].rows == made[1].rows and made[0].version != made[1].version


def test_a_changed_schema_is_seen_and_refused_with_the_columns_named(tmp_path: Path) -> None:
    blocks = Blocks()
    fitted, parent = fit_and_prepare(read(table(50)), RECIPE, blocks.put, name="bank")
    changed = table(5).drop(["a"]).append_column("z", pa.array([1] * 5)).set_column(0, "b", pa.array([0.5] * 5))
    with pytest.raises(SchemaChanged, match=r"without a; with the new z; with the changed b \(int64 -> double\)"):
        parent.check(changed.schema)
    with pytest.raises((SchemaChanged, BadData), match=r"'a'|without a"):
        prepare(read(changed), fitted, blocks.put, name="bank", parent=parent)
    other = RECIPE.fit(read(table(60, seed=5)))
    with pytest.raises(InvalidSpec, match=r"recipe: is .*, but .* was prepared with"):
        prepare(read(table(5)), other, blocks.put, name="bank", parent=parent)


def test_training_and_test_part_are_prepared_by_what_the_training_part_taught() -> None:
    data, blocks = table(1_000), Blocks()
    train, rest = split(0.8, seed=2)
    spool = Spool(read(data, batch_rows=90))
    fitted = RECIPE.fit(spool, part=train)
    parts = [prepare(spool, fitted, blocks.put, part=part) for part in (train, rest)]
    assert sum(part.rows for part in parts) == 1_000 and fitted.rows == parts[0].rows
    assert parts[0].policy.part == [0.0, 0.8] and parts[0].version != parts[1].version


@pytest.mark.parametrize("action", ["keep", "drop"])
def test_what_was_flagged_is_kept_as_it_came(action: str) -> None:
    data = table(400).set_column(0, "a", pa.array(np.append(np.random.default_rng(0).normal(size=399), 1e4)))
    recipe = Recipe([Flag(columns=["a", "b"], trees=20, action=action), *RECIPE.steps], target="y")
    blocks = Blocks()
    _, manifest = fit_and_prepare(read(data, batch_rows=64), recipe, blocks.put)
    told = manifest.flagged[0]
    assert 399 in dict(told.rows) and told.count == 4 and told.block is not None
    kept = blocks[told.block].to_pylist()
    assert {"a", "c", "source_row", "score"} <= set(kept[0]) and 1e4 in [row["a"] for row in kept]
    assert manifest.rows == (400 if action == "keep" else 396) and manifest.policy.flagged == action


def test_a_column_without_a_fixed_size_is_refused_before_anything_is_put() -> None:
    blocks = Blocks()
    with pytest.raises(BadData, match="column 'c': is still string at the end"):
        fit_and_prepare(read(table(20)), Recipe([Encode(columns="y"), Normalise()], target="y"), blocks.put)
    assert not blocks


def test_missing_values_that_nobody_imputes_are_refused_by_column() -> None:
    data = pa.table({"a": pa.array([*range(100), None], pa.int64())})
    recipe = Recipe([])
    with pytest.raises(BadData, match="column 'a': has missing values"):
        fit_and_prepare(read(data, batch_rows=50), recipe, Blocks().put)


def test_a_data_set_is_computed_in_the_grid_and_read_from_it_as_one_block(tmp_path: Path) -> None:
    data = table(2_000)
    train, _ = split(0.75)
    with standalone_grid(tmp_path, quota=64 << 20) as running, running.connect() as grid:
        fitted, whole = fit_and_prepare(read(data, batch_rows=300), RECIPE, grid, name="bank")
        part = prepare(Spool(read(data, batch_rows=300)), fitted, grid, name="part", part=train)
        small = prepare(read(data), fitted, grid, name="small", block_bytes=800 * 28)
        assert [block.rows for block in whole.blocks] == [2_000] and len(part.blocks) == 1
        assert [block.rows for block in small.blocks] == [800, 800, 400]
        found = grid.open(BlockId(whole.blocks[0].id)).arrays()
        wanted = fitted.replay(data.combine_chunks().to_batches()[0]).columns
        np.testing.assert_array_equal(found["features"], to_array(wanted["features"]))
        np.testing.assert_array_equal(found["y"], wanted["y"])
        pieces = [grid.open(BlockId(block.id)).arrays()["features"] for block in small.blocks]
        np.testing.assert_array_equal(np.concatenate(pieces), found["features"])
        mask = train.mask(0, data.combine_chunks().to_batches()[0])
        np.testing.assert_array_equal(grid.open(BlockId(part.blocks[0].id)).arrays()["y"], found["y"][mask])


def test_a_row_whose_lot_is_the_very_bound_is_in_one_part_only() -> None:
    """A row that is trained on and judged by makes every figure better than it is."""
    batch = pa.RecordBatch.from_pydict({"x": list(range(50))})
    for lot in _row_fractions(np.arange(50, dtype=np.uint64), 3).tolist():
        train, rest = split(lot, seed=3)
        assert (train.mask(0, batch) ^ rest.mask(0, batch)).all()
        assert (train.count(0, 50), rest.count(0, 50)) == (train.mask(0, batch).sum(), rest.mask(0, batch).sum())


def test_new_columns_are_named_in_order() -> None:
    before = SimpleNamespace(name="sales", source_schema={"z": "int64"})
    now = pa.schema([(name, pa.int64()) for name in "fbdeca"])
    with pytest.raises(SchemaChanged, match="without z; with the new a, b, c, d, e, f"):
        Manifest.check(cast(Manifest, before), now)


def test_the_part_of_the_parent_may_be_named_again_and_no_other() -> None:
    policy = SimpleNamespace(part=(0.0, 0.8), part_seed=3, part_key=None)
    parent = cast(Manifest, SimpleNamespace(name="sales", version=1, policy=policy))
    own = _inherited_part(parent, None)
    assert own is not None and _inherited_part(parent, own) == own
    with pytest.raises(InvalidSpec, match="differs from the part"):
        _inherited_part(parent, replace(own, seed=4))


class Costs:
    """A grid that has no room to compute in, and keeps what each block was said to cost."""

    def __init__(self) -> None:
        self.said: list[tuple[int, float]] = []

    def put_tensors(self, tensors: dict[str, np.ndarray], *, label: str, cost_s: float) -> str:
        self.said.append((sum(each.nbytes for each in tensors.values()), cost_s))
        return f"block-{len(self.said)}"


def test_what_a_block_costs_to_make_again_follows_its_size() -> None:
    data, blocks = table(1_000), Costs()
    fitted = RECIPE.fit(read(data))
    manifest = prepare(read(data), fitted, blocks, workers=1, block_bytes=300 * 28)  # type: ignore[arg-type]
    assert [size for size, _ in blocks.said] == [block.bytes for block in manifest.blocks] and len(blocks.said) == 4
    assert all(cost_s == pytest.approx(size / 1e8) for size, cost_s in blocks.said)
