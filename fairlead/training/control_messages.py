"""What the control plane says between two steps, and the little that a loop needs of its line and its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fairlead import wire
from fairlead.training.channel import log
from fairlead.training.group import Group, PeerLost


class ControlConnection(Protocol):
    """What a loop needs of its line to the node manager."""

    def pending(self) -> bool: ...
    def take(self, timeout_s: float | None = None) -> wire.ToWorker | None: ...
    def put_back(self, message: wire.ToWorker) -> None: ...
    def send(self, message: msgspec.Struct) -> None: ...


class SnapshotStore(Protocol):
    """What a loop needs of the place where snapshots are."""

    def find(self) -> Sequence[object]: ...
    def due(self) -> bool: ...
    def write(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None: ...
    def write_parts(self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None) -> None: ...
    def parts(self, step: int) -> Path: ...


def calls_away(join: wire.Join, generation: int, *, resumed: bool) -> bool:
    """Whether a rank of this generation has to follow this call without being told to leave first.

    A generation that was resumed is left in order: its ranks refuse the call that they gave up waiting for, unless a
    rank of theirs is lost.
    """
    return join.generation > generation and (not resumed or join.breaks >= generation)


def listen(channel: ControlConnection, group: Group) -> wire.Leave | None:
    """Take what has arrived: the call to leave this generation, if it came; raises when it was given up."""
    leave = None
    while channel.pending():
        message = channel.take()
        match message:
            case wire.Leave(generation=generation) if generation == group.generation:
                leave = message
            case wire.Join(generation=generation) if calls_away(message, group.generation, resumed=group.resumed > 0):
                channel.put_back(message)
                raise PeerLost(f"generation {generation} was called")
            case wire.Join(generation=generation) if generation > group.generation:
                log(f"generation {generation}: call refused, generation {group.generation} was resumed")
            case wire.Quit():
                channel.put_back(message)
                raise PeerLost("told to quit")
            case _:
                pass  # of a generation that is over, or said twice
    return leave
