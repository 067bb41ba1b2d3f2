"""Lines between leaders and nodes: ordered like a socket, and slow, cut, silent or doubled as the storm has it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.storm.virtual_loop import Process, VirtualLoop

TO, FROM = "to", "from"
"""The two directions of a line, as seen from the leader."""


@dataclass
class Weather:
    """What the network does to one node's lines now."""

    silent: set[str] = field(default_factory=set)  # directions in which nothing arrives until it clears up
    slow_s: float = 0.0
    doubled: float = 0.0  # the part of all messages that arrive twice
    lose_next: tuple[str, bytes] = ("", b"")  # the next message in this direction is lost, and its line with it: the
    # first that holds these bytes, or, of what comes from the node, the first after a command that holds them
    cut_connects: int = 0  # so many new lines are cut at their first message


class End:
    """One end of a line: what asyncio's reader and writer are to the real one."""

    def __init__(self, network: Network, line: Line, owner: Process, direction: str) -> None:
        self.reader = asyncio.StreamReader(limit=1 << 24, loop=network.loop)
        self.owner, self.direction = owner, direction  # of what is written here
        self.peer: End
        self.closed = self.ended = False
        self.last_s = 0.0
        self.transport = self
        self._network, self._line = network, line
        self.unread = 0

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._network.carry(self._line, self, data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._network.hang_up(self._line, self)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    async def wait_closed(self) -> None: ...

    def end(self) -> None:
        """The other side is gone."""
        if not self.ended:
            self.ended = True
            self.reader.feed_eof()


class Line:
    """One connection."""

    def __init__(self, network: Network, leader: Process, node: str, manager: Process) -> None:
        self.node, self.dead = node, False
        self.leader_end = End(network, self, leader, TO)
        self.node_end = End(network, self, manager, FROM)
        self.leader_end.peer, self.node_end.peer = self.node_end, self.leader_end


class Network:
    """All lines."""

    def __init__(self, loop: VirtualLoop, chance: Random, world: Process) -> None:
        self.loop, self._chance, self._world = loop, chance, world
        self.weather: dict[str, Weather] = {}
        self.lines: list[Line] = []
        self._late: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self.carried = self.lost = self.doubled = 0

    def connect(self, leader: Process, node: str, manager: Process) -> Line:
        line = Line(self, leader, node, manager)
        self.lines = [one for one in self.lines if not (one.leader_end.closed and one.node_end.closed)]
        self.lines.append(line)
        if self.weather[node].cut_connects > 0:
            self.weather[node].cut_connects -= 1
            self.loop.within(self._world, 0.01, self.cut, line)
        return line

    def carry(self, line: Line, end: End, data: bytes) -> None:
        weather = self.weather[line.node]
        self.carried += 1
        direction, holds = weather.lose_next
        if holds in data and end.direction == TO and direction == FROM and holds:
            weather.lose_next = FROM, b""  # its answer
        elif direction == end.direction and holds in data:
            weather.lose_next = "", b""
            self.lost += 1
            self.cut(line)
            return
        delay_s = self._chance.uniform(0.0005, 0.01) + weather.slow_s * self._chance.random()
        end.last_s = max(self.loop.now_s + delay_s, end.last_s)
        end.unread += len(data)
        times = 1
        if weather.doubled and self._chance.random() < weather.doubled:
            times, self.doubled = 2, self.doubled + 1
        for _ in range(times):
            self.loop.within(self._world, end.last_s - self.loop.now_s, self._arrive, line, end, data)

    def _arrive(self, line: Line, end: End, data: bytes | None) -> None:
        late = self._late.get((line.node, end.direction))
        if end.direction in self.weather[line.node].silent or late:
            self._late.setdefault((line.node, end.direction), []).append((line, end, data))
            return
        if line.dead:
            return
        if data is None:
            end.peer.end()
            return
        end.unread = max(0, end.unread - len(data))
        if not end.peer.closed and end.peer.owner.alive and not end.peer.ended:
            end.peer.reader.feed_data(data)

    def hang_up(self, line: Line, end: End) -> None:
        """What was written before still arrives, and then the end."""
        end.last_s = max(self.loop.now_s + 0.0005, end.last_s)
        self.loop.within(self._world, end.last_s - self.loop.now_s, self._arrive, line, end, None)

    def cut(self, line: Line) -> None:
        """What is on its way is lost; both sides hear that the line is gone."""
        line.dead = True
        for end in (line.leader_end, line.node_end):
            self.loop.within(self._world, 0.001, end.end)

    def cut_all(self, node: str) -> None:
        for line in self.lines:
            if line.node == node and not line.dead:
                self.cut(line)

    def died(self, process: Process) -> None:
        """The lines of a process end with it; what it had written still arrives."""
        for line in self.lines:
            for end in (line.leader_end, line.node_end):
                if end.owner is process:
                    end.close()

    def clear_up(self, node: str) -> None:
        """Nothing is held back any more: what was, arrives now, in its order."""
        self.weather[node] = Weather()
        for direction in (TO, FROM):
            for line, end, data in self._late.pop((node, direction), []):
                self._arrive(line, end, data)

    def open_lines(self, leader: Process, node: str) -> int:
        """How many lines this leader holds to a node."""
        return sum(1 for line in self.lines if line.node == node and line.leader_end.owner is leader
                   and not line.leader_end.closed)  # fmt: skip
