"""A home for every test, which must be clean when the test ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.agent.embedded.backend import LocalBackend
from fairlead.home import Home
from tests.agent.platforms import traces


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose platform must have left nothing when the test ends."""
    root = tmp_path / "home"
    yield root
    if left := traces(root):
        asyncio.run(LocalBackend(Home(root), preload=False).shutdown())
    assert left == []
