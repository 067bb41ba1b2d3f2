"""A node manager's connection to its fork server; asks the host for a new one when it is lost."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fairlead import unix_sockets
from fairlead.agent.node import cgroups, processes
from fairlead.agent.node.messages import FromForkServer, Hello, Kill, NodeConfig, Supply, ToForkServer
from fairlead.agent.zygote.start_message import StartMessage, pack
from fairlead.agent.zygote.worker_bootstrap import WorkerBootstrap
from fairlead.home import Home

_RETRY_S = 0.25

log = logging.getLogger("fairlead.node")


class ForkServerLine:
    """Sends commands to the current fork server; its messages go to the listener, None when it is lost."""

    def __init__(self, home: Home, config: NodeConfig, listener: Callable[[FromForkServer | None], None]) -> None:
        self._home = home
        self._config = config
        self._listener = listener
        self._line: socket.socket | None = None
        self.hello: Hello | None = None  # of the current one
        self.last: Hello | None = None  # kept after its loss, to clean up its cgroups
        self.process: processes.Process | None = None

    @property
    def warm(self) -> bool:
        return self.hello is not None

    @property
    def group(self) -> cgroups.Group:
        """The node's control group, also after the fork server that made it was lost."""
        return (
            cgroups.Group(0)
            if self.last is None
            else cgroups.Group(self.last.version, tuple(map(Path, self.last.groups)))
        )

    async def run(self) -> None:
        """Keep a fork server connected until cancelled."""
        while True:
            try:
                self._line = unix_sockets.connect(self._home.run / "host.sock", socket.SOCK_SEQPACKET, 0.0)
                unix_sockets.send_packet(self._line, msgspec.json.encode(Supply(self._config)))
                await self._listen(self._line)
            except OSError as error:  # no host: the control plane starts one
                log.debug("no fork server: %s", error)
            finally:
                self.close()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        decoder = msgspec.json.Decoder(FromForkServer)
        while data := await loop.sock_recv(line, unix_sockets.PACKET_BYTES):
            message = decoder.decode(data)
            if isinstance(message, Hello):
                self.hello = self.last = message
                self.process = processes.identify(message.pid)
            self._listener(message)

    def pack(self, bootstrap: WorkerBootstrap) -> StartMessage:
        """The start message for this worker on this node."""
        return pack(bootstrap, self._config)

    def start(self, message: StartMessage, channel: int, output: int) -> None:
        """Have the worker forked, with this channel and output pipe."""
        self._send(message.start, [channel, output, *message.files])

    def kill(self, key: str, number: int) -> None:
        self._send(Kill(key, number))

    def _send(self, message: ToForkServer, descriptors: Sequence[int] = ()) -> None:
        if self._line is None:
            return
        data = msgspec.json.encode(message)
        for _ in range(2):
            try:
                unix_sockets.send_packet(self._line, data, descriptors)
                return
            except BlockingIOError:  # busy forking, for milliseconds
                select.select([], [self._line], [], 1.0)
            except (BrokenPipeError, ConnectionResetError):  # the reader notices the end
                return
        self._give_up()

    def _give_up(self) -> None:
        """Kill a fork server that does not read, and its workers with it."""
        log.error("replacing the fork server, which does not read")
        if self.process is not None:
            processes.kill(self.process)

    def close(self) -> None:
        """Disconnect from the fork server, which then ends with all its workers."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self.hello is not None:
            self.hello = None
            self._listener(None)
