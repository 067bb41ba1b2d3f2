"""Forks a process for each run of tests, with libraries loaded already: loading takes longer than most runs.

Started as a script inside a tree. Reads one request per line, as JSON: arguments of pytest, variables, where the
output goes, the time limit. Answers with one line: the exit code, or null if the limit ended the run. Each run has
PID and mount namespaces of its own, so that all that it started ends with it, and an empty /dev/shm.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_PIDS = 0x00020000, 0x20000000
DIE_WITH_PARENT = 1
ALWAYS = (
    "pytest",
    "_pytest.assertion.rewrite",
    "pytest_timeout",
    "hypothesis",
    "numpy",
    "msgspec",
    "pydantic",
    "psutil",
)
LIBRARIES = {
    "control": (
        "sqlalchemy",
        "sqlalchemy.dialects.sqlite",
        "alembic",
        "cryptography.fernet",
        "fastapi",
        "httpx",
        "yaml",
    ),
    "training": (
        "torch",
        "torch._dynamo",
        "torch._functorch.partitioners",
        "torch.distributed",
        "safetensors.torch",
        "pyarrow",
    ),
    "grid": ("cryptography.fernet", "pyarrow"),
    "data": ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "pyarrow.csv", "torch", "duckdb", "PIL.Image", "scipy"),
}


def main() -> None:
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    sys.path[0] = str(Path.cwd())
    for name in (*ALWAYS, *LIBRARIES.get(sys.argv[1], ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_served(json.loads(line))), flush=True)


def _served(asked: dict[str, Any]) -> int | None:
    child = os.fork()
    if child == 0:
        os._exit(_in_namespaces(asked))
    until = time.monotonic() + asked["limit_s"]
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_namespaces(asked: dict[str, Any]) -> int:
    """Waits for the first process of a namespace, which waits for pytest and reaps orphans."""
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    _check(LIBC.unshare(NEW_MOUNTS | NEW_PIDS))
    first = os.fork()
    if first:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    _check(LIBC.mount(b"proc", b"/proc", b"proc", 0, None))
    _check(LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777"))
    tests = os.fork()
    if tests == 0:
        _run(asked)
    while True:
        ended, status = os.wait()
        if ended == tests:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _run(asked: dict[str, Any]) -> None:
    output = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    os.setsid()
    os.environ.update(asked["variables"])
    tempfile.tempdir = None
    import pytest

    os._exit(int(pytest.main(asked["arguments"])))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
