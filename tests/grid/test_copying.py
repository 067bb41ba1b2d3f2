"""Copies with several cores are the same bytes, and use no more cores than were granted."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fairlead.grid import copying
from fairlead.grid.copying import copy, cores


@pytest.mark.parametrize("size", [0, 1, 4095, (1 << 20) + 1, 16 << 20, (16 << 20) + 4097, 3 * (8 << 20) - 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_byte_arrives(size: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "cores", lambda: threads)
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros(size, np.uint8)
    copy(target.data, source.data)
    assert np.array_equal(target, source)
    assert not [one for one in threading.enumerate() if one.name.startswith("Thread-") and "copyto" in one.name]


@pytest.mark.parametrize(("granted", "there", "used"), [("1", 8, 1), ("2", 8, 2), ("", 2, 2), ("9", 2, 2), ("9", 9, 4)])
def test_no_more_cores_than_were_granted(granted: str, there: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", granted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(there)))
    assert cores() == used
