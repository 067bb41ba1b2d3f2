"""One live platform with one tenant for all tests of pipelines in a process, ended whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.sdk.pipelines import PipelineRun
from tests.chaos.crashable import Crashable
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 150.0


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    crashable = Crashable(tmp_path_factory.mktemp("pipelines"), "2")
    try:
        crashable.up()
        crashable.client.create_tenant("alpha")
        crashable.client.create_tenant("typist")  # whose results are not taken for those of alpha's tests
        yield crashable
    finally:
        crashable.down()


@pytest.fixture(scope="session")
def run(platform: Crashable) -> Callable[..., PipelineRun]:
    """Run a pipeline of ``programs/flow.py``."""

    def started(name: str, **params: object) -> PipelineRun:
        what = f"{PROGRAMS / 'flow.py'}:{name}"
        return platform.call(lambda client: client.run_pipeline(what, folder=PROGRAMS, tenant="alpha", **params))

    return started


def ended(platform: Crashable, pipeline: str) -> PipelineRun:
    """The pipeline when it has ended, however it did."""

    def look() -> PipelineRun | None:
        found = platform.call(lambda client: client.pipeline(pipeline))
        return found if found.ended else None

    return until(look, PATIENCE_S, f"{pipeline} ends")
