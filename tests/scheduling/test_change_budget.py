"""Changes are paid for by what they bring: all together they take no more than a twentieth of all device time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.state import ClusterState, Decision, JobState, Preempt, Resize, Start, TenantState

from .clusters import rarely

DEVICES, SECONDS, STEP_S, STOPS_S = 8, 600.0, 3.0, 1.0


@dataclass
class Course:
    """Tenants that always have work waiting, for ten minutes, nobody promised; whoever changes pauses ``cost_s``."""

    chance: random.Random
    cost_s: float
    now_s: float = 0.0
    lost_s: float = 0.0  # device seconds; a first start is no change
    jobs: list[JobState] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)  # device seconds of work
    begun: set[str] = field(default_factory=set)
    until_s: dict[str, float] = field(default_factory=dict)

    def one_more(self, tenant: str) -> JobState:
        name, chance = f"j{len(self.left)}", self.chance
        least, command = chance.choice((1, 1, 1, 2)), chance.random() < 0.2
        most = least if command else chance.choice((least, least, least + 1, 4))
        self.left[name] = chance.uniform(20.0, 200.0) * least
        known = None if command else self.left[name]
        return JobState(name, tenant, self.now_s, least, most, elastic=most > least, since_s=self.now_s,
                        starts_over=command, restart_cost_s=self.cost_s, remaining_samples=known)  # fmt: skip

    def carried_out(self, job: JobState, decision: Decision | None) -> JobState:
        match decision:
            case Start(seats=seats):
                self.lost_s += self.cost_s * len(seats) * (job.id in self.begun)
                self.begun.add(job.id)
                changed: dict[str, Any] = {"seats": seats}
            case Resize(seats=seats):
                leaving = tuple((Counter(job.seats) - Counter(seats)).elements())
                self.lost_s += self.cost_s * (len(seats) + len(leaving))
                changed = {"seats": (*seats, *leaving), "leaving": leaving}
            case Preempt():
                again_s = self.now_s - job.since_s if job.starts_over else 0.0
                self.left[job.id] += again_s * len(job.seats)
                self.lost_s += (STOPS_S + again_s) * len(job.seats)
                changed = {"leaving": job.seats}
            case _:
                return job
        self.until_s[job.id] = self.now_s + (STOPS_S if isinstance(decision, Preempt) else self.cost_s)
        return replace(job, frozen=True, **changed)

    def worked(self, job: JobState) -> JobState:
        """The job after this step; another of its tenant in its place if it is done."""
        if job.frozen and self.until_s[job.id] <= self.now_s:
            seats = tuple((Counter(job.seats) - Counter(job.leaving)).elements())
            return replace(job, seats=seats, leaving=(), frozen=False, since_s=self.now_s)
        if job.frozen or not job.seats:
            return job
        self.left[job.id] -= STEP_S * len(job.seats)
        if self.left[job.id] <= 0.0:
            return self.one_more(job.tenant)
        if job.starts_over:
            return job
        speeds = {**job.speeds, len(job.seats): float(len(job.seats))}
        return replace(job, speeds=speeds, remaining_samples=self.left[job.id])


@rarely
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 2.0]))
def test_changes_take_a_twentieth_of_all_device_time_at_most(seed: int, cost_s: float) -> None:
    """Of changes that cost a second or two, as those of trainings do."""
    course = Course(random.Random(seed), cost_s)
    tenants = [TenantState(f"t{at}", float(course.chance.randint(1, 3))) for at in range(course.chance.randint(2, 6))]
    course.jobs = [course.one_more(tenant.name) for tenant in tenants for _ in range(6)]
    nodes = [Node(f"n{at}", {DEVICE: 1.0}) for at in range(DEVICES)]
    memory: dict[str, Any] = {}
    while course.now_s < SECONDS:
        made = decide(ClusterState(course.now_s, nodes, tenants, course.jobs, memory=memory))
        decided, memory = {one.job: one for one in made.decisions}, dict(made.memory)
        begun = [course.carried_out(job, decided.get(job.id)) for job in course.jobs]
        course.now_s += STEP_S
        course.jobs = [course.worked(job) for job in begun]
    assert course.lost_s <= 0.05 * DEVICES * SECONDS
