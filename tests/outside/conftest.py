"""A platform as an operator starts it: behind, with JSON logs at the finest level and traces to a collector."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests import nursery
from tests.outside.collector import Collector, collector


@dataclass(frozen=True)
class Busy:
    """A platform with its home, its admin, and where its traces go."""

    home: Path
    url: str
    token: str
    traces: Collector

    def caller(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30.0)

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted((self.home / "logs").iterdir()))


def fairlead(home: Path, *arguments: str) -> nursery.Done:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    return nursery.fairlead(*arguments, "--home", str(home), environment=environment)


@pytest.fixture(scope="module")
def busy() -> Iterator[Busy]:
    home = Path(tempfile.mkdtemp(prefix="fairlead-outside-"))
    home.chmod(0o755)
    with collector() as traces:
        try:
            options = ["--nodes", "2", "--port", "0", "--log-format", "json", "--log-level", "debug"]
            started = fairlead(home, "up", "--detach", *options, "--otlp", traces.url)
            assert started.code == 0, started.out + started.err
            profile = json.loads((home / "profile.json").read_text())
            yield Busy(home, profile["url"], profile["token"], traces)
        finally:
            ended = fairlead(home, "down")
            shutil.rmtree(home, ignore_errors=True)
    assert ended.code == 0, ended.out + ended.err
