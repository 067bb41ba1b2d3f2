"""A live platform that has been unfair corrects it, and says so in its events, its report, its metrics and its page."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import Client
from tests.browser.conftest import Visitor
from tests.chaos.crashable import wait_until
from tests.cli.conftest import Terminal


def remember(home: Path) -> None:
    """Half a day in which hog had all that was due to it and more, and meek a ninth."""
    debt = 8e4
    accounts = {"hog": [-debt, 0.0, 0.0, 0.0, 9e4, 9e4], "meek": [debt, 0.0, 0.0, 0.0, 9e4, 1e4]}
    body = json.dumps({"accounts": accounts, "at_s": time.time()})
    [database] = home.glob("*.db")
    with sqlite3.connect(database) as store:
        store.execute("DELETE FROM scheduler_memory")
        store.execute("INSERT INTO scheduler_memory (id, body) VALUES (1, ?)", (body,))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fairness") / "home"
    admin = Terminal(folder)
    try:
        admin("up", "--detach", "--nodes", "2", "--port", "0", "--fairness", "0.8")
        for name in ("hog", "meek"):
            admin("tenant", "create", name)
        admin("down")
        remember(folder)
        admin("up", "--detach", "--port", "0")  # which remembers the threshold
        yield folder
    finally:
        admin("down", code=None)


@pytest.mark.timeout(300)
def test_a_correction_is_seen_everywhere_and_names_nobody_to_strangers(home: Path, visit: Visitor) -> None:
    with Client(home=home, timeout_s=30.0) as client:
        for name in ("hog", "meek"):
            client.submit(["sleep", "60"], tenant=name, name=f"of-{name}")
        wait_until(lambda: "fairness-correcting" in {e.kind for e in client.events(limit=500)}, 60, "it is told")
        told = {e.tenant: e.text for e in client.events(limit=500) if e.kind == "fairness-correcting"}
        assert told.keys() == {None, "hog", "meek"}
        assert "below 0.80" in told[None] and "meek had 11% of what was due" in told[None]
        assert "hog" not in told["meek"] and "meek" not in told["hog"]
        balance = client.report().balance
        assert balance is not None and balance.corrects and balance.lasting < balance.threshold == 0.8
        assert "meek had 11%" in Terminal(home)("report").out
        token = client.create_token("viewer", tenant="hog").token
        with Client(client.url, token) as hog:
            seen = hog.report().balance
            assert seen is not None and seen.corrects and "meek" not in str(seen)
            assert {e.tenant for e in hog.events(limit=500)} <= {"hog"}
        admins = json.loads((home / "profile.json").read_text())["token"]
        answer = httpx.get(f"{client.url}/metrics", headers={"Authorization": f"Bearer {admins}"})
        assert "fairlead_fairness_correcting 1.0" in answer.text
        index = next(line for line in answer.text.splitlines() if line.startswith("fairlead_fairness_of_due_index "))
        assert 0.0 < float(index.split()[1]) <= 1.0  # of the last minutes, in which nobody was wronged
        window = visit(client.url)
        window.log_in(admins)
        window.page.goto(f"{client.url}/#/tenants")
        figures = window.page.locator(".figures")
        figures.get_by_text("Recent fairness").wait_for()
        assert "meek had 11% of what was due" in figures.inner_text()


def test_an_index_or_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    for option, value in (("--fairness", "1.5"), ("--fairness", "much"), ("--half-life", "soon")):
        done = Terminal(tmp_path / "home")("up", "--detach", option, value, code=2)
        assert option in done.err and "fix: write" in done.err
