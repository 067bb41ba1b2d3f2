"""A real Chromium before a real platform: what people see, click and type."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import nursery
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def missing(what: str) -> Any:
    if os.environ.get("FAIRLEAD_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")  # while Playwright is there, no other test of this process can run an event loop
def chromium() -> Iterator[Any]:
    """The browser of the distribution; none is downloaded."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        missing("there is no Chromium here: install the Debian package chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("there is no Playwright here: pip install 'fairlead[dev]'")
    with sync_playwright() as playwright:
        # Root may not use the browser's own sandbox; the pages are ours.
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Running:
    """A platform that was started by ``fairlead up``, and may be killed and started again."""

    home: Path
    nodes: str = "2"
    port: int = 0
    url: str = ""
    admin: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    def up(self) -> None:
        arguments = ["up", "--home", str(self.home), "--nodes", self.nodes, "--port", str(self.port), "--detach"]
        done = nursery.fairlead(*arguments, "--json", environment=os.environ)
        assert done.code == 0, done.out + done.err
        told = done.data
        self.url, self.admin = told["url"], told["admin_token"] or self.admin
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """The control plane only, without a word; what it started lives on."""
        process = psutil.Process(json.loads((self.home / "profile.json").read_text())["pid"])
        process.kill()
        process.wait(60)

    def down(self) -> None:
        nursery.fairlead("down", "--home", str(self.home), environment=os.environ)

    def ask(self, method: str, path: str, *, token: str | None = None, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        response = httpx.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=60.0, **more)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def command(self, name: str, script: str, tenant: str = "vision", **fields: Any) -> str:
        """Hand in a shell script, and say its job's id."""
        spec = {"name": name, "tenant": tenant, "command": ["sh", "-c", script], **fields}
        job: str = self.ask("POST", "/jobs", json=spec)["id"]
        return job

    def end(self, *jobs: str) -> None:
        """Cancel what has not ended by itself."""
        for job in jobs:
            headers = {"Authorization": f"Bearer {self.admin}"}
            answer = httpx.post(f"{self.url}/api/v1/jobs/{job}/cancel", headers=headers, timeout=60.0)
            assert answer.is_success or answer.status_code == 409, answer.text

    def tell(self, job: str, word: str) -> None:
        """Make the file that the job's program waits for."""
        output = self.home / "jobs" / job / "output"
        until(output.is_dir)
        (output / word).touch()

    def train(self, name: str, tenant: str = "vision", workers: str = "1", **params: Any) -> str:
        from fairlead.sdk.client import Client

        with Client(self.url, self.admin) as client:
            return client.submit("train.py:training", folder=PROGRAMS, name=name, tenant=tenant, workers=workers,
                                 params=params).id  # fmt: skip

    def state(self, job: str) -> str:
        found: str = self.ask("GET", f"/jobs/{job}")["state"]
        return found


def start(nodes: str = "2") -> Running:
    home = Path(tempfile.mkdtemp(prefix="fairlead-page-"))
    home.chmod(0o755)  # the tenants' own users pass through it
    running = Running(home, nodes)
    try:
        running.up()
        _furnish(running)
    except BaseException:
        put_away(running)
        raise
    return running


def _furnish(running: Running) -> None:
    for name, weight in (("vision", 2), ("text", 1)):
        running.tokens[name] = running.ask("POST", "/tenants", json={"name": name, "weight": weight})["token"]["token"]
    body = {"tenant": "vision", "role": "viewer", "label": "looks only"}
    running.tokens["viewer"] = running.ask("POST", "/tokens", json=body)["token"]


def put_away(running: Running) -> None:
    running.down()
    shutil.rmtree(running.home, ignore_errors=True)


@pytest.fixture(scope="module")
def platform(chromium: Any) -> Iterator[Running]:
    running = start()
    try:
        yield running
    finally:
        put_away(running)


class Visit:
    """One person's browser: their window, and everything that went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**({"viewport": WIDE} | options))
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))

    def _heard(self, message: Any) -> None:
        network = message.text.startswith("Failed to load resource") or "ERR_" in message.text
        if message.type == "error" and not network:  # an answer that is no success is the page's business
            self.errors.append(message.text)

    def log_in(self, token: str, view: str = "cluster") -> None:
        self.page.goto(f"{self.url}/#/{view}")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("main").get_by_role("heading", level=1).wait_for()
        self.page.locator(".l-live").wait_for()

    def go(self, view: str) -> None:
        self.page.goto(f"{self.url}/#/{view}")

    def settled(self) -> None:
        """The view is there with what it shows."""
        self.page.get_by_role("heading", level=1).wait_for()
        self.page.wait_for_function("() => !document.querySelector('.loading')")

    def heading(self) -> str:
        text: str = self.page.get_by_role("heading", level=1).inner_text()
        return text


Visitor = Callable[..., Visit]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visitor]:
    """Opens windows; at the end none of them may have seen an error."""
    opened: list[Visit] = []

    def open_one(url: str, **options: Any) -> Visit:
        opened.append(Visit(chromium, url, **options))
        return opened[-1]

    yield open_one
    errors = [error for each in opened for error in each.errors]
    for each in opened:
        each.context.close()
    assert not errors
