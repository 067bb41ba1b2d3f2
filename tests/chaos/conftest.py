"""One platform per test module: node managers stay warm while their control plane comes and goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.crashable import Crashable


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    home = tmp_path_factory.mktemp("chaos")
    crashable = Crashable(home, "3")
    try:
        crashable.up()
        crashable.client.create_tenant("alpha", weight=2)
        crashable.client.create_tenant("beta", weight=1)
        yield crashable
    finally:
        crashable.down()
