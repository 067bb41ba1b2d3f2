"""A full disk: the store has room of its own to go on with, and takes it again when there is some."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from fairlead.control.store import Store, events
from fairlead.control.store.reserve import Reserve
from fairlead.errors import Unavailable
from tests.control.stores import Clock, run

RESERVE_BYTES = 2 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only root mounts a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave nothing, as a tenant might."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def note(text: str) -> object:
    def work(connection: Connection) -> None:
        events.append(connection, time_s=1.0, kind="told", text=text)

    return work


def test_the_store_writes_on_a_full_disk_from_its_reserve(small: Path, clock: Clock) -> None:
    async def scene() -> None:
        store = Store.open(f"sqlite:///{small}/fairlead.db", clock=clock)
        store.keep_reserve(RESERVE_BYTES)
        reserve = small / "fairlead.db-reserve"
        try:
            await store.acquire_lease("me")
            await store.write(note("before"))  # type: ignore[arg-type]
            assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
            fill(small)
            for place in range(40):
                await store.write(note("x" * 10_000 + str(place)))  # type: ignore[arg-type]
            assert not reserve.exists()
            found = await store.read(lambda connection: events.after(connection, 0, 100))
            assert len(found) == 41
        finally:
            await store.close()

    run(scene())


def test_without_a_reserve_a_full_disk_stops_the_store(small: Path, clock: Clock) -> None:
    """What the reserve is there for."""

    async def scene() -> None:
        store = Store.open(f"sqlite:///{small}/fairlead.db", clock=clock)
        try:
            await store.acquire_lease("me")
            fill(small)
            with pytest.raises(Unavailable, match="full"):
                for _ in range(200):
                    await store.write(note("x" * 100_000))  # type: ignore[arg-type]
        finally:
            await store.close()

    run(scene())


def test_a_reserve_is_taken_again_when_there_is_room(small: Path, clock: Clock) -> None:
    reserve = Reserve(small / "reserve", RESERVE_BYTES, clock)
    reserve.keep()
    assert reserve.held
    filler = fill(small)
    assert reserve.give_up() and not reserve.give_up()
    clock.advance(11.0)
    reserve.keep()
    assert not reserve.held, "not before twice as much is free"
    filler.unlink()
    reserve.keep()
    assert not reserve.held, "it is not looked for all the time"
    clock.advance(11.0)
    reserve.keep()
    assert reserve.held and (small / "reserve").stat().st_mode & 0o777 == 0o600
    reserve.drop()
    assert not (small / "reserve").exists()


def test_the_reserve_of_a_leader_before_is_used_again(small: Path, clock: Clock) -> None:
    Reserve(small / "reserve", RESERVE_BYTES, clock).keep()
    fill(small)
    again = Reserve(small / "reserve", RESERVE_BYTES, clock)
    again.keep()
    assert again.held and again.give_up()


def test_a_reserve_is_kept_once_given_up_once_and_tried_again_after_ten_seconds(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve(path, 1 << 16, clock)
    assert not reserve.give_up()
    reserve.keep()
    assert reserve.held and path.stat().st_size == 1 << 16
    assert reserve.give_up() and not path.exists() and not reserve.give_up()
    clock.advance(9.9)
    reserve.keep()
    assert not reserve.held and not path.exists()
    clock.advance(0.1)
    reserve.keep()
    assert reserve.held
    path.unlink()
    reserve.drop()
    assert not reserve.held, "also when somebody has taken the file away"
    reserve.drop()
    nowhere = Reserve(tmp_path / "no" / "reserve", 1 << 16, clock)
    nowhere.keep()
    assert not nowhere.held
