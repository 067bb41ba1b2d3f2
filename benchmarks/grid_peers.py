"""The peers of the grid: Debian's Redis over a unix socket, and Ray's object store in the peers' environment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contest import environment

PROGRAMS = Path(__file__).parent / "programs"
_START_S = 20.0

Times = dict[int, tuple[float, float]]  # size -> seconds of a put, of a get


def redis_program() -> str | None:
    """Where it is; installed from Debian by root when it is missing, and then not run as a service."""
    if shutil.which("redis-server") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "redis-server"]
        subprocess.run(command, check=False, capture_output=True, env={**os.environ, "RUNLEVEL": "1"})
    return shutil.which("redis-server")


def redis_version(program: str) -> str:
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "?")


@contextmanager
def redis(program: str, folder: Path) -> Iterator[socket.socket]:
    """A server of its own, without a disk, and a line to it."""
    path = folder / "redis.sock"
    settings = {"port": "0", "unixsocket": str(path), "save": "", "appendonly": "no", "dir": str(folder),
                "proto-max-bulk-len": "1gb", "daemonize": "no"}  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(path))
            yield line
    finally:
        server.terminate()
        server.wait()


def redis_times(line: socket.socket, sizes: Mapping[int, int]) -> Times:
    """Its own protocol, spoken without a library, into a buffer that is there already: as fast as it can be asked."""
    found = {}
    for size, times in sizes.items():
        data, room = os.urandom(min(size, 1 << 20)) * max(1, size >> 20), memoryview(bytearray(size + 64))
        puts, gets = [], []
        for _ in range(times + 2):
            begun = time.perf_counter()
            line.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % len(data))
            line.sendall(data)
            line.sendall(b"\r\n")
            assert line.recv(64) == b"+OK\r\n"
            puts.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            line.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            whole, got = len(data) + len(b"$%d\r\n" % len(data)) + 2, 0
            while got < whole:
                got += line.recv_into(room[got:])
            gets.append(time.perf_counter() - begun)
        found[size] = statistics.median(puts[2:]), statistics.median(gets[2:])
    return found


def ray_times(sizes: Mapping[int, int]) -> tuple[str, Times]:
    """Its version, and what it measures of itself."""
    python = environment(Path(os.environ.get("FAIRLEAD_PEERS", ".venv-peers")).absolute())
    command = [str(python), str(PROGRAMS / "ray_store.py"), json.dumps(sizes)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    answer = json.loads(said.splitlines()[-1])
    return answer["version"], {int(size): tuple(times) for size, times in answer["sizes"].items()}
