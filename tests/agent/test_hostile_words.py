"""Whatever comes over a line to a node manager or the leader, only that line ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import msgspec
import pytest

from fairlead import framing, wire
from fairlead.agent.embedded.node_link import NodeGone, NodeLink
from fairlead.agent.node.leader_line import LeaderLine
from fairlead.agent.node.outbox import Outbox
from fairlead.agent.node.secret_scrubber import Scrubber
from fairlead.agent.node.worker_stream import DEEPEST, WorkerStream
from fairlead.agent.protocol import NodeLost
from tests import hostile
from tests.agent.platforms import platform, run
from tests.agent.test_misbehaving import fake_venv


def nested(deep: int) -> object:
    value: object = "x"
    for number in range(deep):
        value = {"a": value} if number % 2 else [value]
    return value


def say(line: socket.socket, data: bytes) -> None:
    """All of it, if somebody listens for so long, and then hang up."""
    with line, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(data)


async def messages(data: bytes, secrets: dict[str, str] | None = None) -> list[wire.FromWorker]:
    return [message async for message in WorkerStream(Scrubber(secrets or {})).messages(data)]


@pytest.mark.parametrize("deep", [DEEPEST, 300, 900])
def test_what_a_worker_hands_on_is_not_nested_deeper_than_all_can_bear(deep: int) -> None:
    message = wire.Finished(1, 1, value={"stage": nested(deep)})
    with pytest.raises(ValueError, match="too deeply"):
        run(messages(framing.pack(message)))
    assert run(messages(framing.pack(wire.Finished(1, 1, value={"stage": nested(DEEPEST - 3)}))))


@pytest.mark.parametrize(
    "value", [b"bytes", msgspec.msgpack.Ext(5, b"x"), {1: "a"}, [{"a": {2.5: "x"}}]],
    ids=["bytes", "extension", "number-as-key", "deep-number-as-key"],
)  # fmt: skip
def test_what_a_worker_hands_on_is_plain(value: object) -> None:
    with pytest.raises(ValueError, match="a message with"):
        run(messages(framing.pack(wire.Finished(1, 1, value={"stage": value}))))


@pytest.mark.parametrize("secrets", [{}, {"KEY": "x" * 12}], ids=["", "with a secret"])
def test_words_are_heard_or_refused_and_what_is_heard_can_be_kept_and_told(secrets: dict[str, str]) -> None:
    async def scene() -> tuple[int, int]:
        good, bad, outbox = 0, 0, Outbox()
        for line in hostile.lines(wire.FromWorker, 7, 1500):
            try:
                for message in await messages(line, secrets):
                    good += 1
                    event = outbox.add(0.0, "job", "w0", message)
                    again = framing.Unpacker(wire.FromNode).feed(framing.pack(event))
                    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode([event])
                    msgspec.json.encode(event)
            except ValueError:
                bad += 1
            outbox.acknowledge(outbox.last)
        return good, bad

    good, bad = run(scene())
    assert good > 150 and bad > 150


def test_a_link_to_a_node_ends_in_order_whatever_comes_over_it() -> None:
    async def scene() -> None:
        for line in hostile.lines(wire.FromNode, 11, 500):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            link = NodeLink(1, *await asyncio.open_unix_connection(sock=ours))
            link.listen(lambda event: None)
            await asyncio.to_thread(say, theirs, line)
            await asyncio.wait([link.reading], timeout=20.0)
            assert link.reading.done() and link.reading.exception() is None
            with pytest.raises(NodeGone):
                await link.request(wire.Status())

    run(scene())


def test_a_node_manager_answers_its_leader_whatever_else_comes_over_that_line() -> None:
    async def scene() -> None:
        asked: list[wire.Request] = []

        def answer(request: wire.Request) -> wire.Reply:
            asked.append(request)
            return wire.Reply(request.id)

        control = LeaderLine(1, answer, Outbox(), lambda: None)
        packed = msgspec.msgpack.encode(wire.Request(1, 1, wire.Status()))
        status = msgspec.msgpack.encode(wire.Status())
        for body in hostile.lines(wire.ToNode, 13, 500):
            said = packed.replace(status, body[framing.HEADER.size :])
            for data in (framing.HEADER.pack(len(said)) + said, body):
                ours, theirs = socket.socketpair()
                theirs.setblocking(False)
                serving = asyncio.ensure_future(control.serve(*await asyncio.open_unix_connection(sock=theirs)))
                await asyncio.to_thread(say, ours, data)
                await asyncio.wait([serving], timeout=20.0)
                assert serving.done() and serving.exception() is None
        assert len(asked) > 100, "and some of it made sense"

    run(scene())


def test_workers_that_say_anything_at_all_end_alone(home: Path) -> None:
    """Each says what it likes, in and out of turn, until it is ended for it."""
    code = """
sys.path.insert(0, os.environ["HOSTILE"])
from tests import hostile
import contextlib
with contextlib.suppress(OSError):
    for said in hostile.lines(wire.FromWorker, int(os.environ["SEED"]), 500):
        line.sendall(said)
time.sleep(60)
"""

    async def scene() -> None:
        async with platform(home, "2") as here:
            project = str(Path(__file__).parents[2])
            venv = fake_venv(here, code)
            await here.start("quiet", ["node-1"], "sleep", "600")
            for seed in range(4):
                changes = {"run": "x:y", "command": None, "cpu": 0.5, "venv": venv, "folders": [venv, project]}
                environment = {"SEED": str(seed), "HOSTILE": project}
                await here.start(f"job-{seed}", ["node-0"], env=environment, **changes)
                await here.some(wire.Exited, job=f"job-{seed}")
                await here.backend.release(f"job-{seed}", {"w0": "node-0"}, forget_memory=True)
            assert any("invalid message" in said.error for said in here.of(wire.Raised))
            assert here.of(NodeLost) == [] and here.of(wire.Exited, "quiet") == []

    run(scene())
