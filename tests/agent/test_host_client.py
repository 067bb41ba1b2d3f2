"""Who asks the host for something can be stopped at any moment, also in that of the answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec

from fairlead import unix_sockets
from fairlead.agent.embedded.host_client import ask_host
from fairlead.agent.node.messages import Done, Shutdown
from fairlead.home import Home
from tests.agent.platforms import run, until


def test_a_cancellation_is_not_lost_to_an_answer_of_the_same_moment(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()

    async def scene() -> None:
        with unix_sockets.listen(home.run / "host.sock", socket.SOCK_SEQPACKET) as listener:
            for turns in range(8):
                asking = asyncio.create_task(ask_host(home, Shutdown(), preload=False))
                await asyncio.sleep(0)
                with listener.accept()[0] as line:
                    line.setblocking(False)
                    await until(lambda: _heard(line))
                    unix_sockets.send_packet(line, msgspec.json.encode(Done()))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    was_cancelled = asking.cancel()
                    await asyncio.wait([asking])
                    assert asking.cancelled() == was_cancelled, f"after {turns} turns of the loop"

    run(scene())


def _heard(line: socket.socket) -> bool:
    try:
        return bool(line.recv(1000))
    except BlockingIOError:
        return False
