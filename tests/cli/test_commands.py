"""Every verb is in the file of its name, and figures come with their names and units."""

from __future__ import annotations

import importlib

import pytest

from fairlead.cli import output, tenant_table
from fairlead.cli.commands.plan import _flops
from fairlead.cli.commands.result import _figure
from fairlead.cli.main import app
from fairlead.views.jobs import TenantView

GROUPED = {"tenants": "tenant"}  # fairlead tenants is fairlead tenant list


def test_each_verb_is_in_the_file_of_its_name() -> None:
    for command in app.registered_commands:
        verb = str(command.name)
        module = importlib.import_module(f"fairlead.cli.commands.{GROUPED.get(verb, verb).replace('-', '_')}")
        assert command.callback is not None and command.callback.__module__ == module.__name__, verb
    for group in app.registered_groups:
        module = importlib.import_module(f"fairlead.cli.commands.{group.name}")
        assert group.typer_instance is module.app, group.name


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TT", 7.6, "training time 7.6s"), ("RU", 0.158, "utilisation 16 %"),
        ("TP", 10640.0, "throughput 10,640 samples/s"),
        ("FI", 0.981, "fairness index 0.981"), ("FRT", 0.18, "mean recovery time 0.2s"), ("SSR", 1.0, "SLA met 100 %"),
        ("device_s", 250.0, "device time 4m10s"), ("unknown", 2.0, "unknown 2"), ("RU", None, ""),
    ],
)  # fmt: skip
def test_a_figure_has_its_name_and_unit(name: str, value: float | None, text: str) -> None:
    assert _figure(name, value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1 kFLOP"),
        (8960, "8.96 kFLOP"),
        (1e9, "1 GFLOP"),
        (5e15, "5,000 TFLOP"),
    ],
)
def test_work_per_sample_has_a_unit_that_fits(count: float, text: str) -> None:
    assert _flops(count) == text


@pytest.mark.parametrize(("width", "jobs"), [(80, False), (160, True)])
def test_a_legend_explains_only_the_columns_in_sight(
    width: int, jobs: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    tenant_table.table([TenantView(name="child", weight=1, parent="org")])
    shown = capsys.readouterr().out
    assert "LENT: devices" in shown and ("QUEUED: jobs" in shown) is jobs


def test_a_legend_is_wrapped_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.legend("WAIT: time in the queue; JCT: completion time from submission")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 40
