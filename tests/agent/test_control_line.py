"""The node manager's line to the leader, however much there is to say."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairlead import framing, wire
from fairlead.agent.node import leader_line
from fairlead.agent.node.leader_line import LeaderLine
from fairlead.agent.node.outbox import Outbox
from tests.agent.platforms import run


def test_a_leader_gets_all_that_was_kept_even_if_it_is_more_than_a_backlog(tmp_path: Path) -> None:
    outbox = Outbox()
    for number in range(4):
        outbox.add(0.0, "j", "w0", wire.Raised(error=f"{number}" + "x" * (leader_line._BACKLOG_BYTES // 2)))
    line = LeaderLine(1, lambda request: wire.Reply(request.id), outbox, lambda: None)

    async def scene() -> list[wire.FromNode]:
        path = tmp_path / "line.sock"
        server = await asyncio.start_unix_server(line.serve, path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(framing.pack(wire.Request(1, 1, wire.Status())))
        heard: list[wire.FromNode] = []
        unpacker = framing.Unpacker(wire.FromNode)
        while len(heard) < 5 and (data := await reader.read(1 << 20)):
            heard += unpacker.feed(data)
            if not len(heard) % 2:
                line.push(wire.Event(sequence=0, time_s=0.0, body=wire.Telemetry(0.0, 0)))
        writer.close()
        server.close()
        return heard

    heard = run(scene())
    assert [m.sequence for m in heard if isinstance(m, wire.Event) and m.sequence] == [1, 2, 3, 4]
