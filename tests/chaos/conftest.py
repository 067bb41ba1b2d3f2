"""One platform for all that leaves it whole: node managers stay warm while their control plane comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.crashable import Crashable


@contextmanager
def three_nodes(home: Path) -> Iterator[Crashable]:
    """A platform with the tenants alpha and beta, of twice and once the weight."""
    crashable = Crashable(home, "3")
    try:
        crashable.up()
        crashable.client.create_tenant("alpha", weight=2)
        crashable.client.create_tenant("beta", weight=1)
        yield crashable
    finally:
        crashable.down()


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    with three_nodes(tmp_path_factory.mktemp("chaos")) as crashable:
        yield crashable


@pytest.fixture(autouse=True)
def _another_try(request: pytest.FixtureRequest) -> None:
    """Platforms outlive a test that failed, and so do the keys of its jobs."""
    for name in {"platform", "own_platform"} & set(request.fixturenames):
        request.getfixturevalue(name).tries = getattr(request.node, "execution_count", 1)


@pytest.fixture(scope="module")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    """For whom nothing is whole until all is over."""
    with three_nodes(tmp_path_factory.mktemp("crashes")) as crashable:
        yield crashable
