"""A platform of the demonstration's own: started and ended by the command line, in a home that nobody else uses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from fairlead.errors import Unavailable
from fairlead.sdk.client import Client
from fairlead.sdk.profile import locate

_UP_S = 120.0
_DOWN_S = 90.0
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


class DemoPlatform:
    """Four virtual nodes of half a core each; nothing of them is left, unless they are kept and all went well."""

    def __init__(self, *, keep: bool = False) -> None:
        self._kept = keep
        self.home = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
        self._up: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # Ctrl-C too: what was started already must go
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept and error is None:
            return
        handlers = [(number, signal.getsignal(number)) for number in _ASKED_TO_END]
        self._end()
        if error is None:  # it goes on, and can be interrupted again
            for number, handler in handlers:
                signal.signal(number, handler)

    def client(self, token: str | None = None) -> Client:
        """A client of the admin, or of whoever holds the token."""
        admin = Client(home=self.home)
        return admin if token is None else Client(url=admin.url, token=token)

    def goodbye(self) -> str:
        """How to look at a platform that is kept, and how to end it."""
        profile = locate(home=self.home)
        return (
            f"The platform stays up. Its page: {profile.url}/\n"
            f"  log in with this token: {profile.token}\n"
            f"  look around:  fairlead --help, with FAIRLEAD_HOME={self.home}\n"
            f"  end it:       fairlead down --home {self.home} && rm -r {self.home}"
        )

    def keep_log(self, folder: Path) -> Path:
        """A copy of what the control plane wrote, for who wants to know why it failed."""
        return Path(shutil.copy(self.home / "logs" / "control.log", folder / "control.log"))

    def _start(self) -> None:
        self._run_up()
        if not all(node.isolation.startswith("sandbox") for node in self.client().nodes()):
            # Its tenants are no strangers: it shows the rest all the same.
            subprocess.run(self._words("down"), check=True, timeout=_DOWN_S, capture_output=True)
            self._run_up("--isolation", "none")

    def _run_up(self, *options: str) -> None:
        each = min(0.5, (os.cpu_count() or 1) / 4)
        words = self._words("up", "--nodes", f"4x{each:g}", "--port", "0", "--detach", *options)
        # A session of its own: Ctrl-C must not end it half way, where nobody could find what it had started.
        self._up = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(), start_new_session=True
        )
        _, said = self._up.communicate(timeout=_UP_S)
        if self._up.returncode != 0:
            raise Unavailable(f"the platform did not start: {' '.join(said.split())}")

    def _end(self) -> None:
        for number in _ASKED_TO_END:  # asked twice, it still takes down all that it started
            signal.signal(number, signal.SIG_IGN)
        if self._up is not None and self._up.poll() is None:
            self._up.communicate(timeout=_UP_S)
        if (self.home / "profile.json").exists():
            down = self._words("down")  # in a session of its own: the keyboard's Ctrl-C goes to everybody in ours
            subprocess.run(down, check=True, timeout=_DOWN_S, capture_output=True, start_new_session=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def _words(self, verb: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "fairlead.cli.main", verb, "--home", str(self.home), *options, "--json"]


def _environment() -> dict[str, str]:
    """Ours, with the data's folder by its full name and without another platform's address."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN")}
    folder = kept.get("FAIRLEAD_DATA")
    return kept | {"FAIRLEAD_DATA": str(Path(folder).absolute())} if folder else kept
