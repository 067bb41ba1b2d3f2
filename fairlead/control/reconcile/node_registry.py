"""Tracks all nodes: joined, asleep or lost according to the backend, cordoned or draining according to operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import Backend, NodeAction, NodeChange, NodeJoined, NodeLost, NodeSlept
from fairlead.cluster import Node, NodeState
from fairlead.control.reconcile.data_locality import bytes_held
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.internal_errors import guard_errors
from fairlead.control.store import events, generations, jobs, node_sleep, nodes
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError, LostLeadership
from fairlead.grid.values import snapshot_job
from fairlead.scheduling.state import Sleep, Wake

CATCH_UP_S = 10.0
"""How long gangs wait until a node has delivered the events it kept while there was no leader; then they are judged
anyway."""

_UNNEEDED_S = 86_400.0  # how long nodes that come back are told to drop unneeded blocks
_MOST_UNNEEDED = 10_000  # labels remembered as unneeded: tenants drop as much as they like

log = structlog.get_logger()


class NodeRegistry:
    """The nodes as the leader knows them, with their last telemetry."""

    def __init__(
        self, store: Store, backend: Backend, known: GangRegistry, clock: Callable[[], float],
        sleep_after_s: float | None = None,
    ) -> None:  # fmt: skip
        self._store, self._backend, self._known, self._clock = store, backend, known, clock
        self.sleep_after_s = sleep_after_s  # idle time after which nodes may sleep; None: never
        self._sleep_reasons: dict[str, str] = {}  # of nodes that were told to sleep
        self.nodes: dict[str, Node] = {}
        self.joined: dict[str, NodeJoined] = {}
        self.telemetry: dict[str, wire.Telemetry] = {}
        self._states: Mapping[str, NodeState] = {}  # as set by operators, when last read
        self._asleep: set[str] = set()
        self._lost: set[str] = set()
        self._catching_up: dict[str, tuple[NodeJoined, float]] = {}  # nodes with kept events to deliver, since when
        self._discarding: asyncio.Future[None] | None = None
        self._commands: set[asyncio.Task[None]] = set()  # under way
        self._unneeded: dict[tuple[str, str], float] = {}  # tenants and labels of blocks, and since when

    @property
    def reachable(self) -> frozenset[str]:
        """Nodes on which workers can be started now."""
        return frozenset(name for name in self.joined if name not in self.nodes or not self.nodes[name].outdated)

    @property
    def asleep(self) -> frozenset[str]:
        """Nodes that have to be woken first."""
        return frozenset(self._asleep)

    @property
    def uncertain(self) -> frozenset[str]:
        """Nodes whose state, or how workers there ended, is not known yet: their gangs are left alone."""
        now_s = self._clock()
        unheard = {name for name, (_, since_s) in self._catching_up.items() if 0.0 <= now_s - since_s < CATCH_UP_S}
        return (frozenset(self.nodes) - self.joined.keys() - self._asleep - self._lost) | unheard

    def events_taken_in(self, node: str, incarnation: str, sequence: int) -> bool:
        """Events of a node up to this one were taken in; returns whether its gangs were left alone until now."""
        joined, _ = self._catching_up.get(node, (None, 0.0))
        if joined is None or joined.incarnation != incarnation or sequence < joined.sequence:
            return False
        del self._catching_up[node]
        return True

    def resident(self, tenant: str, labels: Iterable[str]) -> dict[str, int]:
        """Bytes under these labels that each node holds in memory, according to its last telemetry."""
        return bytes_held({node: said.resident for node, said in self.telemetry.items()}, tenant, labels)

    async def refresh(self) -> None:
        """Read the nodes again, with the states set by operators and their temperature."""
        self._states = await self._store.read(nodes.states)
        await self.refresh_from_backend()

    async def refresh_from_backend(self) -> None:
        """The same without the store: only the leader writes these states, and refreshes when it does."""
        states = self._states
        inventory = await self._backend.inventory()
        fresh = {}
        for node in inventory.nodes:
            there = node.name in self.joined or node.name in self._asleep
            state = states.get(node.name, NodeState.READY) if there else NodeState.LOST
            said = self.telemetry.get(node.name)
            warmth = said.temperature_c if said is not None else None
            fresh[node.name] = replace(node, state=state, asleep=node.name in self._asleep, temperature_c=warmth)
        self._known.resident = {name: said.resident for name, said in self.telemetry.items()}
        self.nodes = fresh  # replaced as a whole: threads of the store read it, too

    async def apply_change(self, event: NodeChange) -> None:
        """A node joined, fell asleep or was lost: update memory and store."""
        name, woken_in_s = event.node, None
        match event:
            case NodeJoined():
                woken_in_s = event.woken_in_s
                if any(status.phase == "gone" for status in event.workers):
                    self._catching_up[name] = event, self._clock()
                self.joined[name] = event
                await self._adopt(event)
                kind, text = "node-joined", f"{name} joined"
                if woken_in_s is not None:
                    kind, text = "node-woke", f"{name} is awake again after {woken_in_s:.1f} s"
            case NodeSlept():
                kind, text = "node-slept", self._sleep_reasons.get(name, f"{name} sleeps")
            case NodeLost():
                self._forget_workers(name)
                kind, text = "node-lost", f"{name} is lost: {event.why}"
        self._change_group(event)
        await self.refresh()
        now_s = self._clock()

        def work(connection: Connection) -> None:
            events.append(connection, time_s=now_s, kind=kind, text=text, node=name)
            if isinstance(event, NodeSlept):
                node_sleep.begin(connection, name, now_s)
            else:
                node_sleep.end(connection, name, now_s, woken_in_s)

        await self._store.write(work)

    def _change_group(self, event: NodeChange) -> None:
        """Move the node to another of the three groups."""
        for group in (self._asleep, self._lost):
            group.discard(event.node)
        if isinstance(event, NodeJoined):
            return
        self.joined.pop(event.node, None)
        self._catching_up.pop(event.node, None)
        self.telemetry.pop(event.node, None)
        (self._asleep if isinstance(event, NodeSlept) else self._lost).add(event.node)

    def apply_sleep_decisions(self, told: Iterable[Sleep | Wake]) -> None:
        """Put unneeded nodes to sleep. A node to be woken is woken for the gang that was seated there."""
        for one in told:
            held = any(fact.node == one.node for facts in self._known.workers.values() for fact in facts.values())
            if isinstance(one, Sleep) and one.node in self.joined and not held:
                self._sleep_reasons[one.node] = one.reason.text
                command = self._backend.node(one.node, NodeAction.SLEEP)
                self._command_in_background(command, "a node could not be put to sleep", one.node)

    async def drop_unneeded_data(self) -> None:
        """Make nodes drop the state of jobs that ended elsewhere, or while they were unreachable."""
        await self._discard(only_reported=True)
        there = {(node, job) for node, said in self.telemetry.items() for job in _jobs_with_state(said.resident)}
        if not there:
            return

        wanted = {job for _, job in there}
        over = await self._store.read(lambda connection: jobs.ended_among(connection, wanted))
        for node, job in sorted(there):
            if job in over and not self._known.workers.get(job) and node in self.joined:
                log.info("a node drops the state of a job that has ended", node=node, job=job)
                self._command_in_background(
                    self._backend.forget(job, node), "a node could not drop the state of a job", node
                )

    def discard(self, tenant: str, labels: Iterable[str]) -> None:
        """Make all nodes drop the blocks of these labels; blocks that are open there go when they are closed."""
        self._unneeded |= {(tenant, label): self._clock() for label in labels}
        for oldest in [*self._unneeded][:-_MOST_UNNEEDED]:
            del self._unneeded[oldest]
        self._discarding = asyncio.ensure_future(self._discard(only_reported=False))  # the caller waits for no node

    async def _discard(self, *, only_reported: bool) -> None:
        """On all nodes, or once more on those that reported that they still hold some."""
        over_s = self._clock() - _UNNEEDED_S
        self._unneeded = {one: since_s for one, since_s in self._unneeded.items() if since_s > over_s}
        wanted: dict[tuple[str, str], list[str]] = {}
        for node in self.reachable if self._unneeded else ():
            there = self.telemetry[node].resident if node in self.telemetry else {}
            for tenant, label in self._unneeded_among(there) if only_reported else sorted(self._unneeded):
                wanted.setdefault((node, tenant), []).append(label)
        asking = (self._backend.discard(tenant, labels, node) for (node, tenant), labels in wanted.items())
        for failed in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(failed, LostLeadership) and only_reported:
                raise failed
            if isinstance(failed, FairleadError):  # it will be told again
                log.warning("a node could not be told which data was dropped", error=str(failed))
            elif failed is not None:
                raise failed

    def _unneeded_among(self, there: Iterable[str]) -> list[tuple[str, str]]:
        """The unneeded blocks among those that a node reports."""
        split = (name.partition("/") for name in sorted(there))
        return [(tenant, label) for tenant, _, label in split if (tenant, label) in self._unneeded]

    def _command_in_background(self, command: Coroutine[Any, Any, None], trouble: str, node: str) -> None:
        """Command a node without waiting: a silent node must not delay a pass, nor may its error end the leader.

        Whatever requested a failed command requests it again, as long as it is needed.
        """

        async def work() -> None:
            with guard_errors(trouble, node=node):
                try:
                    await command
                except FairleadError as error:  # the next write to the store notices another leader
                    log.warning(trouble, node=node, error=str(error))

        task = asyncio.create_task(work())
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    def close(self) -> None:
        """Cancel the commands that are under way."""
        for task in self._commands:
            task.cancel()

    def _forget_workers(self, node: str) -> None:
        for workers in self._known.workers.values():
            for worker, fact in workers.items():
                if fact.node == node:
                    workers[worker] = replace(fact, exited=True)

    async def _adopt(self, event: NodeJoined) -> None:
        """Take over the workers that belong to a job on its way; end all others."""
        there = {status.job for status in event.workers}
        live = await self._store.read(lambda connection: generations.live_by_job(connection, there))
        strays: dict[str, dict[str, str]] = {}
        for status in event.workers:
            current = live.get(status.job, [])
            wanted = {m.worker for generation in current for m in generation.members}
            unreadable = any(not generation.members for generation in current)  # the quarantine decides about that job
            if status.worker in wanted or unreadable:
                self._known.workers_of(status.job)[status.worker] = adopted_worker(event.node, status, self._clock())
                if status.phase == "joined":
                    self._known.record_resume(status.job, status.generation)
                self._known.cpu.adopt(status.job, status.worker)
            else:
                strays.setdefault(status.job, {})[status.worker] = event.node
        for job, workers in strays.items():
            log.info("ending workers that no job needs", job=job, workers=sorted(workers))
            ended = self._backend.release(job, workers, forget_memory=True)
            self._command_in_background(ended, "workers that no job needs could not be ended", event.node)


def adopted_worker(node: str, status: wire.WorkerStatus, now_s: float) -> WorkerFact:
    """The fact of a worker from what its node reports when it joins.

    An ended worker's own last event says more, unless a former leader has stored that already.
    """
    gone, ago_s = status.phase == "gone", status.finished_ago_s
    finished_s = None if ago_s is None else now_s - ago_s
    if not gone:
        return WorkerFact(node, status.phase, status.generation, status.device, finished_s=finished_s)
    phase, cause = ("left", "unknown") if finished_s is None else ("finished", None)
    return WorkerFact(
        node, phase, status.generation, status.device, exited=True, cause=cause, finished_s=finished_s
    )  # fmt: skip


def _jobs_with_state(resident: Iterable[str]) -> set[str]:
    """The jobs whose snapshots lie in a node's grid, by the labels that it reports, which begin with a tenant."""
    labels = (told.partition("/")[2] for told in resident)
    return {job for label in labels if (job := snapshot_job(label))}
