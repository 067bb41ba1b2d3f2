"""Copies a tenant's blocks from other nodes in background threads, while the tenant's own thread keeps serving."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.catalogue import Session
from fairlead.grid.credentials import start_ticks
from fairlead.grid.errors import Refusal
from fairlead.grid.messages import Problem
from fairlead.grid.peers import Peers

PREFIX = "fetch/"
"""Prefix of the session ids that hold blocks during a fetch; those of workers begin with a job."""
_MOST = 2  # concurrent fetches of a tenant
_IN_VAIN_S = 0.02  # pause after a miss: each one costs a request to every node

log = logging.getLogger("fairlead.grid")

OnFetched = Callable[[Problem | None], None]
"""Called when a fetch ends; the problem is None also when no node has the block."""


class Fetches:
    """Used by the tenant's thread alone; ``order`` runs a function in that thread."""

    def __init__(self, store: ArenaStore, peers: Peers, order: Callable[[Callable[[], None]], None]) -> None:
        self._store, self._peers, self._order = store, peers, order
        self._waiting: dict[str, list[OnFetched]] = {}  # by block
        self._queued: deque[str] = deque()
        self._under_way = 0

    def __contains__(self, block: str) -> bool:
        return block in self._waiting

    def fetch(self, block: str, then: OnFetched) -> None:
        """Copy a block to this node, once for all callers; it stays pinned until every callback has run."""
        if block not in self._waiting:
            self._waiting[block] = []
            self._queued.append(block)
        self._waiting[block].append(then)
        self._start()

    def _start(self) -> None:
        while self._queued and self._under_way < _MOST:
            self._under_way += 1
            name = f"fetch-{self._store.tenant}"
            threading.Thread(target=self._fetch, args=(self._queued.popleft(),), name=name, daemon=True).start()

    def _fetch(self, block: str) -> None:
        """Runs in a thread of its own: other nodes may be slow."""
        session, problem = f"{PREFIX}{secrets.token_hex(8)}", None
        try:
            with self._store.lock:
                self._store.attach_session(Session(session, os.getpid(), start_ticks(os.getpid())))
            if not self._peers.fetch(self._store, session, block):
                time.sleep(_IN_VAIN_S)
        except Refusal as refusal:
            problem = refusal.problem
        except Exception:
            log.exception("fault %s: fetching a block for tenant %s", secrets.token_hex(4), self._store.tenant)
        finally:
            self._order(partial(self._done, block, session, problem))

    def _done(self, block: str, session: str, problem: Problem | None) -> None:
        self._under_way -= 1
        self._start()
        try:
            for then in self._waiting.pop(block, []):
                then(problem)
        finally:
            with self._store.lock:
                self._store.end_session(session)
