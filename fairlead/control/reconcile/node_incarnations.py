"""Drops event cursors of ended node incarnations, an hour after they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from fairlead.agent.protocol import NodeChange, NodeJoined
from fairlead.control.store import nodes
from fairlead.control.store.engine import Store

KEEP_CURSOR_S = 3600.0
"""An incarnation ends when its node is fenced or joins as another one; no new event of it can come. Its cursor stays
this long all the same: a message that is still on its way must not be taken for a new one."""


class EndedIncarnations:
    """Drops the cursors of incarnations that ended long ago, in memory and in the store."""

    def __init__(self, store: Store, seen: dict[tuple[str, str], int], clock: Callable[[], float]) -> None:
        """``seen`` are the leader's cursors: the newest event taken in, by node and incarnation."""
        self._store, self._seen, self._clock = store, seen, clock
        self._since_s: dict[tuple[str, str], float] = {}

    def node_changed(self, event: NodeChange, present: Iterable[str]) -> None:
        """A node joined, fell asleep or was lost; ``present`` are all existing nodes.

        A node that does not exist any more never reports that it is gone.
        """
        lives = (event.node, event.incarnation) if isinstance(event, NodeJoined) else None
        known = {event.node, *present}
        for place in self._seen:
            if place != lives and (place[0] == event.node or place[0] not in known):
                self._since_s.setdefault(place, self._clock())
        if lives is not None:
            self._since_s.pop(lives, None)

    async def forget(self) -> None:
        """Drop the cursors that are old enough."""
        now_s = self._clock()
        over = [place for place, since_s in self._since_s.items() if not 0.0 <= now_s - since_s < KEEP_CURSOR_S]
        if not over:
            return

        def work(connection: Connection) -> None:
            nodes.drop_cursors(connection, over)

        await self._store.write(work)
        for place in over:
            del self._since_s[place]
            self._seen.pop(place, None)
