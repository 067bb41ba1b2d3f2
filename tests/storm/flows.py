"""The pipeline of a seed: handed in, perhaps taken back, and what must hold of it."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

from fairlead.control.pipelines.records import RUNNING, PipelineRecord, StageRecord
from fairlead.control.store import pipelines
from fairlead.pipelines.fingerprints import fingerprints
from fairlead.pipelines.graph import PipelineSpec
from tests.storm.simulated_store import TENANTS
from tests.storm.simulated_workers import Behaviour

if TYPE_CHECKING:
    from tests.storm.workload import Clients
    from tests.storm.world import World

SHAPE: dict[str, dict[str, Any]] = {
    "load": {"command": ["load"]},
    "left": {"run": "train.py:left", "trains": True, "workers": "1:2", "after": ["load"]},
    "right": {"run": "train.py:right", "trains": True, "workers": "1:2", "after": ["load"]},
    "score": {"run": "score.py:score", "after": ["left", "right"]},
    "tell": {"command": ["tell"], "workers": 3, "after": ["score"]},
}
"""A function, commands and trainings; one stage waits for two that run side by side."""


def stage_behaviour(chance: Random, job: str) -> Behaviour:
    """What the job of a stage does, by its id."""
    training = "command" not in SHAPE[job.split("-")[-2]]
    return Behaviour(
        training, chance.randrange(5, 30), chance.uniform(0.2, 0.5), chance.uniform(0.5, 6.0), chance.uniform(0.2, 1.0)
    )


class Flows:
    """The pipeline of a seed, and its judge."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(f"{world.seed}/flows")
        self.stage_of: dict[str, tuple[str, str]] = {}  # by job
        self._seen: dict[str, tuple[str, str | None]] = {}  # by pipeline: how it was when it was last looked at

    async def submit(self, clients: Clients, at_s: float) -> None:
        """Hand it in when its time comes, and perhaps take it back later."""
        world, name, tenant = self._world, "flow-0", self._chance.choice(TENANTS)
        stages = {each: {**stage, "resources": {"cpu": 0.5}} for each, stage in SHAPE.items()}
        spec = PipelineSpec.model_validate({"name": "flow", "tenant": tenant, "stages": stages})
        marks = fingerprints(spec)
        document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)

        def work(leader: Any, connection: Any) -> None:
            made = PipelineRecord(name, tenant, "flow", RUNNING, world.wall_s(leader.process), "tok", "d",
                                  document, name)  # fmt: skip
            own = [StageRecord(name, each, tenant, marks[each]) for each in sorted(stages)]
            pipelines.insert(connection, made, own)

        def take_back(leader: Any, connection: Any) -> None:
            found = pipelines.get(connection, name)
            if found is not None and found.finished_s is None:
                pipelines.update(connection, name, cancelled_by="tok", message="cancelled by tok")

        await world.loop.sleep_until(at_s)
        await clients.asked(work, "")
        world.trace("accepted", name)
        self._seen[name] = RUNNING, None
        if self._chance.random() < 0.2:
            await world.loop.sleep_until(at_s + self._chance.uniform(0.0, 40.0))
            world.cancelled.add(name)
            await clients.asked(take_back, "")

    # ------------------------------------------------------------ what must hold

    def handed_in(self, job: str, facts: str) -> None:
        """The event that says that this job was submitted for a stage."""
        told = json.loads(facts)
        if "pipeline" not in told:
            return
        flow, stage = told["pipeline"], told["stage"]
        if (flow, stage) in self.stage_of.values():
            self._world.wrong("stage-twice", f"{stage} of {flow} is handed in once more, as {job}")
        self.stage_of[job] = flow, stage
        rows = dict(self._world.eye.execute("SELECT name, phase FROM stages WHERE pipeline = ?", (flow,)).fetchall())
        early = [each for each in SHAPE[stage].get("after", ()) if rows.get(each) != "succeeded"]
        if early:
            self._world.wrong("stage-early", f"{stage} of {flow} is handed in before {early[0]} has succeeded")

    def look(self) -> None:
        """Note how they are: the pruner takes away what has ended."""
        found = self._world.eye.execute("SELECT id, phase, message FROM pipelines").fetchall()
        for flow, phase, message in found:
            before, _ = self._seen.get(flow, (RUNNING, None))
            if before not in (RUNNING, phase):
                self._world.wrong("ended-changes", f"{flow} was {before} and is {phase}")
            self._seen[flow] = phase, message
        for flow in self._seen.keys() - {row[0] for row in found}:
            if self._seen[flow][0] == RUNNING:
                self._world.wrong("lost-job", f"accepted and not stored: {flow}")

    def settled(self, ends: dict[str, str]) -> None:
        """All jobs have ended so."""
        self.look()
        for flow, (phase, message) in sorted(self._seen.items()):
            jobs = {stage: ends.get(job, "") for job, (of, stage) in self.stage_of.items() if of == flow}
            true = {
                "succeeded": jobs.keys() == SHAPE.keys() and set(jobs.values()) == {"succeeded"},
                "failed": "failed" in jobs.values(),
                "cancelled": flow in self._world.cancelled or "cancelled" in jobs.values(),
            }  # fmt: skip
            if phase == RUNNING:
                self._world.wrong("no-end", f"{flow} is running still; its jobs: {jobs}")
            elif not true[phase]:
                self._world.wrong("untrue-end", f"{flow} {phase} ({message}); its jobs: {jobs}")
