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


@pytest.fixture(autouse=True)
def sees_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """A planner that cannot look at a model is a fault: its jobs would run as whole copies to their end, unnoticed."""
    if "platform" not in request.fixturenames:
        yield
        return
    platform = request.getfixturevalue("platform")
    before = set(_blind(platform))
    yield
    assert not set(_blind(platform)) - before


def _blind(platform: Crashable) -> list[str]:
    return [each.text for each in platform.call(lambda client: list(client.events())) if each.kind == "planner-blind"]
