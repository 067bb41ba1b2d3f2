"""The one place that knows how leaders reach nodes: the real backend, keepers and links over the simulation.

``LocalBackend``, ``NodeKeeper`` and ``NodeLink`` are the product's own. What they would ask of the machine (sockets,
files, processes, the host that forks) is answered by the simulated machines.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from fairlead.agent.embedded import backend as backends
from fairlead.agent.embedded import host_client, node_link, node_supervisor
from fairlead.agent.embedded.backend import LocalBackend
from fairlead.agent.embedded.node_link import NodeLink
from fairlead.agent.embedded.node_shapes import Division, NodeShape
from fairlead.agent.node import processes
from fairlead.agent.node.messages import NodeConfig
from fairlead.control.reconcile import rendezvous
from fairlead.home import Home
from tests.storm.simulated_network import TO
from tests.storm.virtual_loop import PROCESS

if TYPE_CHECKING:
    from tests.storm.world import World

CONNECT_S = 3.0
PORTS = 16  # from which rendezvous are drawn: so few that two would soon get the same


class Nowhere(Home):
    """A home folder that is nowhere on the disk."""

    def create(self) -> None: ...
    def create_memory(self) -> None: ...


NOWHERE = Nowhere(Path("/nowhere"))


class _Line:
    """The line to a host that never ends."""

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None: ...


def simulated_backend(shapes: Sequence[NodeShape]) -> LocalBackend:
    """The real backend, for a leader that runs in :func:`machine_room`."""
    return LocalBackend(NOWHERE, shapes, isolation="auto", preload=False)


@contextmanager
def machine_room(world: World) -> Iterator[None]:
    """While it is open, backends find the machines of this world below them."""

    def fence(home: Home, node: str, epoch: int | None) -> None:
        world.machines[node].fence(epoch)

    async def start_node(home: Home, config: NodeConfig, *, preload: bool) -> None:
        await asyncio.sleep(world.chance.uniform(0.1, 1.0))
        world.machines[config.name].start(config.epoch)

    async def connect(path: Path, epoch: int) -> NodeLink:
        machine = world.machines[path.stem]
        await asyncio.sleep(world.chance.uniform(0.0005, 0.005))
        if TO in world.network.weather[machine.name].silent:
            await asyncio.sleep(CONNECT_S)
            raise TimeoutError(f"{machine.name} does not answer")
        manager = machine.manager
        if manager is None or not manager.process.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        line = world.network.connect(PROCESS.get(), machine.name, manager.process)
        manager.serve(line.node_end)
        writer: Any = line.leader_end
        return NodeLink(epoch, line.leader_end.reader, writer)

    async def connect_host(home: Home, *, preload: bool) -> socket.socket:
        found: Any = _Line()
        return found

    async def until_gone(line: object) -> None:
        await asyncio.get_running_loop().create_future()

    def alive(process: processes.Process) -> bool:
        known = world.pids.get(process.pid)
        return known is not None and known.alive

    with ExitStack() as stack:
        for place, name, stand_in in (
            (node_supervisor, "fence", fence), (backends, "fence", fence), (host_client, "start_node", start_node),
            (node_supervisor, "read_record", lambda home, node: world.machines[node].found()),
            (node_supervisor, "read_host", lambda home: None), (processes, "alive", alive),
            (backends, "records", lambda home: []),
            (backends, "load_division", lambda path: Division((), "auto")),
            (backends, "save_division", lambda path, division: None), (host_client, "retire_host", lambda home: None),
            (host_client, "connect_host", connect_host), (host_client, "until_gone", until_gone),
            (node_link.NodeLink, "connect", connect), (rendezvous, "PORTS", PORTS),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(place, name, stand_in))
        yield
