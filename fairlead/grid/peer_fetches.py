"""Blocks on their way from other nodes, of one tenant: in threads of their own, while its own thread serves on."""

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
"""How the sessions begin that hold what is being brought; those of workers begin with a job."""
_MOST = 2  # at the same time, of a tenant
_IN_VAIN_S = 0.02  # who asks for what nobody has keeps all nodes busy: not more often than so

log = logging.getLogger("fairlead.grid")

OnFetched = Callable[[Problem | None], None]
"""What is done when a block is here, or nobody has it, or there is no room for it: the problem."""


class Fetches:
    """Used by the tenant's thread alone, which does what is given to ``order``."""

    def __init__(self, store: ArenaStore, peers: Peers, order: Callable[[Callable[[], None]], None]) -> None:
        self._store, self._peers, self._order = store, peers, order
        self._waiting: dict[str, list[OnFetched]] = {}  # by block
        self._queued: deque[str] = deque()
        self._under_way = 0

    def __contains__(self, block: str) -> bool:
        return block in self._waiting

    def fetch(self, block: str, then: OnFetched) -> None:
        """Copy it here, once for all that wait for it; until all have done what they do then, it is pinned."""
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
        """In a thread of its own: it may take as long as another node does."""
        session, problem = f"{PREFIX}{secrets.token_hex(8)}", None
        try:
            with self._store.lock:
                self._store.attach_session(Session(session, os.getpid(), start_ticks(os.getpid())))
            if not self._peers.fetch(self._store, session, block):
                time.sleep(_IN_VAIN_S)
        except Refusal as refusal:
            problem = refusal.problem
        except Exception:
            log.exception("fault %s: a block for %s", secrets.token_hex(4), self._store.tenant)
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
