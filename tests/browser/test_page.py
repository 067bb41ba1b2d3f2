"""The page as people use it: log in, watch, cancel, look for what is wrong, with a mouse, a keyboard or a phone."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from fairlead.agent.embedded.node_records import read_record
from fairlead.home import Home
from tests.browser.conftest import PHONE, Running, Visit, Visitor
from tests.waiting import until

VIEWS = ("cluster", "queue", "pipelines", "tenants", "events")
WAIT = "while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.1; done"  # until the test has seen enough
TALK = f"echo line 1; echo line 2; {WAIT}; echo line 3; printf 42 > $FAIRLEAD_OUTPUT/answer.txt"


@pytest.fixture(autouse=True)
def nothing_goes_on(platform: Running) -> Iterator[None]:
    """What a failed test had running would keep the next one waiting."""
    yield
    jobs = platform.ask("GET", "/jobs?limit=100")["items"]
    platform.end(*(job["id"] for job in jobs if job["state"] in ("queued", "starting", "running")))


def test_a_wrong_token_opens_nothing_and_says_so(platform: Running, visit: Visitor) -> None:
    page = visit(platform.url).page
    page.goto(platform.url)
    page.get_by_label("Token").fill("fl_nobody_00000000000000000000000000000000")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Invalid token: unknown, expired or revoked").wait_for()
    assert page.get_by_role("navigation").count() == 0
    assert page.get_by_label("Token").get_attribute("aria-invalid") == "true"


def test_a_token_logs_in_and_lies_nowhere_in_the_browser(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.admin)
    assert window.heading() == "Cluster"
    everything = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    kept = window.page.evaluate(everything)
    assert platform.admin not in kept and "fairlead_" not in kept
    (cookie,) = window.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["value"] not in platform.admin
    window.page.reload()  # the session holds
    window.page.locator(".node").first.wait_for()
    window.page.get_by_role("button", name="Log out").click()
    window.page.get_by_label("Token").wait_for()
    window.page.reload()
    window.page.get_by_label("Token").wait_for()


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString", "hasOwnProperty", "nowhere"])
def test_an_address_that_names_what_every_object_has_leaves_a_page_that_goes_on(
    name: str, platform: Running, visit: Visitor
) -> None:
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], "queue")
    page = window.page
    for place in (f"#/{name}", f"#/{name}/x", f"#/{name}/{name}"):
        page.evaluate("(hash) => { location.hash = hash; }", place)
        page.get_by_role("heading", name="Page not found").wait_for()
    for place, heading in ((f"#/job/{name}", name), (f"#/pipeline/{name}", "Pipeline")):
        page.evaluate("(hash) => { location.hash = hash; }", place)
        page.get_by_role("heading", name=heading, level=1).wait_for()
    page.get_by_role("link", name="Cluster", exact=True).click()
    page.locator(".node").first.wait_for()


def test_a_job_is_watched_live_to_its_end(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], "queue")
    job = platform.command("talker", TALK)
    page = window.page
    page.get_by_role("row").filter(has_text="talker").get_by_text("running").wait_for()  # it came and ran by itself
    page.get_by_role("link", name="talker", exact=True).click()
    page.locator(".log .line").filter(has_text="line 2").wait_for()
    platform.tell(job, "go")
    page.locator(".sub .s-succeeded").wait_for()
    page.locator(".log .line").filter(has_text="line 3").wait_for()
    page.get_by_text("complete", exact=True).wait_for()
    assert page.locator(".gantt tbody tr").count() == 1 and page.get_by_text("entitled to").count() >= 1
    with page.expect_download() as download:
        page.get_by_role("link", name="answer.txt").click()
    assert download.value.path().read_text() == "42" and platform.state(job) == "succeeded"


def test_a_training_shows_its_curves_while_it_trains(platform: Running, visit: Visitor) -> None:
    job = platform.train("curves", steps=3000, pause_s=0.05)
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"job/{job}")
    page = window.page
    loss = page.get_by_role("img", name=re.compile("^Loss from"))
    loss.wait_for()
    page.get_by_role("img", name=re.compile("^Throughput is")).wait_for()
    first = loss.get_attribute("aria-label")
    page.wait_for_function("(was) => document.querySelector('.chart')?.ariaLabel !== was", arg=first)  # it moves
    platform.tell(job, "hurry")
    page.locator(".sub .s-succeeded").wait_for()
    page.get_by_role("heading", name="Result").wait_for()
    page.get_by_role("link", name="model.safetensors").wait_for()
    assert "step 3,000 of 3,000" in page.locator(".whole").inner_text()


def test_a_training_shows_its_plan_and_what_it_was_weighed_against(platform: Running, visit: Visitor) -> None:
    job = platform.train("planned", workers="2", steps=60, pause_s=0.0)
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"job/{job}")
    page = window.page
    page.locator(".sub .s-succeeded").wait_for()
    page.get_by_role("heading", name="Parallel plan").wait_for()
    table = page.get_by_role("table", name="Candidates, the chosen one first")
    told = platform.ask("GET", f"/jobs/{job}")["generations"][-1]["plan"]
    names = [row["id"] for row in told["candidates"]]
    assert names[0] == told["id"] and "ddp" in names
    assert [cell.inner_text() for cell in table.locator("tbody td:first-child").all()] == names
    assert told["reason"] in page.locator(".spread").inner_text()
    assert all(row["step_s"] > 0 and row["reason"] for row in told["candidates"])


def test_a_job_is_cancelled_only_when_that_is_confirmed(platform: Running, visit: Visitor) -> None:
    job = platform.command("sleeper", "sleep 86400")
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"job/{job}")
    page = window.page
    page.locator(".sub .s-running").wait_for()
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert platform.state(job) == "running"
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    page.locator(".sub .s-cancelled").wait_for()
    assert platform.state(job) == "cancelled" and page.get_by_role("button", name="Cancel job").count() == 0


def test_a_job_is_submitted_again_as_it_was(platform: Running, visit: Visitor) -> None:
    first = platform.command("again", "echo once", labels={"run": "first"})
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"job/{first}")
    page = window.page
    page.locator(".sub .s-succeeded").wait_for()
    page.get_by_role("button", name="Submit again").click()
    page.get_by_role("dialog").get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"#/job/again-(?!" + first.removeprefix("again-") + ")"))
    page.locator(".sub .s-succeeded").wait_for()
    second = page.url.rpartition("/")[2]
    specs = [platform.ask("GET", f"/jobs/{job}")["spec"] for job in (first, second)]
    assert specs[0] == specs[1]


def test_a_node_is_seen_to_die_and_to_come_back(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.admin)
    page = window.page
    victim = read_record(Home(platform.home), "node-1")
    assert victim is not None
    card = page.locator(".node").filter(has_text="node-1")
    host = psutil.Process(json.loads((platform.home / "run" / "host.pid").read_text())["pid"])
    host.suspend()  # nothing comes back before the page was looked at
    try:
        os.kill(victim.process.pid, signal.SIGKILL)
        card.locator(".s-lost").wait_for()
        assert page.locator(".figure.bad").inner_text().count("1 lost") == 1
    finally:
        host.resume()
    card.locator(".s-ready").wait_for()
    window.go("events")
    page.get_by_role("row").filter(has_text="node-1 is lost").first.wait_for()


def test_an_admin_cordons_a_node_and_takes_it_back(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url)
    window.log_in(platform.admin)
    page = window.page
    card = page.locator(".node").filter(has_text="node-0")
    back = ("Uncordon", "ready")
    for verb, state in (("Cordon", "cordoned"), back, ("Drain", "drained"), back):
        card.get_by_role("button", name="node-0").click()
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        card.locator(f".s-{state}").wait_for()
    assert {node["state"] for node in platform.ask("GET", "/nodes")} == {"ready"}


def test_a_viewer_looks_and_a_tenant_sees_its_own_only(platform: Running, visit: Visitor) -> None:
    theirs = platform.command("secret-plan", "sleep 86400", tenant="text")
    ours = platform.command("open-plan", "sleep 86400", tenant="vision")
    until(lambda: platform.state(theirs) == platform.state(ours) == "running")
    window = visit(platform.url)
    window.log_in(platform.tokens["viewer"])
    page = window.page
    page.locator(".slot").filter(has_text="open-plan").wait_for()
    page.locator(".slot.t-none").wait_for()  # in use, by somebody
    page.get_by_role("button", name="node-0").click()
    names = page.get_by_role("dialog").get_by_role("button").all_inner_texts()
    assert names == ["Close"]
    page.keyboard.press("Escape")
    for view in (*VIEWS, f"job/{ours}"):
        window.go(view)
        window.settled()
        assert "secret-plan" not in page.content() and "text" not in page.locator(".tenant").all_inner_texts()
        assert not {"Cancel job", "Submit again"} & set(page.get_by_role("button").all_inner_texts())
    window.go(f"job/{theirs}")
    page.get_by_role("alert").get_by_text("there is no job").wait_for()
    platform.end(ours, theirs)


def test_what_strangers_write_stays_text(platform: Running, visit: Visitor) -> None:
    evil = "<img src=x onerror=alert(1)>"
    script = f"echo '{evil}'; echo '\\033[31m<script>alert(2)</script>'; : > \"$FAIRLEAD_OUTPUT/{evil}.txt\"; exit 1"
    job = platform.command("hostile", script, labels={"<b>": evil}, env={"X": evil})
    window = visit(platform.url)
    window.log_in(platform.tokens["vision"], f"job/{job}")
    page = window.page
    page.locator(".log .line").filter(has_text=evil).wait_for()
    page.locator(".log .line").filter(has_text="<script>alert(2)</script>").wait_for()
    page.get_by_role("link", name=f"{evil}.txt").wait_for()
    assert page.locator("main img, main script, main b:has(> img)").count() == 0  # nor is there any dialog
    window.go(f"job/{evil}")
    page.get_by_role("heading", name=evil).wait_for()
    for view in ("queue", "events"):
        window.go(f"{view}?name={evil}&text={evil}&tenant={evil}&state={evil}")
        page.get_by_role("heading", level=1).wait_for()
    assert not window.errors
    assert page.evaluate("try { document.body.innerHTML = '<b>x</b>'; 'made' } catch { 'refused' }") == "refused"
    assert "TrustedHTML" in window.errors.pop()  # the browser itself would not let a string become markup


def _told(window: Visit, change: dict[str, Any]) -> None:
    """Have each answer about jobs say something else about all of them."""

    def answer(route: Any) -> None:
        real = route.fetch()
        told = real.json()
        for job in [told, *told.get("items", []), told.get("job", {})]:
            job.update({name: value for name, value in change.items() if name in job})
        route.fulfill(response=real, json=told)

    window.page.route(re.compile(r"/api/v1/jobs(\?|/[^/?]+(/why)?(\?|$))"), answer)


@pytest.mark.parametrize("far_s", [3.8e15, -3.8e15, 1e300])
def test_a_time_beyond_all_calendars_leaves_the_page_as_it_is(far_s: float, platform: Running, visit: Visitor) -> None:
    job = platform.command("far-off", "sleep 86400", workers=2)
    later = platform.command("later", "true", workers=2)
    window = visit(platform.url)
    _told(window, {"expected_start_s": far_s, "started_s": far_s, "sla": {"finish_by_s": far_s}})
    window.log_in(platform.tokens["vision"], "queue")
    window.page.get_by_role("link", name="later", exact=True).click()
    window.page.get_by_role("heading", name="later", level=1).wait_for()
    window.page.get_by_text("Expected start: unknown").wait_for()
    window.page.get_by_text("end by –").wait_for()
    window.page.unroute_all(behavior="ignoreErrors")
    platform.end(job, later)


def test_a_view_that_cannot_be_drawn_leaves_the_rest_of_the_page(platform: Running, visit: Visitor) -> None:
    job = platform.command("broken", "true")
    until(lambda: platform.state(job) == "succeeded")
    window = visit(platform.url)
    _told(window, {"sla": None})
    window.log_in(platform.tokens["vision"], f"job/{job}")
    page = window.page
    page.get_by_role("heading", name="This view cannot be shown", level=1).wait_for()
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("heading", name="This view cannot be shown", level=1).wait_for()
    page.get_by_role("link", name="Cluster", exact=True).click()
    page.locator(".node").first.wait_for()
    page.unroute_all(behavior="ignoreErrors")
    assert window.errors and all("TypeError" in error for error in window.errors)
    window.errors.clear()


def test_everything_is_reached_by_keyboard(platform: Running, visit: Visitor) -> None:
    job = platform.command("by-keys", "sleep 86400")
    until(lambda: platform.state(job) == "running")
    window = visit(platform.url)
    page, press = window.page, window.page.keyboard.press
    page.goto(platform.url)
    page.locator("#token:focus").wait_for()  # the page gives it the focus once it is drawn
    page.keyboard.type(platform.tokens["vision"])
    press("Enter")
    page.locator(".node").first.wait_for()

    def tab_to(name: str, role: str = "link") -> None:
        target = page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]
        for _ in range(40):
            press("Tab")
            focused: Any = page.evaluate_handle("document.activeElement").as_element()
            if target.evaluate("(a, b) => a === b", focused):
                outline = focused.evaluate("(e) => getComputedStyle(e).outlineStyle")
                assert outline == "solid", f"{name} does not show that it has the focus"
                return
        raise AssertionError(f"{name} cannot be reached with Tab")

    tab_to("Skip to content")
    tab_to("Queue")
    press("Enter")
    page.locator("h1:focus", has_text="Queue").wait_for()  # readers of screens are told where they are
    page.get_by_role("row").filter(has_text="by-keys").wait_for()
    tab_to("by-keys")
    press("Enter")
    page.locator("h1:focus", has_text="by-keys").wait_for()  # or it would take the focus from what Tab has reached
    page.locator(".sub .s-running").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "by-keys"  # also when the job has been read
    tab_to("Cancel job", "button")
    press("Enter")
    page.get_by_role("dialog").wait_for()
    press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.textContent") == "Cancel job"
    press("Enter")
    page.get_by_role("dialog").wait_for()
    for _ in range(2):
        press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Cancel the job":
            break
    press("Enter")
    page.locator(".sub .s-cancelled").wait_for()
    assert platform.state(job) == "cancelled"


def test_a_phone_shows_everything_without_sideways_scrolling(platform: Running, visit: Visitor) -> None:
    job = platform.command("pocket", "echo hello")
    until(lambda: platform.state(job) == "succeeded")
    window = visit(platform.url, viewport=PHONE, has_touch=True, is_mobile=True)
    window.log_in(platform.admin)
    page = window.page
    for view in VIEWS:
        page.get_by_role("navigation").get_by_role("link", name=view.capitalize()).tap()
        page.get_by_role("heading", name=view.capitalize(), level=1).wait_for()
        window.settled()
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), view
    window.go("queue?state=ended")
    row = page.get_by_role("row").filter(has_text="pocket").first
    row.get_by_role("link").tap()
    page.get_by_role("heading", name="Result").wait_for()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_dark_and_light_follow_the_machine_until_one_chooses(platform: Running, visit: Visitor) -> None:
    window = visit(platform.url, color_scheme="dark")
    window.log_in(platform.admin)
    page = window.page

    def brightness() -> int:
        return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))

    until(lambda: brightness() < 100)
    page.emulate_media(color_scheme="light")
    until(lambda: brightness() > 600)
    page.get_by_role("button", name="Use the dark theme").click()
    until(lambda: brightness() < 100)
    page.reload()
    page.locator(".node").first.wait_for()
    assert brightness() < 100


def test_a_tenant_below_another_stands_indented_with_what_it_is_guaranteed(platform: Running, visit: Visitor) -> None:
    platform.ask("PATCH", "/tenants/text", json={"parent": "vision", "most": {"cpu": 1}})
    try:
        window = visit(platform.url)
        window.log_in(platform.admin, "tenants")
        table = window.page.get_by_role("region", name="Shares and limits by tenant")
        table.get_by_role("columnheader", name="Maximum").wait_for()
        rows = table.get_by_role("row").all_inner_texts()
        assert "vision" in rows[1] and "text" in rows[2] and "1 cpu" in rows[2]
        places = [table.get_by_role("rowheader").nth(at).locator("> *").first.bounding_box() for at in (0, 1)]
        assert places[0] and places[1] and places[1]["x"] > places[0]["x"] + 10
    finally:
        platform.ask("PATCH", "/tenants/text", json={"parent": None, "most": {}})


@pytest.mark.parametrize("role", ["admin", "vision"])
def test_the_shares_and_the_ledger_are_told(platform: Running, visit: Visitor, role: str) -> None:
    job = platform.command("counted", "sleep 1")
    until(lambda: platform.state(job) == "succeeded")
    window = visit(platform.url)
    window.log_in(platform.admin if role == "admin" else platform.tokens[role], "tenants")
    page = window.page
    page.get_by_role("img", name=re.compile("vision used")).wait_for()
    rows = page.get_by_role("region", name="Shares and limits by tenant").get_by_role("row").all_inner_texts()
    assert len(rows) == (3 if role == "admin" else 2) and "Jain's index" in page.locator(".figures").inner_text()
