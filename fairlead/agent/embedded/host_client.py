"""Starts the host when there is none, and asks it for nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

import fairlead
from fairlead import logbook, wire
from fairlead.agent.embedded.node_records import read_host
from fairlead.agent.node import processes, sensors, sockets
from fairlead.agent.node.code_version import code_digest
from fairlead.agent.node.messages import Done, HostRequest, NodeConfig, Shutdown, StartNode
from fairlead.agent.sandbox import sealed_python
from fairlead.errors import Unavailable
from fairlead.home import Home

_KEPT = ("PATH", "LANG", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "FAIRLEAD_DATA", "CUDA_VISIBLE_DEVICES",
         sensors.VARIABLE, *logbook.VARIABLES)  # fmt: skip
_START_S = 30.0
_ANSWER_S = 60.0  # the host may be loading torch
_FOLLOW_S = 3.0

log = logging.getLogger("fairlead.local")


def host_environment() -> dict[str, str]:
    """What the host is started with: workers are forked from it, so it must not know the platform's secrets."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"PYTHONPATH": str(Path(fairlead.__file__).parent.parent), "OMP_NUM_THREADS": "1"}


async def connect_host(home: Home, *, preload: bool) -> socket.socket:
    """A line to the host, started if need be."""
    deadline = asyncio.get_running_loop().time() + _START_S
    started = False
    while True:
        try:
            line = sockets.connect(home.run / "host.sock", socket.SOCK_SEQPACKET)
        except OSError as error:
            if not started:
                await _start_whole(home, preload)
                started = True
            if asyncio.get_running_loop().time() > deadline:
                fix = f"look into {home.logs / 'host.log'}"
                raise Unavailable(f"the host process does not come up: {error}", fix=fix) from None
            await asyncio.sleep(0.01)
        else:
            line.setblocking(False)
            return line


async def _start_whole(home: Home, preload: bool) -> None:
    """Start it, and see it started even when cancelled: one that comes up later would be nobody's."""
    start = asyncio.ensure_future(asyncio.to_thread(_start, home, preload))
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await start
        raise


def _start(home: Home, preload: bool) -> None:
    options = ["--home", str(home.root), *([] if preload else ["--no-preload"])]
    with (home.logs / "host.log").open("ab") as log:
        try:
            with sealed_python.program(sys.executable) as python:
                subprocess.run(
                    [sys.executable, "-P", "-m", "fairlead.agent.zygote.host", *options], executable=python.path,
                    env=host_environment() | python.environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, pass_fds=python.descriptors, start_new_session=True, check=True, timeout=_START_S,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            fix = f"look into {home.logs / 'host.log'}"
            raise Unavailable(f"the host process does not start: {error}", fix=fix) from None


async def ask_host(home: Home, request: HostRequest, *, preload: bool) -> Done:
    """One request, one answer."""
    with await connect_host(home, preload=preload) as line:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(line, msgspec.json.encode(request))
        async with asyncio.timeout(_ANSWER_S):  # not wait_for, which an answer makes deaf to being cancelled
            data = await loop.sock_recv(line, sockets.PACKET_BYTES)
    if not data:
        raise Unavailable("the host process ended while it was asked")
    return msgspec.json.decode(data, type=Done)


async def start_node(home: Home, config: NodeConfig, *, preload: bool) -> None:
    """Have a node manager started; raises with one line and a fix when tenants could not run on this machine."""
    done = await ask_host(home, StartNode(config), preload=preload)
    if done.problem is not None:
        raise Unavailable(done.problem, fix=done.fix)


async def until_gone(line: socket.socket) -> None:
    """Return when the host at the other end is gone."""
    try:
        while await asyncio.get_running_loop().sock_recv(line, 1):
            pass
    except OSError:
        return


def retire_host(home: Home) -> None:
    """End a host of another version, which would fork what is out of date; all that it forked lives on.

    Of the same protocol, too: it forks the code that it loaded when it was started, not what was installed since.
    """
    found = read_host(home)
    if found is None or (found.protocol, found.build) == (wire.PROTOCOL, code_digest()):
        return
    log.info("the host is of another version and is replaced")
    processes.kill(found.process)  # not asked: it would end its nodes with it
    processes.wait_gone(lambda: not processes.alive(found.process), 5.0)
    for name in ("host.pid", "host.sock"):
        (home.run / name).unlink(missing_ok=True)


def end_host(home: Home) -> None:
    """Make sure that no host of this home is alive: ask it, and kill it if it does not follow (it may load torch)."""
    found = read_host(home)
    if found is None:
        return
    process = found.process
    try:
        with sockets.connect(home.run / "host.sock", socket.SOCK_SEQPACKET) as line:
            sockets.send_packet(line, msgspec.json.encode(Shutdown()))
            line.settimeout(_FOLLOW_S)
            line.recv(sockets.PACKET_BYTES)
            processes.wait_gone(lambda: not processes.alive(process), 2 * _FOLLOW_S)
    except OSError as error:
        log.info("the host does not answer and is killed: %s", error)
    processes.kill(process)
    processes.wait_gone(lambda: not processes.alive(process), 5.0)
    for name in ("host.pid", "host.sock"):
        (home.run / name).unlink(missing_ok=True)
