"""Run by a job of a hostile tenant: every way out it can think of.

Each attempt returns what it got hold of, or is refused by an error, or returns None: only the first is an escape. One
that is simply wrong has tried nothing, and says so. It runs with nothing but the standard library, as user code would.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import traceback
from pathlib import Path

from known import ATTEMPTS

for _name in ("on_files", "on_processes", "on_the_kernel", "on_the_network", "on_limits"):  # the last leave things
    importlib.import_module(_name)


def training() -> None:
    """The same from inside a worker that was forked, not executed; there is nothing to train."""
    main()
    raise RuntimeError("all was tried")


def main() -> None:
    found: dict[str, str] = {}
    for name, function in ATTEMPTS.items():
        try:
            got = function()
        except OSError as error:
            found[name] = f"held: {errno.errorcode.get(error.errno or 0, error)}"
        except ValueError as error:  # what Python makes of a limit that may not be raised
            found[name] = f"held: {error}"
        except Exception:  # noqa: BLE001 (no attempt may end the others)
            found[name] = f"BROKEN: {traceback.format_exc(limit=1).splitlines()[-1]}"
        else:
            found[name] = "held: nothing there" if got is None else f"ESCAPED: {got!r}"
        print(f"{name}: {found[name]}", flush=True)
    Path(os.environ["FAIRLEAD_OUTPUT"], "attempts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
