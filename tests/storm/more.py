"""What a seed has besides its jobs and faults: gangs over several nodes, a pipeline, a troubled planner, the pruner."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from fairlead.control.plans.plan_questions import Question
from fairlead.control.plans.planner_process import InlinePlanner, PlannerFailed

if TYPE_CHECKING:
    from tests.storm.world import World

KEPT_S = 20.0
"""What the pruner keeps of jobs and pipelines that have ended, in seeds that have it."""


@dataclass(frozen=True, slots=True)
class More:
    """Drawn by chances of its own: the rest of a seed is the same without it."""

    wide: bool = False  # some commands have gangs of four, which one node cannot hold
    pipeline: bool = False  # instead of its sixth job and those after
    planner: str = ""  # that is asked: well, late, failing or silent; empty: nothing is asked
    prunes: bool = False
    many_cancelled: bool = False

    @classmethod
    def drawn(cls, seed: int) -> More:
        chance = Random(f"{seed}/more")
        return cls(
            wide=chance.random() < 0.6, pipeline=chance.random() < 0.25,
            planner=chance.choice(("", "", "well", "late", "failing", "silent")), prunes=chance.random() < 0.3,
            many_cancelled=chance.random() < 0.15,
        )  # fmt: skip


class SimPlanner:
    """The planner's process: it answers after a while, or too late, or that it failed, or never."""

    def __init__(self, world: World, how: str) -> None:
        self._world, self._how, self._real = world, how, InlinePlanner()
        self._chance = Random(f"{world.seed}/planner")

    def ask(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        answered: Future[Any] = Future()
        how = self._how if self._chance.random() < 0.7 else "well"
        self._world.trace("planner", how)
        within_s = self._chance.uniform(4.0, 12.0) if how == "late" else self._chance.uniform(0.01, 1.0)
        if how != "silent":
            self._world.loop.within(self._world.process, within_s, self._answer, answered, question, kind, how)
        return answered

    def _answer(self, answered: Future[Any], question: Question, kind: Any, how: str) -> None:
        if not answered.set_running_or_notify_cancel():
            return
        if how == "failing":
            answered.set_exception(PlannerFailed("working a plan out took too long"))
        else:
            answered.set_result(self._real.ask("", question, kind).result())

    def warm(self) -> None: ...
    def close(self) -> None: ...
