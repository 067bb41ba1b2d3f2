"""Promises of starting a platform: what a home was started with is found again."""

from __future__ import annotations

import math
from pathlib import Path

from fairlead.control.serve import sleep_after, store_url, write_profile
from fairlead.home import Home


def test_a_home_goes_on_with_its_last_store(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert store_url(None, home) == f"sqlite:///{tmp_path}/fairlead.db"
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", "postgresql://me@host/jobs")
    assert store_url(None, home) == "postgresql://me@host/jobs"
    assert store_url("sqlite:////elsewhere.db", home) == "sqlite:////elsewhere.db"
    assert home.profile.stat().st_mode & 0o777 == 0o600


def test_a_home_goes_on_letting_its_nodes_sleep_until_it_is_told_otherwise(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert sleep_after(None, home) == math.inf, "nobody asked for it yet"
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", None, sleep_after_s=sleep_after(90.0, home))
    assert sleep_after(None, home) == 90.0 and sleep_after(5.0, home) == 5.0
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", None, sleep_after_s=sleep_after(math.inf, home))
    assert sleep_after(None, home) == math.inf
