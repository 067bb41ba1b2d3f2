"""Copies of the checkout that tests see in its place: a mutant reaches every process of a test, the checkout none."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

CHECKOUT = Path(__file__).parents[2]
TREES = CHECKOUT / ".mutants" / "trees"
PYTEST = ("-q", "--no-header", "-p", "tests.mutants.plugin")
UNUSED = ("cacheprovider", "schemathesis", "anyio", "xdist")  # plugins that take longer to load than most tests take
# A copy lies over the checkout in a mount namespace of its own, so that each process of a test, however clean its
# environment, imports the copy.
ENTER = """
set -e
if [ -d "$1/.venv" ]; then
    mkdir -p "$0/.venv"
    mount --bind "$1/.venv" "$0/.venv"
fi
mount --rbind "$0" "$1"
cd "$1"
shift
exec "$@"
"""


@dataclass(frozen=True)
class Ran:
    """How a run ended: its exit code (None: the time limit ended it) and the end of what it printed."""

    code: int | None
    said: str


@dataclass
class Tree:
    """One copy of the checkout. Tests that run in it see it at the checkout's own path."""

    place: Path
    _lock: IO[str]
    _changed: dict[Path, bytes] = field(default_factory=dict)
    _servers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @classmethod
    def free(cls) -> Tree:
        """A copy of the checkout as it is now that no other run uses. It is kept, with what Python has compiled."""
        for number in itertools.count():
            place = TREES / str(number)
            place.mkdir(parents=True, exist_ok=True)
            lock = (TREES / f"{number}.lock").open("w")
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tree = cls(place, lock)
                tree._renew()
                return tree
            lock.close()
        raise AssertionError

    def _renew(self) -> None:
        wanted = set(files())
        here = [path for path in self.place.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        for path in here:
            if path.relative_to(self.place).as_posix() not in wanted:
                path.unlink()
        for name in wanted:
            source, target = CHECKOUT / name, self.place / name
            if not target.exists() or _stamp(target) != _stamp(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
                self._forget_compiled(Path(name))

    def write(self, name: Path, text: str) -> None:
        """Another text for a file, until `restore`."""
        self._changed.setdefault(name, (self.place / name).read_bytes())
        (self.place / name).write_text(text)
        self._forget_compiled(name)

    def restore(self) -> None:
        for name, content in self._changed.items():
            (self.place / name).write_bytes(content)
            self._forget_compiled(name)
        self._changed.clear()

    def _forget_compiled(self, name: Path) -> None:
        """Python trusts compiled modules by time in whole seconds and size: two mutants can share both."""
        for compiled in (self.place / name.parent / "__pycache__").glob(f"{name.stem}.*.pyc"):
            compiled.unlink()

    def pytest(self, room: str, arguments: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> Ran:
        """Runs pytest in the tree, its temporary files in a folder that is gone afterwards."""
        scratch = _scratch()
        said = scratch / "said"
        asked = {
            "arguments": [*PYTEST, *(f"-pno:{name}" for name in UNUSED), *arguments],
            "variables": {"TMPDIR": str(scratch), **variables}, "said": str(said), "limit_s": limit_s,
        }  # fmt: skip
        try:
            server = self._server(room)
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
            if not answer:
                raise SystemExit("the process that forks the tests has ended: see what it printed above")
            return Ran(json.loads(answer), said.read_text(errors="replace")[-20_000:] if said.exists() else "")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _server(self, room: str) -> subprocess.Popen[str]:
        if room not in self._servers:
            own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
            enter = ["unshare", *own, "--mount", "sh", "-c", ENTER, str(self.place), str(CHECKOUT)]
            command = [sys.executable, "tests/mutants/fork_server.py", room]
            self._servers[room] = subprocess.Popen(
                [*enter, *command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONHASHSEED": "0"},
            )  # fmt: skip
        return self._servers[room]

    def end_servers(self) -> None:
        """Ends its processes. They would die with the thread that has started them: another one starts its own."""
        for server in self._servers.values():
            server.communicate()
        self._servers.clear()

    def close(self) -> None:
        self.end_servers()
        self._lock.close()


def _scratch() -> Path:
    """A new folder with a short name: tests put sockets far below it, and their paths are limited."""
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            made = Path(tempfile.gettempdir()) / f"f{number}"
            made.mkdir(0o755)
            return made
    raise AssertionError


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def files() -> list[str]:
    """What belongs to the checkout: what git knows and what it would not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, check=True,
    )  # fmt: skip
    return sorted(name for name in listed.stdout.decode().split("\0") if name and (CHECKOUT / name).is_file())
