"""Promises about how much memory is used when nobody says: never more than this process may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.data import budget
from fairlead.data.options import Options

GIB = 1 << 30


def test_what_the_job_was_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(budget.VARIABLE, str(GIB))
    assert budget.memory_budget() == GIB
    assert Options().memory_bytes == GIB // 8 and budget.spool_bytes() == GIB // 4
    monkeypatch.setenv(budget.VARIABLE, str(1 << 20))
    assert Options().memory_bytes >= 8 << 20, "less than that reads nothing at all"


def test_without_a_limit_it_is_a_part_of_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:memory:/no/such/group\n1:name=systemd:/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    assert budget.memory_budget({}, tmp_path) == 2 * GIB
    assert budget.memory_budget({}, tmp_path / "nothing") == 4 * GIB
