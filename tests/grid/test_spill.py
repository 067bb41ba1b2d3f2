"""What does not fit goes to disk, and when that is full, the cheapest goes for good; model state goes last of all."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.grid import Grid
from fairlead.grid.catalogue import RESIDENT, SPILLED, Catalogue, Entry
from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.values import BlockId, snapshot_label
from tests.grid.conftest import MB
from tests.grid.test_blocks import filled

Make = Callable[..., StandaloneGrid]


def put(grid: Grid, number: int, nbytes: int = MB, *, label: str = "", cost_s: float = 0.0) -> BlockId:
    return grid.put([filled(number, nbytes).data], kind="k", meta={}, label=label, cost_s=cost_s)


def test_the_dear_are_kept_when_memory_and_disk_are_full_and_the_cheapest_are_lost(grids: Make) -> None:
    grid = grids(quota=4 * MB, spill_bytes=4 * MB).connect()
    cheap = [put(grid, number, cost_s=0.01) for number in range(6)]  # some are on disk by now
    dear = [put(grid, 10 + number, cost_s=100.0) for number in range(5)]  # more than memory holds
    kept = {one.id for one in grid.blocks()}
    assert set(dear) <= kept and not set(cheap) <= kept
    assert grid.usage().spilled <= 4 * MB
    for number, block in enumerate(dear):
        assert bytes(grid.open(block).parts()[0]) == filled(10 + number).tobytes()


def test_what_was_dear_long_ago_does_not_keep_the_disk_for_ever(grids: Make) -> None:
    grid = grids(quota=2 * MB, spill_bytes=2 * MB).connect()
    old = [put(grid, number, cost_s=0.02) for number in range(3)]
    for number in range(60):
        put(grid, 100 + number, cost_s=0.01)
    assert not set(old) & {one.id for one in grid.blocks()}


def test_everything_else_goes_before_the_snapshots_of_a_training(grids: Make) -> None:
    grid = grids(quota=4 * MB, spill_bytes=0).connect()
    state = put(grid, 1, 2 * MB, label=snapshot_label("job"), cost_s=1.0)
    for number in range(200):
        put(grid, number, 30_000, cost_s=1e6)
    assert state in {one.id for one in grid.blocks()}


def test_the_cheapest_on_disk_is_known_after_a_restart_too() -> None:
    told: list = []  # type: ignore[type-arg]
    first = Catalogue(told.append)
    for number, name in enumerate("abc"):
        entry = Entry(name, 1000, RESIDENT, number * 1024, cost_s=10.0 - number)
        first.apply(entry)
        first.apply(Entry(name, 1000, SPILLED, cost_s=entry.cost_s))
    for catalogue in (first, Catalogue(past=told), Catalogue(past=first.as_changes())):
        cheapest = catalogue.cheapest_spilled()
        assert cheapest is not None and cheapest.id == "c"


def test_a_block_that_is_asked_for_is_not_the_one_that_makes_room_for_it(grids: Make) -> None:
    grid = grids(quota=2 * MB, spill_bytes=2 * MB).connect()  # one fits into each
    cheap, dear = put(grid, 1, cost_s=0.01), put(grid, 2, cost_s=100.0)
    for block, number in ((cheap, 1), (dear, 2), (cheap, 1)):
        assert bytes(grid.open(block).parts()[0]) == filled(number).tobytes()
