"""Fixtures for tests with real workers: forked from here, and never left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.grid.client import _connected
from fairlead.grid.standalone import StandaloneGrid
from fairlead.training import preload
from tests.training.gang import Gang

MakeGang = Callable[..., Gang]
MakeGrid = Callable[..., StandaloneGrid]
MB = 1 << 20


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    import torch._functorch.partitioners  # noqa: F401 (every worker with a pipeline would import it)

    preload()


@pytest.fixture
def make_gang(tmp_path: Path) -> Iterator[MakeGang]:
    gangs: list[Gang] = []

    def make(code: str = "", params: dict[str, Any] | None = None, *, folder: str | None = None, **other: Any) -> Gang:
        gang = Gang(tmp_path / (folder or f"job{len(gangs)}"), code, params, **other)
        gangs.append(gang)
        return gang

    yield make
    for gang in gangs:
        gang.close()


@pytest.fixture
def make_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGrid]:
    """Makes grids of nodes of one platform; the last one made is that of this process and of workers it forks."""
    made: list[StandaloneGrid] = []

    def make(name: str = "n0", quota: int = 64 * MB, **how: Any) -> StandaloneGrid:
        (tmp_path / name).mkdir()
        alone = StandaloneGrid(tmp_path / name, name, peers=tmp_path, key=b"k" * 32)
        made.append(alone)
        variables = alone.admit(quota=quota, **how)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        return alone

    yield make
    _connected.cache_clear()
    for alone in made:
        alone.close()
