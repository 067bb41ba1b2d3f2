"""Starts the host process when there is none, and sends it requests."""

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
from fairlead import logbook, unix_sockets, wire
from fairlead.agent.embedded.node_records import read_host
from fairlead.agent.node import processes, sensors
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
    """Environment of the host: workers are forked from it, so it must not contain the platform's secrets."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"PYTHONPATH": str(Path(fairlead.__file__).parent.parent), "OMP_NUM_THREADS": "1"}


async def connect_host(home: Home, *, preload: bool) -> socket.socket:
    """Connect to the host; starts it if need be."""
    deadline = asyncio.get_running_loop().time() + _START_S
    started = False
    while True:
        try:
            line = unix_sockets.connect(home.run / "host.sock", socket.SOCK_SEQPACKET, 0.0)
        except OSError as error:
            if not started:
                await _start_whole(home, preload)
                started = True
            if asyncio.get_running_loop().time() > deadline:
                fix = f"look into {home.logs / 'host.log'}"
                raise Unavailable(f"the host process did not come up within {_START_S:g} s: {error}", fix=fix) from None
            await asyncio.sleep(0.01)
        else:
            return line


async def _start_whole(home: Home, preload: bool) -> None:
    """Start the host; wait for it even when cancelled, so that no host comes up unnoticed."""
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
    """Send one request and return the answer."""
    with await connect_host(home, preload=preload) as line:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(line, msgspec.json.encode(request))
        async with asyncio.timeout(_ANSWER_S):  # not wait_for, which loses a cancellation that arrives with the answer
            data = await loop.sock_recv(line, unix_sockets.PACKET_BYTES)
    if not data:
        raise Unavailable("the host process ended during a request")
    return msgspec.json.decode(data, type=Done)


async def start_node(home: Home, config: NodeConfig, *, preload: bool) -> None:
    """Have the host start a node manager; raises Unavailable with a fix when tenants cannot run on this machine."""
    done = await ask_host(home, StartNode(config), preload=preload)
    if done.problem is not None:
        raise Unavailable(done.problem, fix=done.fix)


async def until_gone(line: socket.socket) -> None:
    """Return when the host has closed the connection."""
    try:
        while await asyncio.get_running_loop().sock_recv(line, 1):
            pass
    except OSError:
        return


def retire_host(home: Home) -> None:
    """End a host that runs other code than this process; its node managers and fork servers live on.

    Also one of the same protocol: it forks the code that it loaded at its start, not what is installed now.
    """
    found = read_host(home)
    if found is None or (found.protocol, found.build) == (wire.PROTOCOL, code_digest()):
        return
    log.info("replacing the host: it runs another version")
    processes.kill(found.process)  # not asked to shut down: it would end its nodes too
    processes.wait_gone(lambda: not processes.alive(found.process), 5.0)
    for name in ("host.pid", "host.sock"):
        (home.run / name).unlink(missing_ok=True)


def end_host(home: Home) -> None:
    """End this home's host: ask it, and kill it if it does not follow in time (it may be loading torch)."""
    found = read_host(home)
    if found is None:
        return
    process = found.process
    try:
        with unix_sockets.connect(home.run / "host.sock", socket.SOCK_SEQPACKET, _FOLLOW_S) as line:
            unix_sockets.send_packet(line, msgspec.json.encode(Shutdown()))
            line.recv(unix_sockets.PACKET_BYTES)
            processes.wait_gone(lambda: not processes.alive(process), 2 * _FOLLOW_S)
    except OSError as error:
        log.info("killing the host, which does not answer: %s", error)
    processes.kill(process)
    processes.wait_gone(lambda: not processes.alive(process), 5.0)
    for name in ("host.pid", "host.sock"):
        (home.run / name).unlink(missing_ok=True)
