"""A pipeline on the page: its graph moves as its stages do, tells more on demand, and can be cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import PHONE, PROGRAMS, Running, Visit, Visitor
from tests.browser.test_accessible import faults
from tests.waiting import until


def run(platform: Running, name: str, **params: Any) -> str:
    from fairlead.sdk.client import Client

    with Client(platform.url, platform.admin) as client:
        what = f"{PROGRAMS / 'graph.py'}:{name}"
        return client.run_pipeline(what, folder=PROGRAMS, tenant="vision", **params).id


def stages(platform: Running, pipeline: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in platform.ask("GET", f"/pipelines/{pipeline}")["stages"]}


def let_go(platform: Running, pipeline: str, stage: str) -> None:
    """The stage ends."""
    until(lambda: stages(platform, pipeline)[stage]["state"] == "running", timeout_s=120.0)
    platform.tell(stages(platform, pipeline)[stage]["job"], "go")


def box(window: Visit, stage: str, state: str | None = None) -> Any:
    wanted = f'[data-stage="{stage}"]' + (f'[data-state="{state}"]' if state else "")
    return window.page.locator(wanted)


@pytest.fixture(scope="module")
def broken(platform: Running) -> str:
    """A pipeline that has failed in one of its branches."""
    pipeline = run(platform, "half_broken")
    until(lambda: platform.ask("GET", f"/pipelines/{pipeline}")["state"] == "failed", timeout_s=120.0)
    return pipeline


def test_a_pipeline_is_watched_live_from_its_first_stage_to_its_end(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], "pipelines")
    page = window.page
    page.get_by_text("No pipelines yet").wait_for()
    pipeline = run(platform, "models")
    page.get_by_role("row").filter(has_text="models").get_by_text("running", exact=True).wait_for()  # it came by itself
    page.get_by_role("link", name="models").click()
    box(window, "load", "running").wait_for()
    assert box(window, "left", "waiting").count() == box(window, "compare", "waiting").count() == 1
    assert page.get_by_role("group", name="4 stages").locator("path.edge").count() == 4

    let_go(platform, pipeline, "load")
    box(window, "load", "succeeded").wait_for()
    for side in ("left", "right"):
        box(window, side, "running").wait_for()  # both at the same time
    for side in ("left", "right"):
        let_go(platform, pipeline, side)
    box(window, "compare", "succeeded").wait_for()
    page.locator(".sub .s-succeeded").first.wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0

    page.get_by_role("main").get_by_role("link", name="Pipelines").click()
    row = page.get_by_role("row").filter(has_text="models")
    row.get_by_text("4 succeeded").wait_for()


def test_a_stage_tells_more_by_click_and_by_keyboard(platform: Running, broken: str, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"pipeline/{broken}")
    page = window.page
    details = page.locator(".stage-details")
    box(window, "load").click()
    details.get_by_text("ndarray 10 x 3 float64").wait_for()
    assert box(window, "load").get_attribute("aria-pressed") == "true"
    box(window, "after-broken").focus()
    page.keyboard.press("Enter")
    details.get_by_role("heading", name="after-broken").wait_for()
    details.get_by_text("skipped: upstream broken failed").wait_for()
    page.keyboard.press("Enter")
    details.wait_for(state="detached")
    page.keyboard.press("Space")
    details.get_by_role("button", name="broken", exact=True).click()  # to what it waited for
    details.get_by_text("ValueError: no good (graph.py:").wait_for()
    details.get_by_role("link").click()
    page.wait_for_url("**/#/job/**")
    page.get_by_role("link", name=broken).click()  # and back
    box(window, "broken", "failed").wait_for()


def test_a_pipeline_is_cancelled_and_a_viewer_cannot(platform: Running, visit: Visitor) -> None:
    pipeline = run(platform, "models")
    looking, window = visit(platform.url), visit(platform.url)
    looking.log_in(platform.tokens["viewer"], f"pipeline/{pipeline}")
    window.log_in(platform.tokens["vision"], f"pipeline/{pipeline}")
    box(looking, "load", "running").wait_for()
    assert looking.page.get_by_role("button", name="Cancel").count() == 0
    window.page.get_by_role("button", name="Cancel").click()
    window.page.get_by_role("dialog").get_by_role("button", name="Cancel the pipeline").click()
    for each in (window, looking):
        box(each, "load", "cancelled").wait_for()
        box(each, "compare", "cancelled").wait_for()
        each.page.locator(".sub .s-cancelled").first.wait_for()
    assert platform.ask("GET", f"/pipelines/{pipeline}")["state"] == "cancelled"


@pytest.mark.parametrize(("scheme", "size"), [("light", None), ("dark", None), ("light", PHONE)])
def test_no_view_of_pipelines_has_a_serious_fault(
    platform: Running, broken: str, visit: Visitor, scheme: str, size: dict[str, int] | None
) -> None:
    window = visit(platform.url, color_scheme=scheme, **({} if size is None else {"viewport": size}))
    window.log_in(platform.admin, "pipelines")
    window.settled()
    window.page.get_by_role("link", name="half-broken").first.wait_for()
    assert faults(window) == [], "the list"
    window.go(f"pipeline/{broken}")
    box(window, "broken", "failed").click()
    assert faults(window) == [], "the graph"
    wide = window.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "the graph scrolls in its own frame, not the page"
