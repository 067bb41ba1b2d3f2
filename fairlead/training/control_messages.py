"""Reads the control plane's messages between two steps; declares what a loop needs of connection and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fairlead import wire
from fairlead.training.channel import log
from fairlead.training.group import Group, PeerLost


class ControlConnection(Protocol):
    """A worker's connection to its node manager, as loops use it."""

    def pending(self) -> bool: ...
    def take(self, timeout_s: float | None = None) -> wire.ToWorker | None: ...
    def put_back(self, message: wire.ToWorker) -> None: ...
    def send(self, message: msgspec.Struct) -> None: ...


class SnapshotStore(Protocol):
    """Where snapshots go, as loops use it."""

    def find(self) -> Sequence[object]: ...
    def due(self) -> bool: ...
    def write(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None: ...
    def write_sharded(
        self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None
    ) -> None: ...
    def sharded_folder(self, step: int) -> Path: ...


def must_follow_join(join: wire.Join, generation: int, *, resumed: bool) -> bool:
    """Whether a rank of this generation follows the Join at once, without having been told to leave first.

    A resumed generation is left in order only: its ranks refuse the call that they gave up waiting for, unless they
    have lost a rank.
    """
    return join.generation > generation and (not resumed or join.breaks >= generation)


def read_messages(channel: ControlConnection, group: Group) -> wire.Leave | None:
    """Read all messages that have arrived; returns the Leave of this generation, if there is one.

    Raises PeerLost when the control plane has ended the generation.
    """
    leave = None
    while channel.pending():
        message = channel.take()
        match message:
            case wire.Leave(generation=generation) if generation == group.generation:
                leave = message
            case wire.Join(generation=generation) if must_follow_join(
                message, group.generation, resumed=group.resumed > 0
            ):
                channel.put_back(message)
                raise PeerLost(f"generation {generation} was called")
            case wire.Join(generation=generation) if generation > group.generation:
                log(f"generation {generation}: call refused, because generation {group.generation} was resumed")
            case wire.Quit():
                channel.put_back(message)
                raise PeerLost("told to quit")
            case _:
                pass  # a repeated message, or one of a generation that is over
    return leave
