"""Fixtures for tests with real workers: forked from here, and never left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.training import preload
from tests.training.gang import Gang

MakeGang = Callable[..., Gang]


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
