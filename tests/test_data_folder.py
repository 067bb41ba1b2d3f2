"""The operator's data folder is read by grant, and whoever was given none is told what to ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.agent.protocol import Capabilities
from fairlead.control.startup_hints import startup_hints
from fairlead.data_folder import CLOSED, VARIABLE, advice, covers
from fairlead.errors import InvalidSpec
from fairlead.sdk.dataset_loads import loading_job
from fairlead.training.loading import describe

ASKS = "FAIRLEAD_DATA (/data) is not granted to vision: fairlead tenant update vision --grant /data"
WORKER = {VARIABLE: "/data", CLOSED: "1", "FAIRLEAD_TENANT": "vision"}


SAID = ["no such file: '/data/cifar10/x'", "KeyError: 'FAIRLEAD_DATA'", "cat $FAIRLEAD_DATA/x"]


@pytest.mark.parametrize("said", SAID)
def test_what_has_to_do_with_the_closed_folder_says_what_to_grant(said: str) -> None:
    assert advice(said, WORKER) == ASKS


def test_other_errors_and_workers_that_may_read_it_are_told_nothing() -> None:
    assert advice("no such file: '/other/x'", WORKER) == ""
    assert advice("no such file: '/data/x'", {VARIABLE: "/data", "FAIRLEAD_TENANT": "vision"}) == ""
    assert advice("no such file: '/data/x'", {}) == ""


def test_a_job_s_error_says_what_to_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    assert describe(FileNotFoundError(2, "No such file or directory", "/data/x"))[0].endswith(f"; {ASKS}")
    assert describe(InvalidSpec("there is no file /data/x", fix="check the path"))[0].endswith(f"; {ASKS}")
    assert ASKS not in describe(ValueError("a shape"))[0]


def test_a_grant_of_the_folder_of_what_is_around_it_or_of_a_part_of_it_is_one() -> None:
    assert covers(["/data"], "/data") and covers(["/x", "/"], "/data") and covers(["/data/cifar10"], "/data")
    assert not covers([], "/data") and not covers(["/data2", "/dat"], "/data")


def means(isolation: str, *, chosen: bool = False) -> Capabilities:
    return Capabilities("local", isolation, 1.0, isolation_chosen=chosen)


def test_an_operator_is_told_who_reads_the_data_folder_no_more() -> None:
    assert startup_hints(means("sandbox"), {"a": [], "b": ["/data"], "c": ["/x"]}, "/data") == [
        "a, c may not read FAIRLEAD_DATA (/data); fix, if wanted: fairlead tenant update a --grant /data"
    ]
    assert startup_hints(means("sandbox"), {}, "/data") == [
        "jobs read FAIRLEAD_DATA (/data) by grant; fix, if wanted: fairlead tenant create NAME --grant /data"
    ]
    assert (
        startup_hints(means("sandbox"), {"b": ["/data"]}, "/data")
        == startup_hints(means("sandbox"), {"a": []}, None)
        == []
    )
    (many,) = startup_hints(means("sandbox"), {name: [] for name in "abcdef"}, "/data")
    assert many.startswith("a, b, c and 3 more may not read")


def test_an_operator_is_told_at_once_that_a_second_tenant_needs_a_sandbox() -> None:
    (hint,) = startup_hints(means("user"), {}, None)
    assert "a second tenant will be refused" in hint
    assert "apt install bubblewrap" in hint and "--isolation none" in hint and "\n" not in hint
    assert startup_hints(means("user", chosen=True), {}, None) == []


def test_a_file_of_one_s_own_data_folder_goes_along_unless_the_platform_s_tenant_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert loading_job(tmp_path / "table.csv", "d").spec.params["source"] == "table.csv"
    seen = loading_job(tmp_path / "table.csv", "d", folders=[str(tmp_path)])
    assert seen.spec.params["source"] == str(tmp_path / "table.csv")
