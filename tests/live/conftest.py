"""A live platform with one tenant for a file of tests, ended whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import chromium, visit  # noqa: F401 (fixtures: who looks at a live platform in a browser)
from tests.chaos.crashable import Crashable


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    """With the nodes that the file names in NODES."""
    crashable = Crashable(tmp_path_factory.mktemp("live"), request.module.NODES)
    try:
        crashable.up()
        crashable.client.create_tenant("alpha")
        yield crashable
    finally:
        crashable.down()
