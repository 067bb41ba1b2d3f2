"""Computes a live round stage by stage: repairs, market targets, and the changes that can begin now; no words yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.scheduling.feasible_changes import FeasibleChanges, feasible_changes
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.market_targets import MarketTargets, market_targets
from fairlead.scheduling.mentioned_jobs import MentionedJob
from fairlead.scheduling.queue_order import queue_order
from fairlead.scheduling.repair import Repairs, plan_repairs
from fairlead.scheduling.seating_plan import SeatingPlan
from fairlead.scheduling.settled_state import Seats, SettledState, free_resources, settled_state
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Resize


def live_plan(state: ClusterState, config: MarketConfig = DEFAULT_CONFIG) -> LivePlan:
    """The whole round, stage by stage."""
    situation = Situation.of(state, config)  # what there is, and everybody's share of it
    repaired = plan_repairs(situation)  # gangs that lost a worker, sit on draining nodes or have a straggler
    settled = settled_state(situation, repaired)  # where gangs sit once all earlier decisions are carried out
    targets = market_targets(situation, settled)  # where the market wants every gang that may change
    feasible = _feasible_now(situation, repaired, settled, targets)  # the part of it that can begin at once
    queue = tuple(queue_order(situation, targets))  # the order of the jobs that wait
    seating = _seating_after(situation, repaired, feasible.changes)  # what is held once the changes begin
    leaving = _leaving_jobs(situation, feasible)  # which jobs give up seats, by node
    return LivePlan(situation, repaired, settled, targets, feasible, queue, seating, leaving)


@dataclass(frozen=True, slots=True)
class LivePlan:
    """All results of one round's stages. In ``seating`` changed gangs have their new seats and still hold the old."""

    situation: Situation
    repaired: Repairs
    settled: SettledState
    targets: MarketTargets
    feasible: FeasibleChanges
    queue_at_start: tuple[JobState, ...]
    seating: SeatingPlan
    leaving_jobs: Mapping[str, Sequence[str]]  # by node, the jobs that give up seats there

    @property
    def queue(self) -> list[JobState]:
        """The jobs that still wait, in order."""
        return [job for job in self.queue_at_start if job.id not in self.feasible.changes]

    def quota_room(self, tenant: str, kind: str | None = None) -> int:
        """Devices (of a type) that the tenant's limits still allow."""
        return self.situation.quota_room(tenant, kind, self.seating)

    def jobs_making_room(self, job: str) -> list[MentionedJob]:
        """The jobs that are giving up the seats which this job waits for."""
        found = {name for seat in self.feasible.awaits.get(job, ()) for name in self.leaving_jobs.get(seat, ())} - {job}
        return [MentionedJob(name, self.situation.jobs[name].tenant) for name in sorted(found)]

    def seats_given_up(self, name: str) -> Seats:
        """The seats that a job is giving up, by this round or an earlier one."""
        return _seats_left_by(self.situation.jobs[name], self.feasible.changes.get(name))

    def receivers(self, name: str) -> list[JobState]:
        """The jobs that get the seats which this one gives up, in the order of their claims."""
        gone = set(self.seats_given_up(name))
        found = [job for job, seats in self.feasible.awaits.items() if job != name and not gone.isdisjoint(seats)]
        found.sort(key=lambda job: (job not in self.targets.due, -self.targets.bid.get(job, 0.0), job))
        return [self.situation.jobs[job] for job in found]


def _feasible_now(
    situation: Situation, repaired: Repairs, settled: SettledState, targets: MarketTargets
) -> FeasibleChanges:
    """The changes that can begin now, mandatory jobs and the highest bids first; and the seats that gangs wait for."""
    free = free_resources(situation, _held_seats(situation, repaired))
    bidders = sorted(settled.bidders, key=lambda name: (name not in targets.due, -targets.bid.get(name, 0.0), name))
    limits = situation.limits(_seating_after(situation, repaired, {}))
    found = feasible_changes(situation.jobs, targets.seats, bidders, free, limits)
    return replace(found, awaits={**found.awaits, **_seats_fixed_gangs_await(situation, settled)})


def _leaving_jobs(situation: Situation, feasible: FeasibleChanges) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, job in situation.jobs.items():
        for seat in dict.fromkeys(_seats_left_by(job, feasible.changes.get(name))):
            found.setdefault(seat, []).append(name)
    return found


def _seats_left_by(job: JobState, seats: Seats | None) -> Seats:
    """The seats that a job gives up by a change to ``seats``; without a change those it is giving up already."""
    return job.leaving if seats is None else tuple((Counter(job.seats) - Counter(seats)).elements())


def _held_seats(situation: Situation, repaired: Repairs) -> dict[str, Seats]:
    """The seats that jobs hold at this moment, with those that repairs add."""
    held = {name: job.seats for name, job in situation.jobs.items()}
    for name, decided in repaired.items():
        if isinstance(decided, Resize):
            held[name] = tuple((Counter(held[name]) | Counter(decided.seats)).elements())
    return held


def _seats_fixed_gangs_await(situation: Situation, settled: SettledState) -> Mapping[str, Seats]:
    """The seats that earlier rounds promised to gangs which cannot change in this round."""
    fixed = {name: one.seats for name, one in settled.committed.items() if name in settled.fixed}
    return {
        name: tuple(sorted((Counter(seats) - Counter(situation.jobs[name].seats)).elements()))
        for name, seats in fixed.items()
    }


def _seating_after(situation: Situation, repaired: Repairs, changes: Mapping[str, Seats]) -> SeatingPlan:
    """The seating once the changes have begun: gangs hold their new seats, and their old ones still."""
    seating = situation.seating.copy()
    given = {name: one.seats for name, one in repaired.items() if isinstance(one, Resize)} | dict(changes)
    for name, seats in given.items():
        job = situation.jobs[name]
        more = tuple(sorted((Counter(seats) - Counter(job.seats)).elements()))
        if more:
            seating.sit(job, more)
    return seating
