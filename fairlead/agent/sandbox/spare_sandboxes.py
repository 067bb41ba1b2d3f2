"""Builds sandboxes ahead of need, so that later starts of the same kind do not wait for one.

They are built while no worker is being started, after a first worker of their kind. No tenant code has run in a spare
sandbox, and a sandbox is never used for a second worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fairlead.agent.node.messages import Start
from fairlead.agent.sandbox.sandbox import Namespaces, NotBuilt, Sandbox

MOST = 8  # of one node, for all its tenants
MOST_ALIKE = 4
KEEP_S = 600.0  # after the last start of their kind


@dataclass(slots=True)
class _Kind:
    start: Start  # one of them
    arguments: int  # descriptor of bubblewrap's arguments
    used_s: float
    wanted: int = 1  # as many as were in use at once
    built: list[Sandbox] = field(default_factory=list)


class SpareSandboxes:
    """The spare sandboxes of one node."""

    def __init__(self, build: Callable[[Start, int], Sandbox], clock: Callable[[], float] = time.monotonic) -> None:
        self._build, self._clock = build, clock
        self._kinds: dict[str, _Kind] = {}  # by frame, least recently used first

    @property
    def needs_build(self) -> bool:
        """True when a sandbox should be built at the next quiet moment."""
        return any(len(kind.built) < kind.wanted for kind in self._kinds.values())

    def take(self, frame: str) -> tuple[Sandbox, Namespaces] | None:
        """Take a ready sandbox of this kind; None when there is none."""
        kind = self._kinds.get(frame)
        if kind is None:
            return None
        for sandbox in [each for each in kind.built if each.wait(0.0)]:
            kind.built.remove(sandbox)
            try:
                return sandbox, sandbox.namespaces()
            except (OSError, NotBuilt):  # it has ended meanwhile
                sandbox.end()
        return None

    def record_start(self, start: Start, arguments: int, living: Collection[str]) -> None:
        """A worker of this kind starts: expect as many at once as are now alive (``living`` holds their frames)."""
        if not start.frame:
            return
        kind = self._kinds.pop(start.frame, None) or _Kind(start, os.dup(arguments), 0.0)
        kind.used_s = self._clock()
        kind.wanted = min(MOST_ALIKE, max(kind.wanted, sum(frame == start.frame for frame in living)))
        self._kinds[start.frame] = kind
        while len(self._kinds) > 1 and sum(each.wanted for each in self._kinds.values()) > MOST:
            self._forget(next(iter(self._kinds)))

    def build_one(self) -> None:
        """Start building one more sandbox; a kind that fails is dropped."""
        for frame, kind in list(self._kinds.items()):
            if len(kind.built) < kind.wanted:
                try:
                    kind.built.append(self._build_like(kind))
                except (OSError, NotBuilt):  # the next start reports the reason
                    self._forget(frame)
                return

    def _build_like(self, kind: _Kind) -> Sandbox:
        arguments = os.open(f"/proc/self/fd/{kind.arguments}", os.O_RDONLY | os.O_CLOEXEC)  # a fresh file offset
        try:
            return self._build(kind.start, arguments)
        finally:
            os.close(arguments)

    def forget_old(self) -> None:
        """End the spares of kinds that were not started for KEEP_S."""
        for frame, kind in list(self._kinds.items()):
            if self._clock() - kind.used_s > KEEP_S:
                self._forget(frame)

    def _forget(self, frame: str) -> None:
        kind = self._kinds.pop(frame)
        os.close(kind.arguments)
        for sandbox in kind.built:
            sandbox.end()
