"""The verb down: stops a platform and every process that it started."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli import output as show
from fairlead.cli.commands.up import is_answering
from fairlead.cli.options import HomeDir, Json, client
from fairlead.errors import Unavailable
from fairlead.home import Home, default_home

if TYPE_CHECKING:
    from fairlead.sdk.profile import Profile

DOWN_WITHIN_S = 60.0


def down(home: HomeDir = None, as_json: Json = False) -> None:
    """Stop the platform and every process it started. Unfinished jobs resume at the next up."""
    from fairlead.sdk import profile

    folder = (home or default_home()).expanduser().absolute()
    local = profile.read(folder)
    elsewhere = home is None and os.environ.get("FAIRLEAD_URL", "").rstrip("/") not in ("", local.url if local else "")
    if elsewhere:
        client().down()
        _show(as_json, os.environ["FAIRLEAD_URL"])
        return
    if local is None:
        raise Unavailable(f"no platform was started under {folder}", fix="name its folder with --home")
    if profile.alive(local.pid):
        _request_stop(folder, local)
    from fairlead.agent.embedded.leftovers import sweep

    sweep(folder)  # a killed control plane leaves its nodes running
    _show(as_json, str(folder))


def _request_stop(folder: Path, local: Profile) -> None:
    from fairlead.sdk.profile import alive

    within_s = DOWN_WITHIN_S
    try:
        client(folder).down()
    except Unavailable:
        if is_answering(folder):
            raise
        within_s = 3.0  # it stops already, or another program has its process id; sweep checks that
    until = time.monotonic() + within_s
    while alive(local.pid):
        if time.monotonic() > until:
            if within_s < DOWN_WITHIN_S:
                _kill(folder, local.pid)
                return
            raise Unavailable(f"process {local.pid} does not stop", fix=f"see {Home(folder).logs}")
        time.sleep(0.05)


def _kill(folder: Path, pid: int | None) -> None:
    """Kill a control plane that cannot answer because its store is away; otherwise it would restart its nodes."""
    try:
        handle = os.pidfd_open(pid or 0)
    except ProcessLookupError:  # it has just exited
        return
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
        home = arguments[arguments.index("--home") + 1] if "--home" in arguments else str(folder)
        if "up" in arguments and any("fairlead" in word for word in arguments) and home == str(folder):
            signal.pidfd_send_signal(handle, signal.SIGKILL)  # like a crash, which loses no state
            select.select([handle], [], [], DOWN_WITHIN_S)
    finally:
        os.close(handle)


def _show(as_json: bool, what: str) -> None:
    if as_json:
        show.print_json({"down": what})
    else:
        show.line(f"Fairlead is down ({what})")
