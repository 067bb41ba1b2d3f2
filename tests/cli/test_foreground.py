"""A platform in the foreground, in a real terminal: Ctrl-C ends it whole; and no password is to be read in ps."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .conftest import PATIENCE_S, Terminal


class Window:
    """A terminal window in which one command runs in the foreground."""

    def __init__(self, terminal: Terminal, *words: str) -> None:
        pid, self.master = pty.fork()
        if pid == 0:  # a child in its own session, with this terminal as its own: Ctrl-C goes to all that runs there
            os.execve(sys.executable, [sys.executable, "-m", "fairlead.cli.main", *words], terminal.variables())
        self.pid, self.seen, self.status = pid, "", None

    def until(self, pattern: str) -> re.Match[str]:
        """What was printed, once it matches; raises when the window closes before."""
        end_s = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < end_s and self._read(), f"no {pattern!r} in {self.seen!r}"
        return found

    def ended(self) -> int:
        """The exit code, once it has ended."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], PATIENCE_S)
        assert ready, f"nothing more after {self.seen!r}"
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # nobody is left on the other side
            return False
        self.seen += piece.decode(errors="replace")
        return bool(piece)

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)


def left_of(home: Path) -> list[str]:
    """Processes that have to do with this home."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(home) in words and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(words)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    from fairlead.agent.embedded.leftovers import sweep

    home = tmp_path / "home"
    yield home
    sweep(home)


def test_ctrl_c_ends_everything_in_order_and_the_job_goes_on_with_the_next_start(home: Path) -> None:
    admin = Terminal(home)
    window = Window(admin, "up", "--nodes", "1", "--port", "0")
    try:
        window.until(r"Fairlead is up at (http://\S+)")
        window.until(r"stop: Ctrl-C")
        admin("tenant", "create", "vision")
        job = admin("run", "--tenant", "vision", "--name", "sleeper", "--json", "--", "sleep", "86400").data["id"]
        admin.until(lambda answer: _state(answer) == "running", "why", job)
        window.press_ctrl_c()
        assert window.ended() == 0
        assert "Traceback" not in window.seen
    finally:
        window.close()
    assert left_of(home) == []
    said = admin("queue", code=1)
    assert "no platform answers" in said.err
    again = Window(admin, "up", "--nodes", "1", "--port", "0")
    try:
        again.until(r"Fairlead is up")
        admin.until(lambda answer: _state(answer) == "running", "why", job)
        admin("cancel", job)
        again.press_ctrl_c()
        again.press_ctrl_c()  # an impatient one changes nothing
        assert again.ended() == 0
    finally:
        again.close()
    assert left_of(home) == []


def _state(answer: dict[str, dict[str, str]]) -> str:
    return answer["job"]["state"]


def test_the_password_of_the_store_is_in_nobodys_command_line(home: Path) -> None:
    secret = "open-sesame"
    terminal = Terminal(home)
    url = f"postgresql://me:{secret}@127.0.0.1:1/jobs"  # nobody listens there: it fails, but not at once
    seen: set[str] = set()
    with terminal.start("up", "--detach", "--nodes", "1", "--port", "0", "--store", url) as process:
        while process.poll() is None:
            seen |= {words for words in _others(process) if "fairlead" in words}
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.read() + process.stderr.read()
    assert process.returncode != 0
    assert any("--ready-fd" in words for words in seen), seen  # the one behind was looked at
    own = "fairlead.cli.main up --detach"  # what was typed; a child between its fork and its exec shows it, too
    assert not [words for words in seen if secret in words and own not in words]
    assert secret not in said
    assert secret not in (home / "logs" / "control.log").read_text()


def _others(process: subprocess.Popen[str]) -> list[str]:
    try:
        return [" ".join(child.cmdline()) for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.Error:
        return []
