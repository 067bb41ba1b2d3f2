"""Mends taken back one by one, to prove that the storm sees what they mended: ``python -m tests.storm --revert 9``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any
from unittest import mock

from fairlead import wire
from fairlead.agent.embedded import node_supervisor as keepers
from fairlead.agent.embedded.node_link import NodeGone, NodeLink
from fairlead.agent.embedded.node_records import socket_path
from fairlead.agent.embedded.node_supervisor import NodeSupervisor
from fairlead.control.reconcile import gang_executor, next_generation, worker_deaths
from fairlead.control.reconcile import rendezvous as meetings
from fairlead.control.reconcile.gang_sweep import GangSweep
from fairlead.control.reconcile.inbox import Inbox
from fairlead.control.reconcile.loop import Controller
from fairlead.control.reconcile.node_incarnations import EndedIncarnations
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.training.resumption import Resumption

Revert = Callable[[], AbstractContextManager[Any]]


def _ports_drawn_anew() -> AbstractContextManager[Any]:
    """1: each attempt to start a command asks for a port of its own."""
    chance = Random(1)

    def point(generation: Any) -> Rendezvous:
        return Rendezvous(f"generation-{generation.number}", 20_000 + chance.randrange(1000))

    return mock.patch.object(gang_executor, "rendezvous_of", point)


def _acknowledgements_awaited() -> AbstractContextManager[Any]:
    """2: the pass waits for the answer of each node, one after the other."""
    usual = Controller._store_worker_events

    async def stored(self: Controller, batch: Any) -> None:
        await usual(self, batch)
        backend: Any = self.backend
        for node in sorted({event.node for event in batch}):
            await backend._ask(node, wire.Acknowledge(0))

    return mock.patch.object(Controller, "_store_worker_events", stored)


def _every_gang_in_every_pass() -> AbstractContextManager[Any]:
    """3: each pass looks at each gang on its way."""
    usual = GangSweep.jobs_with_work

    async def look(self: GangSweep, busy: Any) -> Any:
        self.sweep_at_once()
        return await usual(self, busy)

    return mock.patch.object(GangSweep, "jobs_with_work", look)


@contextmanager
def _counted_from_what_was_seen() -> Iterator[None]:
    """4: deaths and preemptions are counted on from the job as it was before an await; nothing is read again."""
    do, seen = gang_executor.GangExecutor.execute, dict[str, Any]()

    async def noted(self: Any, action: Any, view: Any) -> None:
        seen[view.job.id] = view.job
        await do(self, action, view)

    def unmoved(connection: Any, job: Any) -> Any:
        return job

    stored = worker_deaths._stored
    with (
        mock.patch.object(gang_executor, "_unchanged_job", unmoved),
        mock.patch.object(gang_executor.GangExecutor, "execute", noted),
        mock.patch.object(worker_deaths, "_stored", lambda connection, job: seen.get(job) or stored(connection, job)),
    ):
        yield


@contextmanager
def _nothing_bounded() -> Iterator[None]:
    """8: the inbox keeps whatever is said, the store the cursors of all node managers that ever were."""

    async def forget(self: EndedIncarnations) -> None: ...

    def put(self: Inbox, event: Any) -> None:
        self._add(event)

    with (
        mock.patch.object(EndedIncarnations, "forget", forget),
        mock.patch.object(Inbox, "put", put),
        mock.patch.object(Inbox, "_taken", lambda self, place, event: None),  # nothing was counted when it came
    ):
        yield


def _nobody_resumes() -> AbstractContextManager[Any]:
    """17: a gang that left waits until somebody leads again."""
    return mock.patch.object(Resumption, "should_resume", lambda self: False)


def _sleep_unguarded() -> AbstractContextManager[Any]:
    """6: an OSError while a node is put to sleep is nobody's."""

    async def end(self: NodeSupervisor) -> None:
        await asyncio.to_thread(keepers.fence, self._home, self.shape.name, self._epoch)

    return mock.patch.object(NodeSupervisor, "_end_processes", end)


def _links_left_open() -> AbstractContextManager[Any]:
    """9: a line whose first request fails is forgotten as it is."""

    async def came_back(self: NodeSupervisor) -> bool:
        loop = asyncio.get_running_loop()
        before, deadline_s = self.status, loop.time() + keepers.FROZEN_S
        while before is not None and loop.time() < deadline_s:
            record = keepers.read_record(self._home, self.shape.name)
            if record is None or record.incarnation != before.incarnation:
                return False
            if not keepers.processes.alive(record.process):
                return False
            try:
                link = await NodeLink.connect(socket_path(self._home, self.shape.name), self._epoch)
                await link.request(wire.Status(), timeout_s=3.0)
            except (OSError, NodeGone):
                await asyncio.sleep(0.005)
                continue
            self.link = link
            self._listen(before.incarnation)
            return True
        return False

    return mock.patch.object(NodeSupervisor, "_reconnect", came_back)


def _ports_in_use_given_out() -> AbstractContextManager[Any]:
    """10: a port is given out without holding it: others may get it, too."""
    usual = meetings.draw_rendezvous

    def draw(job: str, generation: int, created_s: float, taken: Any = (), secret: str = "") -> Rendezvous:
        return usual(job, generation, created_s, (), secret)

    return mock.patch.object(next_generation, "draw_rendezvous", draw)


def _clocks_of_nodes_believed() -> AbstractContextManager[Any]:
    """11: the times of a node are compared with the leader's."""
    return mock.patch.object(NodeLink, "age_s", lambda self, event: None)


REVERTS: dict[int, Revert] = {
    1: _ports_drawn_anew, 2: _acknowledgements_awaited, 3: _every_gang_in_every_pass, 4: _counted_from_what_was_seen,
    6: _sleep_unguarded, 8: _nothing_bounded, 9: _links_left_open, 10: _ports_in_use_given_out,
    11: _clocks_of_nodes_believed, 17: _nobody_resumes,
}  # fmt: skip


@contextmanager
def reverted(fault: int | None) -> Iterator[None]:
    """Run without the mend of this fault."""
    if fault is None:
        yield
        return
    with REVERTS[fault]():
        yield


__all__ = ["REVERTS", "reverted"]
