"""What lies on disk is measured once for all who ask, behind them, and seldom enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.control.observability import disk_metrics
from fairlead.control.observability.disk_metrics import EVERY_S, PAUSE_FACTOR, DiskGauge, DiskUsage, measure
from fairlead.home import Home

from .stores import run


def test_bytes_are_counted_by_tenant_and_kind_and_links_by_nobody(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for place in ("jobs/a/logs/w0", "jobs/a/output/model", "jobs/b/logs/w0", "jobs/b/strange/x", "jobs/c/logs/w0",
                  "bundles/vision/one", "logs/node"):  # fmt: skip
        path = home.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 8192)
    (home.root / "jobs" / "link").symlink_to(home.root / "jobs" / "a")
    (home.root / "jobs" / "file").write_text("no folder")
    for name in (home.database.name, f"{home.database.name}-wal"):
        (home.root / name).write_bytes(b"x" * 4096)
    found = measure(home, {"a": "vision", "b": "vision"})
    of = {key: size // 8192 for key, size in found.by_tenant.items()}
    assert of == {("vision", "logs"): 2, ("vision", "output"): 1, ("vision", "other"): 1, ("unknown", "logs"): 1,
                  ("vision", "bundles"): 1}  # fmt: skip
    assert found.store == 8192 and found.platform_logs >= 8192 and 0 < found.free < found.size
    assert measure(Home(tmp_path), {}).store is None


def test_the_first_reading_is_waited_for_and_later_ones_are_made_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, taken = [100.0], list[float]()

    def measured(home: Home, tenants: object) -> DiskUsage:
        taken.append(now_s[0])
        now_s[0] += took_s
        return DiskUsage(size=len(taken))

    took_s = 0.1
    monkeypatch.setattr(disk_metrics, "measure", measured)
    monkeypatch.setattr(disk_metrics.time, "monotonic", lambda: now_s[0])
    gauge = DiskGauge(Home(tmp_path))

    async def ask(at_s: float) -> int:
        now_s[0] = at_s
        found = await gauge.read({"job": "vision"})
        if gauge._measuring is not None:
            await asyncio.shield(gauge._measuring)
        return found.size

    assert gauge.due and run(ask(100.0)) == 1 and not gauge.due
    assert run(ask(100.1 + EVERY_S - 0.01)) == 1 and len(taken) == 1
    took_s = 10.0
    assert run(ask(100.1 + EVERY_S)) == 1 and len(taken) == 2, "the one before is told, and a new one made"
    later_s = 110.1 + EVERY_S
    assert run(ask(later_s + EVERY_S)) == 2 and len(taken) == 2, "dear ones are made more seldom"
    assert run(ask(later_s + PAUSE_FACTOR * 10.0)) == 2 and len(taken) == 3
    assert run(ask(now_s[0])) == 3
