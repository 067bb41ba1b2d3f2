"""Run by a job of a hostile tenant: every way out it can think of.

Each attempt returns what it got hold of, or is refused by an error, or returns None: only the first is an escape. One
that is simply wrong has tried nothing, and says so. It runs with nothing but the standard library, as user code would.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from known import ATTEMPTS, MAP

for _name in ("on_files", "on_processes", "on_the_kernel", "on_the_network", "on_limits"):  # the last leave things
    importlib.import_module(_name)


def training() -> None:
    """The same from inside a worker that was forked, not executed; there is nothing to train."""
    main()
    raise RuntimeError("all was tried")


def main() -> None:
    found: dict[str, str] = {}
    wanted = {name: function for name, function in ATTEMPTS.items() if name not in MAP.get("skip", ())}
    for name, function in wanted.items():
        found[name] = in_child(function)
        print(f"{name}: {found[name]}", flush=True)
    Path(os.environ["FAIRLEAD_OUTPUT"], "attempts.json").write_text(json.dumps(found))


def in_child(function: Callable[[], Any]) -> str:
    """What comes of it, in a process of its own: one that got out, into another namespace, is of no use to the next."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, tried(function).encode(errors="replace")[:2000])
        finally:
            os._exit(0)
    os.close(writing)
    said = os.read(reading, 2000).decode()  # once, not to its end: what stays holds it open
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return "held: SIGSYS"
    return said or f"BROKEN: it ended with {status}"


def tried(function: Callable[[], Any]) -> str:
    try:
        got = function()
    except OSError as error:
        return f"held: {errno.errorcode.get(error.errno or 0, error)}"
    except ValueError as error:  # what Python makes of a limit that may not be raised
        return f"held: {error}"
    except Exception:  # noqa: BLE001 (no attempt may end the others)
        return f"BROKEN: {traceback.format_exc(limit=1).splitlines()[-1]}"
    return "held: nothing there" if got is None else f"ESCAPED: {got!r}"


if __name__ == "__main__":
    main()
