"""A tenant that speaks to the grid process without our library harms nobody, and the process goes on."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fairlead.errors import FairleadError, InvalidSpec, NotFound
from fairlead.grid import Grid
from fairlead.grid import messages as m
from fairlead.grid.process import fit_to_packet
from fairlead.grid.spill import Cipher, Disk
from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.values import BlockId, Usage
from fairlead.unix_sockets import PACKET_BYTES
from tests.grid.conftest import MB
from tests.waiting import until

Make = Callable[..., StandaloneGrid]


def spilled(standalone_grid: StandaloneGrid) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (standalone_grid.folder / "spill").rglob("*") if path.is_file()}


def says(grid: Grid, request: msgspec.Struct) -> None:
    """Whatever is answered: it may be refused, or do nothing."""
    with pytest.raises(FairleadError):
        grid._line.ask(request)


def flood(grid: Grid, count: int = 6) -> list[BlockId]:
    return [grid.put([bytes([number]) * MB], kind="k", meta={}) for number in range(count)]


def test_an_id_that_is_a_path_reaches_no_file_of_another_tenant(grids: Make) -> None:
    standalone_grid = grids(tenant="owner", quota=2 * MB)
    standalone_grid.admit("stranger", 2 * MB)
    owner, stranger = standalone_grid.connect("owner"), standalone_grid.connect("stranger")
    blocks = flood(owner)
    before = spilled(standalone_grid)
    assert before
    for path in before:
        for name in (f"../{path.parent.name}/{path.name}", str(path), f"./{path.name}", path.name.upper()):
            says(stranger, m.PutSmall(name, bytes(1000), 0, "k"))
            says(stranger, m.Reserve(name, MB))
            says(stranger, m.Open(name))
            says(stranger, m.Drop(name))
    flood(stranger)
    assert {path: data for path, data in spilled(standalone_grid).items() if path in before} == before
    for number, block in enumerate(blocks):
        assert bytes(owner.open(block).parts()[0]) == bytes([number]) * MB


@pytest.mark.parametrize("name", ["a\0b", "", "x" * 100_000, "../../x", "é" * 32])
def test_what_is_no_id_is_refused_and_the_tenant_is_served_on(grids: Make, name: str) -> None:
    grid = grids(quota=2 * MB).connect()
    for request in (m.Reserve(name, 10), m.PutSmall(name, b"x", 0, "k")):
        with pytest.raises(InvalidSpec, match="is not a block id"):
            grid._line.ask(request)
    for asked in (m.Open(name), m.Drop(name)):
        with pytest.raises(NotFound):
            grid._line.ask(asked)
    assert len(flood(grid)) == len(grid.blocks())


def test_a_disk_writes_no_file_but_that_of_a_block(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "own", Cipher(bytes(32), "tenant"))
    for attempt in (lambda: disk.write("../x", memoryview(b"x")), lambda: disk.drop("../x")):
        with pytest.raises(ValueError, match="is not a block id"):
            attempt()
    assert not (tmp_path / "x").exists()


def test_labels_costs_and_sizes_that_cannot_be_are_refused_by_the_grid_process(grids: Make) -> None:
    grid = grids().connect()
    for facts in (
        {"label": "l" * 300_000},
        {"label": "l" * 201},
        {"cost_s": math.nan},
        {"cost_s": math.inf},
        {"cost_s": -1.0},
    ):
        with pytest.raises(InvalidSpec):
            grid._line.ask(m.PutSmall(uuid.uuid4().hex, b"x", 0, **({"kind": "k"} | facts)))  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec):
        grid._line.ask(m.PutSmall(uuid.uuid4().hex, b"x", 0, "k" * 201))
    with pytest.raises(InvalidSpec):
        grid._line.ask(m.Reserve(uuid.uuid4().hex, -1))
    block = uuid.uuid4().hex
    grid._line.ask(m.Reserve(block, 100))
    with pytest.raises(InvalidSpec):
        grid._line.ask(m.Commit(block, 0, "k", "l" * 300_000))
    assert grid.blocks() == []


def test_a_tenant_with_endless_labels_stops_neither_hashes_nor_reports_of_others(grids: Make) -> None:
    standalone_grid = grids(tenant="loud")
    standalone_grid.admit("quiet", 8 * MB)
    loud, quiet = standalone_grid.connect("loud"), standalone_grid.connect("quiet")
    says(loud, m.PutSmall(uuid.uuid4().hex, b"x", 0, "k", "l" * 300_000))
    says(loud, m.PutSmall(uuid.uuid4().hex, b"x", 0, "k", "l" * 150_000))
    for number in range(300):
        loud.put([b"x"], kind="k", meta={}, label=f"{number:03}" + "\N{GRINNING FACE}" * 197)
    quiet.put([b"x"], kind="k", meta={}, label="mine")
    until(lambda: all(one.digest for one in [*quiet.blocks(), *loud.blocks()]), what="hashes of both")
    until(
        lambda: "mine" in standalone_grid.supervisor.usage.get("quiet", Usage(0)).by_label,
        what="a report of the quiet one",
    )
    until(lambda: standalone_grid.supervisor.usage.get("loud", Usage(0)).blocks == 300, what="a report of the loud one")


def test_a_report_fits_into_a_packet_and_names_the_largest() -> None:
    usage = Usage(
        1, by_label={f"{n:04}{'x' * 700}": n for n in range(256)}, by_job={f"{n:05}": n for n in range(60_000)}
    )
    report = fit_to_packet("tenant", usage)
    assert len(msgspec.msgpack.encode(report)) <= PACKET_BYTES
    told = report.tenants["tenant"]
    assert told.by_label and max(told.by_job.values()) == 59_999
