"""The leader's line to a node: whose clock counts, what is closed, and what an error of the machine may end."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead import framing, wire
from fairlead.agent.embedded import node_supervisor as node_keeper
from fairlead.agent.embedded.node_link import NodeGone, NodeLink
from fairlead.agent.embedded.node_shapes import parse_nodes
from fairlead.agent.embedded.node_supervisor import NodeSupervisor, shift_times
from fairlead.agent.protocol import BackendEvent
from fairlead.errors import Unavailable
from fairlead.home import Home
from tests.agent.platforms import run, until

BEHIND_S = 1000.0  # the node's monotonic clock


def keeper(root: Path, emit: Any = None) -> NodeSupervisor:
    (shape,) = parse_nodes("1")
    return NodeSupervisor(Home(root), shape, 1, emit or (lambda event: None))


class Node:
    """The node's end of a line, with a clock of its own."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.ours, self._theirs = socket.socketpair()
        self._late_s = late_s

    async def serve(self) -> None:
        reader, self.writer = await asyncio.open_unix_connection(sock=self._theirs)
        unpacker = framing.Unpacker(wire.Request)
        while data := await reader.read(1 << 16):
            for request in unpacker.feed(data):
                sent_s = self.now_s()
                await asyncio.sleep(self._late_s)
                self.writer.write(framing.pack(wire.Reply(request.id, sent_s=sent_s)))

    @staticmethod
    def now_s() -> float:
        return time.monotonic() - BEHIND_S

    def tell(self, sequence: int, age_s: float, body: Any) -> None:
        event = wire.Event(sequence, 5.0, body, "job", "w0", self.now_s() - age_s)
        self.writer.write(framing.pack(event))


def test_an_event_is_as_old_as_its_nodes_own_clock_says(tmp_path: Path) -> None:
    """The node's wall clock may say anything; its monotonic clock began elsewhere."""

    async def scene() -> None:
        node, heard = Node(), list[BackendEvent]()
        serving = asyncio.create_task(node.serve())
        link = NodeLink(1, *await asyncio.open_unix_connection(sock=node.ours))
        await link.request(wire.Status())
        one = keeper(tmp_path, heard.append)
        one.link = link
        one._listen("one")
        node.tell(1, 60.0, wire.Exited(0))
        node.tell(2, 0.0, wire.Progress(1, 2, 3, steps=[{"step": 2.0, "time_s": 4.0}]))
        await until(lambda: len(heard) == 2)
        exited, progress = heard
        assert abs(time.time() - 60.0 - exited.time_s) < 5.0
        assert abs(progress.body.steps[0]["time_s"] - (progress.time_s - 1.0)) < 1e-3, "moved with the event"
        await link.close()
        serving.cancel()

    run(scene())


def test_the_quickest_answer_sets_the_nodes_clock(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node()
        serving = asyncio.create_task(node.serve())
        link = NodeLink(1, *await asyncio.open_unix_connection(sock=node.ours))
        for late_s in (0.3, 0.0, 0.3):
            node._late_s = late_s
            await link.request(wire.Status())
        age_s = link.age_s(wire.Event(1, 0.0, wire.Exited(0), at_s=node.now_s() - 10.0))
        assert age_s is not None and 9.9 < age_s < 10.2
        assert link.age_s(wire.Event(1, 0.0, wire.Exited(0))) is None, "an older node does not say"
        await link.close()
        serving.cancel()

    run(scene())


def test_the_times_of_one_clock_are_left_alone() -> None:
    progress = wire.Progress(1, 2, 3, steps=[{"step": 2.0, "time_s": 4.0}, {"step": 3.0}])
    assert shift_times(progress, 0.001) is progress
    moved = shift_times(progress, -2.0)
    assert isinstance(moved, wire.Progress)
    assert moved.steps == [{"step": 2.0, "time_s": 2.0}, {"step": 3.0}]


def test_a_line_whose_first_request_fails_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Deaf] = []

    class Deaf:
        closed = False

        async def request(self, body: object, timeout_s: float) -> None:
            raise NodeGone("it hangs")

        async def close(self) -> None:
            self.closed = True

    async def connect(path: Path, epoch: int) -> Deaf:
        opened.append(Deaf())
        return opened[-1]

    monkeypatch.setattr(NodeLink, "connect", connect)
    record = SimpleNamespace(incarnation="one", process=None)
    monkeypatch.setattr(node_keeper, "read_record", lambda home, name: record)
    monkeypatch.setattr(node_keeper.processes, "alive", lambda process: len(opened) < 3)
    one = keeper(tmp_path)
    one.status = wire.NodeStatus("node-0", "one", 1, {}, "cpu", [])
    assert not run(one._reconnect())
    assert len(opened) == 3 and all(line.closed for line in opened)


def test_a_machine_that_cannot_end_a_node_is_told_of_and_the_node_stays_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    async def empty() -> bool:
        return True

    monkeypatch.setattr(node_keeper, "fence", full)
    one = keeper(tmp_path)
    one.link = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setattr(one, "_is_empty", empty)
    with pytest.raises(Unavailable, match=r"node-0 cannot be fenced: .*No space left"):
        run(one.sleep())
    assert not one.asleep and one._wanted.is_set()
