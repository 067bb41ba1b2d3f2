"""Starts and ends the demonstration's platform, through the command line, in a temporary home."""

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
_TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DemoPlatform:
    """Four virtual nodes of half a core each. Removed at the end, unless ``keep`` is set and all went well."""

    def __init__(self, *, keep: bool = False) -> None:
        self._kept = keep
        self.home = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
        self._up: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # also Ctrl-C: end what was started already
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept and error is None:
            return
        handlers = [(number, signal.getsignal(number)) for number in _TERMINATION_SIGNALS]
        self._end()
        if error is None:  # the program continues and may be interrupted again
            for number, handler in handlers:
                signal.signal(number, handler)

    def client(self, token: str | None = None) -> Client:
        """A client with the admin's token, or with the given one."""
        admin = Client(home=self.home)
        return admin if token is None else Client(url=admin.url, token=token)

    def instructions(self) -> str:
        """How to use the platform that stays up, and how to end it."""
        profile = locate(home=self.home)
        return (
            f"The platform stays up. Web page: {profile.url}/\n"
            f"  token to log in:  {profile.token}\n"
            f"  command line:     export FAIRLEAD_HOME={self.home}; fairlead queue --all\n"
            f"  to end it:        fairlead down --home {self.home} && rm -r {self.home}"
        )

    def keep_log(self, folder: Path) -> Path:
        """Copy the control plane's log into ``folder`` and return its path."""
        return Path(shutil.copy(self.home / "logs" / "control.log", folder / "control.log"))

    def _start(self) -> None:
        self._run_up()
        if not all(node.isolation.startswith("sandbox") for node in self.client().nodes()):
            # No sandbox on this machine. The three tenants trust each other, so run without isolation.
            subprocess.run(self._command("down"), check=True, timeout=_DOWN_S, capture_output=True)
            self._run_up("--isolation", "none")

    def _run_up(self, *options: str) -> None:
        each = min(0.5, (os.cpu_count() or 1) / 4)
        words = self._command("up", "--nodes", f"4x{each:g}", "--port", "0", "--detach", *options)
        # In its own session, so that Ctrl-C does not interrupt it half-way and leave unknown processes.
        self._up = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(), start_new_session=True
        )
        _, said = self._up.communicate(timeout=_UP_S)
        if self._up.returncode != 0:
            raise Unavailable(f"the platform did not start: {' '.join(said.split())}")

    def _end(self) -> None:
        for number in _TERMINATION_SIGNALS:  # a second signal must not interrupt the clean-up
            signal.signal(number, signal.SIG_IGN)
        if self._up is not None and self._up.poll() is None:
            self._up.communicate(timeout=_UP_S)
        if (self.home / "profile.json").exists():
            down = self._command("down")  # in its own session, because Ctrl-C reaches every process in ours
            subprocess.run(down, check=True, timeout=_DOWN_S, capture_output=True, start_new_session=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def _command(self, verb: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "fairlead.cli.main", verb, "--home", str(self.home), *options, "--json"]


def _environment() -> dict[str, str]:
    """This process's environment with an absolute FAIRLEAD_DATA and without another platform's address."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN")}
    folder = kept.get("FAIRLEAD_DATA")
    return kept | {"FAIRLEAD_DATA": str(Path(folder).absolute())} if folder else kept
