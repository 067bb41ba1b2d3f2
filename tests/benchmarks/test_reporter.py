"""The reporter of the benchmarks: what it keeps, what it shows and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reporter import Bench, Row, main, met, number, table

KEYS = {"name", "value", "unit", "peer", "peer_value", "ratio", "target", "met"}


@pytest.mark.parametrize(
    ("target", "value", "ratio", "expected"),
    [
        ("<= 2.0", 2.0, None, True), ("<= 2.0", 2.01, None, False), ("< 0.5", 0.5, None, False),
        (">= 200", 200.0, None, True), ("> 1", 1.0, None, False), (None, 1.0, 1.0, None), ("<= 2", None, None, None),
        ("ratio >= 1", 5.0, 0.9, False), ("ratio <= 0.5", 5.0, 0.4, True), ("ratio >= 1", 5.0, None, None),
    ],
)  # fmt: skip
def test_a_target_is_met_missed_or_not_known(
    target: str | None, value: float | None, ratio: float | None, expected: bool | None
) -> None:
    assert met(target, value, ratio) is expected


def test_a_target_that_cannot_be_read_is_a_mistake_of_the_benchmark() -> None:
    with pytest.raises(ValueError, match="fast"):
        Row("speed", 1.0, "s", target="fast")


def test_a_ratio_is_the_value_by_the_peers_value() -> None:
    assert Row("start", 0.5, "s", peer="torchrun", peer_value=5.0).ratio == pytest.approx(0.1)
    assert Row("start", 0.5, "s", peer="torchrun", peer_value=None).ratio is None
    assert Row("start", 0.5, "s", peer="torchrun", peer_value=0.0).ratio is None


def test_a_table_fits_the_screen_and_shows_what_was_missed() -> None:
    rows = [
        Row("a figure with a name that goes on and on, as the names of figures do " * 2, 0.1234, "% of a core",
            peer="a peer whose name is no shorter than that, with its version and its flags " * 2, peer_value=123456.0,
            target="ratio <= 0.0000001"),
        Row("short", 3.0, "s", target="<= 2.0"),
        Row("broken", None, "s", peer="peer", peer_value=None, target="<= 2.0"),
    ]  # fmt: skip
    text = table(rows)
    assert all(len(line) <= 100 for line in text.splitlines()), text
    assert "0.123 % of a core" in text, "figures are never cut"
    assert "123,456" in text
    missed, broken = text.splitlines()[-2:]
    assert "MISSED" in missed
    assert broken.split() == ["broken", "failed", "<=", "2.0", "?", "peer", "failed"]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (0.0456, "0.046"), (1.234, "1.23"), (45.67, "45.7"), (1234.5, "1,234")]
)
def test_numbers_have_three_figures_that_matter(value: float, shown: str) -> None:
    assert number(value) == shown


def test_json_holds_rows_machine_and_versions_even_when_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep" / "result.json"
    monkeypatch.setattr(sys, "argv", ["sample", "--quick", "--json", str(file)])

    def run(bench: Bench) -> None:
        """A sample."""
        assert bench.quick
        bench.add("slow", 3.0, "s", peer="peer", peer_value=6.0, target="<= 2.0")
        bench.note("measured on a busy machine" + ", as all machines are" * 9)

    main("sample", run, peers=["pytest", "no-such-package"])
    document = json.loads(file.read_text())
    assert [set(row) for row in document["rows"]] == [KEYS]
    assert document["rows"][0]["ratio"] == 0.5
    assert document["rows"][0]["met"] is False
    assert {"cores", "memory_gb", "cpu", "kernel", "load_at_start", "load_at_end"} <= document["machine"].keys()
    assert {"python", "fairlead", "torch", "pytest"} == document["versions"].keys()
    assert document["quick"] is True
    shown = capsys.readouterr().out
    assert "MISSED" in shown
    assert "measured on a busy machine" in shown
    assert all(len(line) <= 100 for line in shown.splitlines()), shown


def test_what_was_measured_before_a_failure_is_still_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sample"])

    def run(bench: Bench) -> None:
        bench.add("first", 1.0, "s")
        raise TimeoutError("the second never came")

    with pytest.raises(TimeoutError):
        main("sample", run)
    assert "first" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["control_plane", "recovery", "start", "training_speed"])
def test_every_benchmark_can_say_what_it_measures(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--help"], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
