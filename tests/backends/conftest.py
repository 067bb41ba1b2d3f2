"""A home for every test, which must be clean when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.platforms import traces


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose platform must have left nothing when the test ends."""
    root = tmp_path / "home"
    yield root
    assert traces(root) == []
