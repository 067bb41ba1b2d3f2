"""Jobs of every kind from three tenants, handed in and taken back as clients do: again until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection

from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.store import cancellations, jobs
from fairlead.errors import FairleadError
from tests.storm.simulated_store import TENANTS
from tests.storm.simulated_workers import Behaviour
from tests.storm.virtual_loop import START_S

if TYPE_CHECKING:
    from tests.storm.leaders import Leader
    from tests.storm.world import World

T = TypeVar("T")

ANSWER_S = 6.0
BESIDES = 5  # jobs beside a pipeline, whose stages are jobs as well
OWN_FAULTS = ("segfault-at-start", "exit-at-step", "raises-at-start", "exit-at-start")
KINDS = ("elastic", "elastic", "rigid", "single", "command", "commands", "commands")


def drawn(chance: Random, number: int, *, faulty: bool) -> tuple[Job, Behaviour]:
    """A job of some kind and what it does."""
    kind = chance.choice(KINDS)
    training = not kind.startswith("command")
    gang = chance.choice((2, 3))
    sizes = {"elastic": (1, gang + chance.randrange(2)), "rigid": (2, 2), "commands": (gang, gang)}
    least, most = sizes.get(kind, (1, 1))
    job = Job(
        id=f"{kind}-{number}", tenant=TENANTS[number % len(TENANTS)], name=f"{kind}-{number}", phase=JobPhase.QUEUED,
        submitted_s=START_S, submitted_by="tok", min_workers=least, max_workers=most, demand={"cpu": 0.5},
        device_type=None, priority=chance.choice((0, 0, 0, 10)), elastic=kind == "elastic", training=training,
        retries=chance.choice((0, 0, 1)), since_s=START_S,
    )  # fmt: skip
    steps = chance.randrange(40, 160)
    behaviour = Behaviour(
        training, steps, chance.uniform(0.2, 0.8), chance.uniform(0.5, 40.0), chance.uniform(0.2, 1.5),
        chance.choice([one for one in OWN_FAULTS if training or one != "exit-at-step"]) if faulty else "",
        chance.randrange(1, steps),
    )  # fmt: skip
    return job, behaviour


class Clients:
    """Everybody who asks the platform for something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance, self._more = Random(f"{world.seed}/workload"), Random(f"{world.seed}/more-workload")

    def _widened(self, job: Job) -> Job:
        """Some commands are gangs of four: on these nodes, one that is spread over several."""
        wide = self._world.more.wide and job.name.startswith("commands") and self._more.random() < 0.7
        return replace(job, min_workers=4, max_workers=4) if wide else job

    async def submit_all(self, over_s: float) -> None:
        """Hand in all jobs, in the course of so many seconds."""
        chance, count = self._chance, self._chance.randrange(5, 9)
        faulty = {chance.randrange(count)} if chance.random() < 0.5 else set()
        plans = [(chance.uniform(0, over_s) if number else 0.0, drawn(chance, number, faulty=number in faulty))
                 for number in range(count)]  # fmt: skip
        plans = plans[:BESIDES] if self._world.more.pipeline else plans
        async with asyncio.TaskGroup() as group:
            for at_s, (job, behaviour) in plans:
                deadline_s = chance.uniform(30, 200) if chance.random() < 0.3 else None
                self._world.behaviours[job.id] = behaviour
                if behaviour.fault:
                    self._world.truth.disturb(job.id, behaviour.fault)
                group.create_task(self._submit(at_s, self._widened(job), deadline_s))
            if self._world.more.pipeline:
                group.create_task(self._world.flows.submit(self, self._more.uniform(0.0, over_s)))

    async def _submit(self, at_s: float, job: Job, deadline_s: float | None) -> None:
        await asyncio.sleep(at_s)

        def work(leader: Leader, connection: Connection) -> None:
            now_s = self._world.wall_s(leader.process)
            due = {} if deadline_s is None else {"finish_by_s": now_s + deadline_s}
            fresh = replace(job, submitted_s=now_s, since_s=now_s, **due)
            jobs.insert(connection, fresh, {"name": job.name}, {}, job.id, "d")

        await self.asked(work, job.id)
        self._world.truth.accepted.add(job.id)
        self._world.trace("accepted", job.id)

    async def cancel(self, name: str) -> None:
        """Take a job back."""
        self._world.cancelled.add(name)
        self._world.truth.disturb(name, "cancelled")

        def work(leader: Leader, connection: Connection) -> None:
            job = jobs.get(connection, name)
            if job is not None and job.phase not in ENDED:
                found = cancellations.MatchedJob(job.id, job.tenant, job.phase, job.submitted_s)
                cancellations.cancel(connection, [found], "its tenant", self._world.wall_s(leader.process))

        await self.asked(work, name)

    async def cancel_all(self, tenant: str) -> None:
        """Take back all of a tenant's jobs that have not ended, in one request."""

        def work(leader: Leader, connection: Connection) -> None:
            found, _ = cancellations.find(connection, cancellations.CancelFilter(tenant))
            for one in found:
                self._world.cancelled.add(one.id)
                self._world.truth.disturb(one.id, "cancelled")
            cancellations.cancel(connection, found, "its tenant", self._world.wall_s(leader.process))

        await self.asked(work, "")

    async def asked(self, work: Callable[[Leader, Connection], T], nudge: str) -> T:
        """The answer of whoever leads, asked again until there is one."""
        while True:
            leader = self._world.supervisor.present
            if leader is not None:
                found = await self._once(leader, work, nudge)
                if found is not None:
                    return found[0]
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))

    async def _once(self, leader: Leader, work: Callable[[Leader, Connection], T], nudge: str) -> tuple[T] | None:
        async def request() -> T:
            assert leader.store is not None and leader.controller is not None
            done = await leader.store.write(lambda connection: work(leader, connection))
            leader.controller.nudge(nudge)
            leader.controller.publish()
            return done

        context: Any = leader.process.context
        task = self._world.loop.create_task(request(), context=context)
        try:
            done, _ = await asyncio.wait({task}, timeout=ANSWER_S)
            return (task.result(),) if done else None
        except FairleadError:
            return None
