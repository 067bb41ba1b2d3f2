"""What is put is what is opened: whole, unchanged, pinned while in use, within the quota, wherever it lies."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairlead.errors import Conflict, FairleadError, Forbidden, InvalidSpec, NotFound, Refused, TooLarge
from fairlead.grid import Grid
from fairlead.grid.standalone import StandaloneGrid, standalone_grid
from fairlead.grid.values import BlockId
from tests.grid.conftest import MB
from tests.waiting import until

Make = Callable[..., StandaloneGrid]


def filled(number: int, nbytes: int = MB) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 0, 70_000], [3 * MB, 1]])
def test_parts_come_back_as_they_were_put(grids: Make, sizes: list[int], encrypted: bool) -> None:
    grid = grids(encrypted=encrypted, quota=16 * MB).connect()
    parts = [filled(number, size).tobytes() for number, size in enumerate(sizes)]
    block = grid.put(parts, kind="mine", meta={"a": [1, "two"]}, label="l")
    with grid.open(block) as found:
        assert [bytes(part) for part in found.parts()] == parts
        assert (found.kind, found.meta, found.nbytes) == ("mine", {"a": [1, "two"]}, sum(sizes))
        assert all(part.readonly for part in found.parts())
    with pytest.raises(InvalidSpec, match="is closed"):
        found.parts()


def test_tables_and_tensors_are_views_of_the_arena(grids: Make) -> None:
    torch = pytest.importorskip("torch")
    grid = grids().connect()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(range(60_000), pa.float32()), 2)
    table = pa.table({"a": np.arange(30_000), "b": lists})
    found = grid.open(grid.put_table(table))
    assert found.table().equals(table) and found.meta["rows"] == 30_000
    arrays = found.arrays()
    assert arrays["b"].shape == (30_000, 2) and not arrays["a"].flags.writeable
    before = pa.total_allocated_bytes()
    assert found.table().num_rows == 30_000 and pa.total_allocated_bytes() - before < 10_000, "no copy"
    put = {"w": torch.randn(300, 400).bfloat16(), "n": torch.tensor(3), "e": torch.empty(0, 4), "h": np.arange(5)}
    tensors = grid.open(grid.put_tensors(put)).tensors()
    assert all(torch.equal(tensors[name], torch.as_tensor(value)) for name, value in put.items())
    with pytest.raises(InvalidSpec, match="NumPy does not support"):
        grid.open(grid.put_tensors({"w": put["w"]})).arrays()


def test_a_block_gets_its_content_hash_afterwards_and_equal_ones_have_the_same(grids: Make) -> None:
    grid = grids().connect()
    ids = [grid.put([filled(1).data], kind="k", meta={}) for _ in range(2)] + [grid.put([b"other"], kind="k", meta={})]
    until(lambda: all(block.digest for block in grid.blocks()), what="hashes")
    digests = {block.id: block.digest for block in grid.blocks()}
    assert digests[ids[0]] == digests[ids[1]] != digests[ids[2]] and len(digests[ids[0]]) == 64


def test_what_does_not_fit_goes_to_disk_encrypted_and_comes_back(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    grid = standalone_grid.connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}, label=f"l{number % 2}") for number in range(9)]
    usage = grid.usage()
    assert usage.used <= usage.quota == 4 * MB and usage.spilled >= 5 * MB and usage.blocks == 9
    assert sum(usage.by_label.values()) <= usage.used
    files = [path for path in standalone_grid.folder.rglob("*") if path.is_file()]
    assert len(files) >= 5 and filled(0).tobytes()[:64] not in b"".join(path.read_bytes() for path in files)
    for number, block in enumerate(blocks):
        with grid.open(block) as found:
            assert bytes(found.parts()[0]) == filled(number).tobytes()
    assert grid.usage().evictions > 5


def test_a_spilled_block_that_was_changed_is_not_handed_out(grids: Make) -> None:
    standalone_grid = grids(quota=2 * MB)
    grid = standalone_grid.connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}) for number in range(3)]
    spilled = next(path for path in standalone_grid.folder.rglob("*") if path.name in blocks)
    data = bytearray(spilled.read_bytes())
    data[len(data) // 2] ^= 1
    spilled.write_bytes(data)
    with pytest.raises(FairleadError, match="was changed on disk"):
        grid.open(BlockId(spilled.name))


def test_nothing_is_evicted_or_dropped_under_a_reader(grids: Make) -> None:
    grid, other = (standalone_grid := grids(quota=4 * MB)).connect(), standalone_grid.connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}) for number in range(3)]
    views = [other.open(block).parts()[0] for block in blocks]  # the views alone hold them
    with pytest.raises(Refused, match=r"no room for .* are in use"):
        grid.put([filled(9, 2 * MB).data], kind="k", meta={})
    with pytest.raises(Conflict, match="is open in 1"):
        grid.drop(blocks[0])
    assert [bytes(view) for view in views] == [filled(number).tobytes() for number in range(3)]
    assert grid.usage().pinned >= 3 * MB and grid.usage().by_job == {"tenant": grid.usage().pinned}
    del views
    gc.collect()
    grid.put([filled(9, 2 * MB).data], kind="k", meta={})
    grid.drop(blocks[0])
    with pytest.raises(NotFound):
        grid.open(blocks[0])


def test_more_than_the_quota_is_refused_in_words(grids: Make) -> None:
    grid = grids(quota=2 * MB).connect()
    with pytest.raises(TooLarge, match=r"exceed tenant tenant's quota of 2\.1 MB"):
        grid.put([bytes(3 * MB)], kind="k", meta={})
    with pytest.raises(InvalidSpec, match="longer than"):
        grid.put([b""], kind="k", meta={}, label="x" * 500)
    with pytest.raises(NotFound):
        grid.drop(BlockId("nothing"))


def test_a_tenant_that_floods_evicts_nobody_elses(grids: Make) -> None:
    standalone_grid = grids(quota=2 * MB)
    quiet = [f"quiet{number}" for number in range(3)]
    kept = {}
    for tenant in quiet:
        standalone_grid.admit(tenant, 2 * MB)
        grid = standalone_grid.connect(tenant)
        kept[tenant] = grid, [grid.put([filled(number).data], kind="k", meta={}) for number in range(1)]
    before = {tenant: grid.usage() for tenant, (grid, _) in kept.items()}
    flood = standalone_grid.connect()
    for number in range(20):
        flood.put([filled(number).data], kind="k", meta={})
    assert flood.usage().evictions >= 18
    for tenant, (grid, blocks) in kept.items():
        assert grid.usage() == before[tenant] and grid.usage().evictions == 0
        assert bytes(grid.open(blocks[0]).parts()[0]) == filled(0).tobytes()
        with pytest.raises(NotFound):
            flood.open(blocks[0])


def test_a_block_is_fetched_from_another_node(grids: Make) -> None:
    here, there = grids("here").connect(), grids("there").connect()
    block = here.put([filled(1).data], kind="k", meta={"m": 1}, label="dataset/a@1", cost_s=3.0)
    with there.open(block) as found:
        assert bytes(found.parts()[0]) == filled(1).tobytes() and found.meta == {"m": 1}
    assert there.usage().by_label == here.usage().by_label
    assert (there.blocks()[0].cost_s, here.usage().pinned) == (3.0, 0)


def test_the_grid_process_is_killed_and_nothing_is_lost(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    grid = standalone_grid.connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}) for number in range(6)]
    view = grid.open(blocks[5]).parts()[0]
    before = grid.usage()
    for _ in range(3):
        os.kill(standalone_grid.supervisor.pid or 0, signal.SIGKILL)
        after = grid.usage()
        assert (after.used, after.pinned, after.spilled) == (before.used, before.pinned, before.spilled)
    for number, block in enumerate(blocks):
        assert bytes(grid.open(block).parts()[0]) == filled(number).tobytes()
    assert bytes(view) == filled(5).tobytes()


def test_a_forked_child_has_a_line_of_its_own(grids: Make) -> None:
    grid = grids().connect()
    block = grid.put([filled(1).data], kind="k", meta={})
    if (child := os.fork()) == 0:
        good = bytes(grid.open(block).parts()[0]) == filled(1).tobytes() and len(grid.blocks()) == 1
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(grid.open(block).parts()[0]) == filled(1).tobytes()


def test_who_does_not_show_the_token_gets_nothing(grids: Make) -> None:
    standalone_grid = grids()
    path = standalone_grid.folder / "tenant.sock"
    with pytest.raises(Forbidden):
        Grid(path, "wrong")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(b"\xff\xff\xff\xff nonsense")
        assert line.recv(10) == b"", "let go"
    assert standalone_grid.connect().usage().used == 0


def test_an_arena_that_was_handed_out_to_read_cannot_be_written_or_cut(grids: Make, tmp_path: Path) -> None:
    standalone_grid = grids()
    arena, reading, _ = standalone_grid.supervisor._tenants["tenant"].descriptors
    with pytest.raises(OSError):
        os.write(reading, b"x")
    with pytest.raises(OSError):
        os.ftruncate(arena, 0)
    with pytest.raises(OSError):
        os.ftruncate(arena, 1 << 50)
    assert os.fstat(reading).st_mode & 0o777 == 0o600
    assert hashlib.sha256(os.pread(reading, 64, 0)).hexdigest()


def test_tensors_that_are_computed_in_place_keep_their_shape_type_and_what_is_said_of_them(grids: Make) -> None:
    grid = grids().connect()

    def fill(room: dict[str, Any]) -> None:
        room["x"][:] = np.arange(6).reshape(2, 3)
        room["y"][...] = True

    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("<f4", (2, 3)), "y": ("|b1", ())}
    block = grid.make_tensors(shapes, fill, label="l", cost_s=2.0, meta={"made": "here"})
    opened = grid.open(block)
    assert opened.meta["made"] == "here"
    found = opened.tensors()
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and bool(found["y"]) and found["y"].dim() == 0
    (info,) = grid.blocks()
    assert (info.label, info.cost_s, info.kind) == ("l", 2.0, opened.kind)


def test_a_grid_by_itself_has_the_quota_it_was_asked_for_and_leaves_nothing(tmp_path: Path) -> None:
    with standalone_grid(tmp_path, 3 * MB) as running:
        grid = running.connect()
        assert grid.usage().quota == 3 * MB
        grid.put([b"x"], kind="k", meta={})
    assert not list(tmp_path.iterdir())


def test_a_block_is_intact_while_its_bytes_are_those_that_were_put(grids: Make) -> None:
    standalone_grid = grids()
    grid = standalone_grid.connect()
    block = grid.put([b"abc", b"defg"], kind="k", meta={"a": 1})
    assert grid.open(block).intact(), "nothing is known of its sum yet"
    until(lambda: grid.blocks()[0].digest, what="summed")
    opened = grid.open(block)
    assert opened.intact() and opened.nbytes == 7
    whole, header = opened.whole()
    assert whole.readonly and bytes(whole[:3]) == b"abc" and 0 < header < len(whole)
    assert hashlib.blake2b(whole, digest_size=32).hexdigest() == grid.blocks()[0].digest
    grid._line.writing().view(0, 1)[:] = b"X"
    assert not opened.intact() and not grid.open(block).intact()
