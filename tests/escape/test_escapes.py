"""From inside a job of a hostile tenant, as a command and as a function in a forked worker: no way out is open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

from ..cli.conftest import Terminal
from .conftest import KINDS, Raid, Scene, names, raided


@pytest.fixture(scope="module", params=list(KINDS))
def raid(request: pytest.FixtureRequest, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raid]:
    yield raided(scene, request.param, tmp_path_factory.mktemp("mallory"))


def test_there_are_more_than_enough_attempts() -> None:
    assert len(names()) >= 60


@pytest.mark.parametrize("name", names())
def test_it_is_held(raid: Raid, name: str) -> None:
    assert raid.found[name].startswith("held:"), raid.found[name]


def test_nothing_outlives_the_gang(scene: Scene, raid: Raid) -> None:
    def left() -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if scene.marker in " ".join(_words(each))]

    until(lambda: not left())


def test_nothing_was_put_where_the_platform_imports(raid: Raid) -> None:
    assert not [entry for entry in sys.path if Path(entry, "sitecustomize.py").exists() and entry.startswith("/tmp/")]


def test_nothing_is_left_in_shared_memory(scene: Scene, raid: Raid) -> None:
    assert not Path("/dev/shm", scene.marker).exists()


def test_links_in_a_result_are_not_followed(scene: Scene, raid: Raid, tmp_path: Path) -> None:
    result = scene.mallory("result", raid.job, "--download", str(tmp_path / "out"), "--json", code=None)
    assert "store" not in result.out
    assert not (tmp_path / "out" / "store").exists()
    assert not any(b"SQLite format" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_the_victim_noticed_nothing(scene: Scene, raid: Raid) -> None:
    job = scene.victim("why", scene.job, "--json").data["job"]
    assert (job["state"], job["recoveries"], job["preemptions"]) == ("running", 0, 0)
    answer = scene.home.job(scene.job) / "output" / "answer.txt"
    assert answer.read_text() == f"the victim's answer: {scene.canary}"


@pytest.mark.parametrize("words", [("logs",), ("why",), ("result",), ("metrics",), ("cancel",)])
def test_another_tenants_job_does_not_exist_for_it(scene: Scene, words: tuple[str, ...]) -> None:
    refused = scene.mallory(*words, scene.job, code=3)
    assert scene.canary not in refused.out + refused.err


def test_a_secret_is_in_no_log_and_no_answer(scene: Scene) -> None:
    until(lambda: "my secret is" in scene.victim("logs", scene.job).out)
    for who, words in _answers(scene):
        done = who(*words, code=None)
        assert scene.canary not in done.out + done.err, words
    kept = list(scene.home.job(scene.job).glob("logs/*")) + list(scene.home.logs.iterdir())
    for path in [*kept, scene.home.database, scene.home.database.with_name("fairlead.db-wal")]:
        if path.exists():
            assert scene.canary.encode() not in path.read_bytes(), path


def _answers(scene: Scene) -> Iterator[tuple[Terminal, tuple[str, ...]]]:
    for who in (scene.victim, scene.admin):
        for words in (("why", scene.job), ("logs", scene.job), ("result", scene.job)):
            yield who, words
            yield who, (*words, "--json")
        yield who, ("events", "--json")
    yield scene.admin, ("audit", "--json")
    yield scene.victim, ("secret", "list", "--json")


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
