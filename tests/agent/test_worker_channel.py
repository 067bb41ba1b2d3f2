"""What a worker sent before its end arrives, whatever its node manager sends to it meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from fairlead import framing, wire
from fairlead.agent.node.channel_writer import MOST_BYTES
from fairlead.agent.node.messages import Ended
from fairlead.agent.node.worker import Worker
from fairlead.agent.zygote.start_message import StartMessage
from fairlead.agent.zygote.worker_bootstrap import WorkerBootstrap
from fairlead.local_wire import PlacedSpec
from tests.agent.platforms import run

STEPS, CALLS = 300, 20_000


class ForkServer:
    """Starts nothing: the test is the worker's process and holds its end of the channel."""

    channel: socket.socket

    def pack(self, bootstrap: WorkerBootstrap) -> StartMessage:
        return StartMessage(None, [])  # type: ignore[arg-type]

    def start(self, message: StartMessage, channel: int, output: int) -> None:
        self.channel = socket.socket(fileno=os.dup(channel))

    def kill(self, key: str, number: int) -> None:
        """There is no process."""


def started(folder: Path, events: list[object]) -> tuple[Worker, ForkServer]:
    def emit(worker: Worker, body: object) -> bool:
        events.append(body)
        return True

    server = ForkServer()
    worker = Worker("job", "w0", 0, {}, server, emit)
    spec = PlacedSpec(
        job="job", tenant="vision", uid=None, run="train:training", command=None, params={}, env={}, venv=None,
        bundle=None, cpu=1.0, folder=str(folder), memory_folder=str(folder / "memory"),
    )  # fmt: skip
    worker.prepare(spec, {}, 2, {})
    worker.submit()
    return worker, server


@pytest.mark.parametrize("calls_unread", [0, 1], ids=["", "calls-unread"])
@pytest.mark.parametrize("read_first", [False, True], ids=["", "read-first"])
def test_a_call_to_a_worker_that_has_just_ended_loses_nothing_of_what_it_sent(
    tmp_path: Path, read_first: bool, calls_unread: int
) -> None:
    """A node manager that was stopped finds both at once: the end of a worker, and a leader's call to leave."""

    async def scene() -> None:
        events: list[object] = []
        worker, server = started(tmp_path, events)
        server.channel.sendall(framing.pack(wire.Joined(generation=2, step=0)))
        while not events:
            await asyncio.sleep(0.01)
        progress = [wire.Progress(2, step, STEPS, steps=[{"step": float(step)}]) for step in range(1, STEPS + 1)]
        server.channel.sendall(b"".join(map(framing.pack, [*progress, wire.Finished(2, STEPS)])))
        for _ in range(calls_unread):  # closing now resets the connection
            worker.tell(wire.Leave(2, exits=["w0"]))
        server.channel.close()
        if read_first:
            await asyncio.sleep(0.05)
        worker.tell(wire.Leave(2, exits=["w0"]))
        worker.tell(wire.Leave(2, exits=["w0"]))
        await worker.ended(Ended("job/w0", 0, None))
        assert [type(each) for each in events] == [wire.Joined, *[wire.Progress] * STEPS, wire.Finished, wire.Exited]

    run(scene())


def test_a_worker_that_reads_late_gets_every_message_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        worker, server = started(tmp_path, [])
        server.channel.setblocking(False)
        await asyncio.sleep(0.05)
        for number in range(CALLS):
            worker.tell(wire.Leave(number))
        unpacker, received = framing.Unpacker(wire.Leave), list[int]()
        while len(received) < CALLS:
            await asyncio.sleep(0.001)
            try:
                received += [each.generation for each in unpacker.feed(server.channel.recv(1 << 20))]
            except BlockingIOError:
                continue
        assert received == list(range(CALLS))
        server.channel.close()
        await worker.ended(Ended("job/w0", 0, None))

    run(scene())


def test_a_worker_that_sends_single_bytes_leaves_others_their_turn(tmp_path: Path) -> None:
    """A descriptor with each byte keeps the kernel from merging them: each is a receive of its own."""
    message = framing.pack(wire.Progress(1, 1, 100, steps=[{"step": 1.0, "loss": 1.0}]))

    async def scene() -> None:
        events: list[object] = []
        worker, server = started(tmp_path, events)
        for byte in message:
            socket.send_fds(server.channel, [bytes([byte])], [server.channel.fileno()])
        turns = 0
        while not events:
            turns += 1
            await asyncio.sleep(0)
        assert turns > len(message) / 2
        server.channel.close()
        await worker.ended(Ended("job/w0", 0, None))

    run(scene())


def test_a_worker_that_never_reads_costs_bounded_memory(tmp_path: Path) -> None:
    async def scene() -> None:
        worker, server = started(tmp_path, [])
        await asyncio.sleep(0.05)
        for number in range(200):
            worker.tell(wire.Leave(number, exits=["w" * 10_000]))
        assert worker._writer is not None and len(worker._writer._unsent) <= MOST_BYTES
        server.channel.close()
        await worker.ended(Ended("job/w0", 0, None))

    run(scene())
