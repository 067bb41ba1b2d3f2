"""Which nodes there are: joined, asleep or lost, as the backend says, and cordoned or draining, as operators want."""

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
from fairlead.control.reconcile.data_locality import held
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.internal_errors import guard_errors
from fairlead.control.store import events, generations, jobs, node_sleep, nodes
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError, LostLeadership
from fairlead.grid.values import snapshot_job
from fairlead.scheduling.state import Sleep, Wake

CATCH_UP_S = 10.0
"""So long gangs wait for a node to tell what was said there while nobody listened; then they are judged without."""

_UNNEEDED_S = 86_400.0  # for so long nodes that come back are told what nobody needs any more
_MOST_UNNEEDED = 10_000  # ... and no more than so many things: tenants drop as much as they like

log = structlog.get_logger()


class NodeRegistry:
    """The nodes as the leader knows them, with what they last said of themselves."""

    def __init__(
        self, store: Store, backend: Backend, known: GangRegistry, clock: Callable[[], float],
        sleep_after_s: float | None = None,
    ) -> None:  # fmt: skip
        self._store, self._backend, self._known, self._clock = store, backend, known, clock
        self.sleep_after_s = sleep_after_s  # nodes that were idle for so long may sleep; None: never
        self._why: dict[str, str] = {}  # of those that were told to sleep
        self.nodes: dict[str, Node] = {}
        self.joined: dict[str, NodeJoined] = {}
        self.telemetry: dict[str, wire.Telemetry] = {}
        self._states: Mapping[str, NodeState] = {}  # what an admin wants, as it was last read
        self._asleep: set[str] = set()
        self._lost: set[str] = set()
        self._unheard: dict[str, tuple[NodeJoined, float]] = {}  # nodes that have last words to tell, and since when
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
    def undecided(self) -> frozenset[str]:
        """Nodes of which it is not known yet if they live, or how workers there ended: their jobs are left alone."""
        now_s = self._clock()
        unheard = {name for name, (_, since_s) in self._unheard.items() if 0.0 <= now_s - since_s < CATCH_UP_S}
        return (frozenset(self.nodes) - self.joined.keys() - self._asleep - self._lost) | unheard

    def heard(self, node: str, incarnation: str, sequence: int) -> bool:
        """Events of a node up to this one were taken in. Says whether its gangs were left alone until now."""
        joined, _ = self._unheard.get(node, (None, 0.0))
        if joined is None or joined.incarnation != incarnation or sequence < joined.sequence:
            return False
        del self._unheard[node]
        return True

    def resident(self, tenant: str, labels: Iterable[str]) -> dict[str, int]:
        """Bytes under these labels that each node holds in memory, as they last said."""
        return held({node: said.resident for node, said in self.telemetry.items()}, tenant, labels)

    async def refresh(self) -> None:
        """Read the nodes anew, with what an admin wants of them and how warm they are."""
        self._states = await self._store.read(nodes.states)
        await self.renew()

    async def renew(self) -> None:
        """The same without the store, which only a leader writes to: its door reads the nodes anew when it does."""
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
        self.nodes = fresh  # exchanged whole: threads of the store read it, too

    async def take(self, event: NodeChange) -> None:
        """A node came, fell asleep or was lost; the store is told."""
        name, woken_in_s = event.node, None
        match event:
            case NodeJoined():
                woken_in_s = event.woken_in_s
                if any(status.phase == "gone" for status in event.workers):
                    self._unheard[name] = event, self._clock()
                self.joined[name] = event
                await self._adopt(event)
                kind, text = "node-joined", f"{name} joined"
                if woken_in_s is not None:
                    kind, text = "node-woke", f"{name} is awake again after {woken_in_s:.1f} s"
            case NodeSlept():
                kind, text = "node-slept", self._why.get(name, f"{name} sleeps")
            case NodeLost():
                self._forget_workers(name)
                kind, text = "node-lost", f"{name} is lost: {event.why}"
        self._move(event)
        await self.refresh()
        now_s = self._clock()

        def work(connection: Connection) -> None:
            events.append(connection, time_s=now_s, kind=kind, text=text, node=name)
            if isinstance(event, NodeSlept):
                node_sleep.begin(connection, name, now_s)
            else:
                node_sleep.end(connection, name, now_s, woken_in_s)

        await self._store.write(work)

    def _move(self, event: NodeChange) -> None:
        """From one of the three groups to another."""
        for group in (self._asleep, self._lost):
            group.discard(event.node)
        if isinstance(event, NodeJoined):
            return
        self.joined.pop(event.node, None)
        self._unheard.pop(event.node, None)
        self.telemetry.pop(event.node, None)
        (self._asleep if isinstance(event, NodeSlept) else self._lost).add(event.node)

    def rest(self, told: Iterable[Sleep | Wake]) -> None:
        """Let those sleep whom nobody needs. Who has to wake is woken for the gang that was seated there."""
        for one in told:
            held = any(fact.node == one.node for facts in self._known.workers.values() for fact in facts.values())
            if isinstance(one, Sleep) and one.node in self.joined and not held:
                self._why[one.node] = one.reason.text
                self._beside(self._backend.node(one.node, NodeAction.SLEEP), "a node could not be let sleep", one.node)

    async def clear(self) -> None:
        """Have nodes drop the state of jobs that ended elsewhere, or while nobody could tell them."""
        await self._discard(told=True)
        there = {(node, job) for node, said in self.telemetry.items() for job in _states(said.resident)}
        if not there:
            return

        wanted = {job for _, job in there}
        over = await self._store.read(lambda connection: jobs.ended_among(connection, wanted))
        for node, job in sorted(there):
            if job in over and not self._known.workers.get(job) and node in self.joined:
                log.info("a node drops the state of a job that has ended", node=node, job=job)
                self._beside(self._backend.forget(job, node), "a node could not drop the state of a job", node)

    def discard(self, tenant: str, labels: Iterable[str]) -> None:
        """Have all nodes drop the blocks of these labels; what is still open there goes when it is closed."""
        self._unneeded |= {(tenant, label): self._clock() for label in labels}
        for oldest in [*self._unneeded][:-_MOST_UNNEEDED]:
            del self._unneeded[oldest]
        self._discarding = asyncio.ensure_future(self._discard(told=False))  # who drops data waits for no node

    async def _discard(self, *, told: bool) -> None:
        """On all nodes, or once more where they have ``told`` that they still have some."""
        over_s = self._clock() - _UNNEEDED_S
        self._unneeded = {one: since_s for one, since_s in self._unneeded.items() if since_s > over_s}
        wanted: dict[tuple[str, str], list[str]] = {}
        for node in self.reachable if self._unneeded else ():
            there = self.telemetry[node].resident if node in self.telemetry else {}
            for tenant, label in self._told_of(there) if told else sorted(self._unneeded):
                wanted.setdefault((node, tenant), []).append(label)
        asking = (self._backend.discard(tenant, labels, node) for (node, tenant), labels in wanted.items())
        for failed in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(failed, LostLeadership) and told:
                raise failed
            if isinstance(failed, FairleadError):  # it is told again
                log.warning("a node could not be told which data was dropped", error=str(failed))
            elif failed is not None:
                raise failed

    def _told_of(self, there: Iterable[str]) -> list[tuple[str, str]]:
        """What nobody needs among the blocks that a node tells of."""
        split = (name.partition("/") for name in sorted(there))
        return [(tenant, label) for tenant, _, label in split if (tenant, label) in self._unneeded]

    def _beside(self, command: Coroutine[Any, Any, None], trouble: str, node: str) -> None:
        """Command a node without waiting for it: a silent one must not hold up a pass, nor its error end the leader.

        What fails is tried again by whatever asked for it, as long as it is needed.
        """

        async def work() -> None:
            with guard_errors(trouble, node=node):
                try:
                    await command
                except FairleadError as error:  # another leader is noticed by the next write to the store
                    log.warning(trouble, node=node, error=str(error))

        task = asyncio.create_task(work())
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    def close(self) -> None:
        """Give up the commands that are under way."""
        for task in self._commands:
            task.cancel()

    def _forget_workers(self, node: str) -> None:
        for workers in self._known.workers.values():
            for worker, fact in workers.items():
                if fact.node == node:
                    workers[worker] = replace(fact, exited=True)

    async def _adopt(self, event: NodeJoined) -> None:
        """Take over what runs on the node and belongs to a job on its way; end what does not."""
        there = {status.job for status in event.workers}
        live = await self._store.read(lambda connection: generations.live_by_job(connection, there))
        strays: dict[str, dict[str, str]] = {}
        for status in event.workers:
            wanted = {m.worker for generation in live.get(status.job, []) for m in generation.members}
            if status.worker in wanted:
                self._known.workers_of(status.job)[status.worker] = adopted(event.node, status, self._clock())
                if status.phase == "joined":
                    self._known.record_resume(status.job, status.generation)
                self._known.cpu.adopt(status.job, status.worker)
            else:
                strays.setdefault(status.job, {})[status.worker] = event.node
        for job, workers in strays.items():
            log.info("ending workers that no job needs any more", job=job, workers=sorted(workers))
            ended = self._backend.release(job, workers, forget_memory=True)
            self._beside(ended, "workers that no job needs could not be ended", event.node)


def adopted(node: str, status: wire.WorkerStatus, now_s: float) -> WorkerFact:
    """What is known of a worker by what its node says when it joins.

    Of one that is gone its own last event tells more, unless a leader has stored that before.
    """
    gone, ago_s = status.phase == "gone", status.finished_ago_s
    finished_s = None if ago_s is None else now_s - ago_s
    if not gone:
        return WorkerFact(node, status.phase, status.generation, status.device, finished_s=finished_s)
    phase, cause = ("left", "unknown") if finished_s is None else ("finished", None)
    return WorkerFact(
        node, phase, status.generation, status.device, exited=True, cause=cause, finished_s=finished_s
    )  # fmt: skip


def _states(resident: Iterable[str]) -> set[str]:
    """The jobs whose state lies in a node's grid, by the labels that it tells, which begin with a tenant."""
    labels = (told.partition("/")[2] for told in resident)
    return {job for label in labels if (job := snapshot_job(label))}
