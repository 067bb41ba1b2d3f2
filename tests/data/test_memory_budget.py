"""Promises about how much memory is used when nobody says: never more than this process may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.data import memory_budget
from fairlead.data.options import Options

GIB = 1 << 30


def test_what_the_job_was_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory_budget.VARIABLE, str(GIB))
    assert memory_budget.memory_budget() == GIB
    assert Options().memory_bytes == GIB // 8 and memory_budget.spool_bytes() == GIB // 4
    monkeypatch.setenv(memory_budget.VARIABLE, str(1 << 20))
    assert Options().memory_bytes >= 8 << 20, "less than that reads nothing at all"


def test_without_a_limit_it_is_a_part_of_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:memory:/no/such/group\n1:name=systemd:/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    assert memory_budget.memory_budget({}, tmp_path) == 2 * GIB
    assert memory_budget.memory_budget({}, tmp_path / "nothing") == 4 * GIB


@pytest.mark.parametrize(
    ("listed", "limits", "budget_bytes"),
    [
        ("4:cpu,memory:/jobs/a\n", {"memory/jobs/a/memory.limit_in_bytes": GIB}, GIB),
        ("4:cpu,memory:/jobs/a\n", {"memory/jobs/a/memory.limit_in_bytes": 1 << 60}, 2 * GIB),
        ("4:cpu,memory:/jobs/a\n", {"memory/jobs/a/memory.limit_in_bytes": (1 << 60) - 1}, (1 << 60) - 1),
        ("0::/jobs/a\n", {"jobs/a/memory.max": GIB, "memory.max": 3 * GIB}, GIB),
        ("0::/jobs/a\n", {"jobs/a/memory.max": 3 * GIB, "memory.max": GIB}, GIB),
        ("0::/jobs/a\n", {"jobs/a/memory.max": "max", "memory.max": "max"}, 2 * GIB),
        ("0::/jobs/a\n", {"memory.max": 5 * GIB}, 5 * GIB),
        ("0::/jobs/a\n", {}, 2 * GIB),
        ("3:cpu:/jobs/a\n", {"jobs/a/memory.max": GIB, "memory/jobs/a/memory.limit_in_bytes": GIB}, 2 * GIB),
        ("3:cpu:/x\n4:memory:/a\n0::/b\n", {"memory/a/memory.limit_in_bytes": 3 * GIB, "b/memory.max": GIB}, GIB),
        ("what is this", {"memory.max": GIB}, 2 * GIB),
    ],
)  # fmt: skip
def test_the_least_limit_of_its_control_group_counts(
    tmp_path: Path, listed: str, limits: dict[str, int | str], budget_bytes: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(listed)
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    8388608 kB\n")
    for name, limit in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{limit}\n")
    assert memory_budget.memory_budget({}, tmp_path / "proc", tmp_path / "groups") == budget_bytes
    assert memory_budget.memory_budget({memory_budget.VARIABLE: "1000"}, tmp_path / "proc", tmp_path / "groups") == 1000
    assert (
        memory_budget.memory_budget({memory_budget.VARIABLE: "a lot"}, tmp_path / "proc", tmp_path / "groups")
        == budget_bytes
    )


@pytest.mark.parametrize(
    ("given_bytes", "reading", "spool"), [(1 << 20, 8, 8), (800 << 20, 100, 200), (1 << 40, 512, 1024)]
)
def test_what_is_read_and_kept_is_a_part_of_it_within_bounds(
    monkeypatch: pytest.MonkeyPatch, given_bytes: int, reading: int, spool: int
) -> None:
    monkeypatch.setenv(memory_budget.VARIABLE, str(given_bytes))
    assert (memory_budget.reading_bytes(), memory_budget.spool_bytes()) == (reading << 20, spool << 20)
