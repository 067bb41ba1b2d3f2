"""A control plane that dies and comes back: the page says so, goes on by itself, and shows what it missed."""

from __future__ import annotations

from tests.browser.conftest import Running, Visitor


def test_the_page_says_that_it_is_cut_off_and_is_right_after_the_restart(platform: Running, visit: Visitor) -> None:
    script = "echo before; while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.1; done; echo after"
    job = platform.command("survivor", script)
    window, watching = visit(platform.url), visit(platform.url)
    window.log_in(platform.tokens["vision"], "queue?state=all")
    watching.log_in(platform.tokens["vision"], f"job/{job}")
    page, log = window.page, watching.page.locator(".log .line")
    page.get_by_role("row").filter(has_text="survivor").get_by_text("running").wait_for()
    log.filter(has_text="before").wait_for()

    platform.kill()
    page.get_by_role("alert").get_by_text("Disconnected").wait_for()
    page.locator(".l-lost").wait_for()
    assert page.get_by_role("row").filter(has_text="survivor").count() == 1  # what was known stays in sight

    platform.up()  # on the same port; the gang has lived on
    platform.command("newcomer", "true")
    page.locator(".l-live").wait_for()
    page.get_by_role("row").filter(has_text="newcomer").first.wait_for()  # of before the stream was there again
    page.get_by_role("alert").get_by_text("Disconnected").wait_for(state="hidden")

    (platform.home / "jobs" / job / "output" / "go").touch()
    log.filter(has_text="after").wait_for()
    watching.page.locator(".sub .s-succeeded").wait_for()
    assert log.filter(has_text="before").count() == 1  # nothing twice


def test_a_session_that_is_revoked_ends_on_the_page_too(platform: Running, visit: Visitor) -> None:
    made = platform.ask("POST", "/tokens", json={"role": "admin", "label": "to be revoked"})
    window = visit(platform.url)
    window.log_in(made["token"], "events")
    platform.ask("DELETE", f"/tokens/{made['id']}")
    window.go("tenants")
    window.page.get_by_label("Token").wait_for()
