"""Workers and grid processes die at random: no byte is read wrong, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from benchmarks import grid_kills


def test_no_read_is_wrong_and_nothing_leaks_when_workers_and_the_grid_process_are_killed(tmp_path: Path) -> None:
    seen = grid_kills.run(tmp_path, kills=8, seed=3)
    assert seen.reads > 20 and seen.puts > 10
    assert (seen.wrong, seen.pinned, seen.unaccounted) == (0, 0, 0)
    assert not list(tmp_path.iterdir())
