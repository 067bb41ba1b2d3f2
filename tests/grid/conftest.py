"""Grids without a platform, each ended whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fairlead.grid.standalone import StandaloneGrid

MB = 1 << 20


@pytest.fixture
def grids(tmp_path: Path) -> Iterator[Callable[..., StandaloneGrid]]:
    """Makes grids by name, of the same platform."""
    with ExitStack() as ending:

        def make(name: str = "node", silence_s: float = 30.0, **tenant: Any) -> StandaloneGrid:
            folder = tmp_path / name
            folder.mkdir()
            standalone_grid = StandaloneGrid(folder, name, peers=tmp_path, key=b"k" * 32, silence_s=silence_s)
            ending.callback(standalone_grid.close)
            standalone_grid.admit(**({"quota": 8 * MB} | tenant))
            return standalone_grid

        yield make
    assert not list(tmp_path.glob("*/*")) and not list(tmp_path.glob("*.grid")), "nothing is left behind"
