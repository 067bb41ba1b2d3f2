"""Axe finds no serious or critical fault on any view or dialog, dark or light, for an admin, a member and a viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PHONE, WIDE, Running, Visit, Visitor
from tests.waiting import until

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()


def faults(window: Visit) -> list[str]:
    """What axe finds on the view as it is."""
    if not window.page.evaluate("'axe' in window"):
        window.page.evaluate(AXE)
    found: dict[str, Any] = window.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {[node['html'][:160] for node in each['nodes']][:4]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="module")
def shown(platform: Running) -> Iterator[dict[str, str]]:
    """A job in each state that a view draws differently."""
    failed = platform.command("broken", "echo no; exit 3")
    ended = platform.train("done", steps=30, pause_s=0.0)
    until(lambda: platform.state(failed) == "failed" and platform.state(ended) == "succeeded", timeout_s=120.0)
    # With one node out of use nobody gets two devices, however long they wait and whatever they are owed.
    platform.ask("POST", "/nodes/node-1/cordon")
    running = platform.command("busy", "echo yes; sleep 86400")
    waiting = platform.command("later", "true", workers=2, priority=-1)
    until(lambda: platform.state(running) == "running")
    yield {"running": running, "waiting": waiting, "failed": failed, "ended": ended}
    platform.end(waiting, running)
    platform.ask("POST", "/nodes/node-1/uncordon")


@pytest.mark.parametrize(
    ("scheme", "size", "role"),
    [
        ("light", WIDE, "admin"),
        ("dark", WIDE, "admin"),
        ("light", PHONE, "admin"),
        ("light", WIDE, "member"),
        ("dark", WIDE, "viewer"),
    ],
)
def test_no_view_has_a_serious_fault(
    platform: Running, shown: dict[str, str], visit: Visitor, scheme: str, size: dict[str, int], role: str
) -> None:
    window = visit(platform.url, color_scheme=scheme, viewport=size)
    page = window.page
    page.goto(platform.url)
    page.get_by_label("Token").wait_for()
    assert faults(window) == [], "login"
    window.log_in(_token(platform, role))
    jobs = [f"job/{job}" for job in shown.values()]
    for view in ("cluster", "queue?state=all", "pipelines", "tenants", "events", *jobs, "job/none", "nothing"):
        if size is PHONE and view in jobs[1:]:
            continue
        window.go(view)
        window.settled()
        assert faults(window) == [], view
    if role == "admin":
        window.go("cluster")
        page.get_by_role("button", name="node-0").click()
        assert faults(window) == [], "a node's dialog"


def _token(platform: Running, role: str) -> str:
    if role == "admin":
        return platform.admin
    body = {"tenant": "vision", "role": role, "label": f"sees all as {role}"}
    token: str = platform.ask("POST", "/tokens", json=body)["token"]
    return token


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_question_about_a_job_has_a_serious_fault(
    platform: Running, shown: dict[str, str], visit: Visitor, scheme: str
) -> None:
    window = visit(platform.url, color_scheme=scheme)
    window.log_in(_token(platform, "member"), f"job/{shown['running']}")
    window.settled()
    for question in ("Submit again", "Cancel job"):
        window.page.get_by_role("button", name=question).click()
        window.page.get_by_role("dialog").wait_for()
        assert faults(window) == [], question
        window.page.keyboard.press("Escape")
        window.page.get_by_role("dialog").wait_for(state="hidden")
