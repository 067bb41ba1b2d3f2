"""Bears processes of the command line: one process loads it once and forks for every command, as nodes do for workers.

Each command is a process of its own, with its own environment, folder and output, that talks to a real platform; what
is saved is that Python, typer and httpx are loaded anew for each of a thousand commands.
"""

from __future__ import annotations

import array
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

MAX_BYTES = 1 << 17  # of a request: the environment above all
WARNINGS = "error::DeprecationWarning:fairlead"


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its one JSON object."""
        return json.loads(self.out)


class Nursery:
    """The process that bears, as seen from the tests."""

    def __init__(self) -> None:
        self._line, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.nursery", str(there.fileno())]
        place, environment = Path(__file__).parents[1], os.environ | {"PYTHONWARNINGS": WARNINGS}
        self._process = subprocess.Popen(
            command, pass_fds=[there.fileno()], cwd=place, env=environment, process_group=0, stdin=subprocess.DEVNULL
        )
        there.close()

    def run(self, words: list[str], environment: Mapping[str, str], cwd: Path, timeout_s: float) -> Done:
        request = json.dumps([words, dict(environment), str(cwd)]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            descriptors = array.array("i", [out.fileno(), err.fileno()])
            self._line.settimeout(timeout_s)
            self._line.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            try:
                answer = self._line.recv(64)
            except TimeoutError:
                self.close()
                raise AssertionError(f"{words} did not end within {timeout_s:g} s: {_text(out)}{_text(err)}") from None
            assert answer, f"the nursery died of {words}"
            return Done(int(answer), _text(out), _text(err))

    def close(self) -> None:
        """End it, and a command that has not ended."""
        self._line.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


_lock = threading.Lock()
_nurseries: list[Nursery] = []  # one at most


def fairlead(*words: str, environment: Mapping[str, str], cwd: Path = Path("/"), timeout_s: float = 150.0) -> Done:
    """Run one command line to its end."""
    with _lock:
        if not _nurseries:
            _nurseries.append(Nursery())
        try:
            return _nurseries[0].run(list(words), environment, cwd, timeout_s)
        except AssertionError:
            _nurseries.clear()
            raise


def close() -> None:
    """End the process that bears, at the end of all tests."""
    while _nurseries:
        _nurseries.pop().close()


# ---------------------------------------------------------------- the process itself


def _serve(line: socket.socket) -> None:
    import fairlead.cli.main
    import fairlead.cli.output
    import fairlead.control.serve
    import fairlead.sdk.client  # noqa: F401 (what verbs import when they are used)

    gc.freeze()
    while True:
        request, ancillary, _, _ = line.recvmsg(MAX_BYTES, socket.CMSG_SPACE(8))
        if not request:
            return
        descriptors = array.array("i", ancillary[0][2])
        if (pid := os.fork()) == 0:
            line.close()
            _live(json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _live(request: tuple[list[str], dict[str, str], str], out: int, err: int) -> NoReturn:
    """The whole life of one command, as the interpreter would begin and end it."""
    from fairlead.cli import main

    words, environment, cwd = request
    code = 70
    try:
        for given, descriptor in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(given, descriptor)
            os.close(given)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        random.seed()
        sys.argv = [main.__file__, *words]
        main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 (the edge of the process)
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
