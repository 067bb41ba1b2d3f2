"""A round on a live cluster, before it is put into words: repairs, what the market wants, and what can be done now."""

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
from fairlead.scheduling.settled_state import Seats, SettledState, free_amounts, settled_state
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Resize


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Everything that a round found out; ``board`` is what is held once its changes begin and nobody has left yet."""

    situation: Situation
    repaired: Repairs
    settled: SettledState
    targets: MarketTargets
    done: FeasibleChanges
    line: tuple[JobState, ...]  # all that waited as the round began, in order
    board: SeatingPlan
    leavers: Mapping[str, Sequence[str]]  # by node, the jobs that give up seats there

    @property
    def queue(self) -> list[JobState]:
        """The jobs that still wait, in order."""
        return [job for job in self.line if job.id not in self.done.changes]

    def quota_room(self, tenant: str, kind: str | None = None) -> int:
        """Devices (of a type) that the tenant may still have by its limits."""
        return self.situation.quota_room(tenant, kind, self.board)

    def victims(self, job: str) -> list[MentionedJob]:
        """The jobs that are leaving seats, or are asked to, which this one is to have."""
        found = {name for seat in self.done.awaits.get(job, ()) for name in self.leavers.get(seat, ())} - {job}
        return [MentionedJob(name, self.situation.jobs[name].tenant) for name in sorted(found)]

    def leaves(self, name: str) -> Seats:
        """The seats that a job is giving up, or is asked to in this round."""
        return _left(self.situation.jobs[name], self.done.changes.get(name))

    def receivers(self, name: str) -> list[JobState]:
        """The jobs that are to have the seats which this one gives up, those that come first first."""
        gone = set(self.leaves(name))
        found = [job for job, seats in self.done.awaits.items() if job != name and not gone.isdisjoint(seats)]
        found.sort(key=lambda job: (job not in self.targets.due, -self.targets.bid.get(job, 0.0), job))
        return [self.situation.jobs[job] for job in found]


def live_plan(state: ClusterState, dials: MarketConfig = DEFAULT_CONFIG) -> LivePlan:
    """The whole round, stage by stage."""
    situation = Situation.of(state, dials)
    repaired = plan_repairs(situation)
    settled = settled_state(situation, repaired)
    targets = market_targets(situation, settled)
    free = free_amounts(situation, _held(situation, repaired))
    asked = sorted(settled.asked, key=lambda name: (name not in targets.due, -targets.bid.get(name, 0.0), name))
    begun = _after(situation, repaired, {})
    done = feasible_changes(situation.jobs, targets.seats, asked, free, situation.limits(begun))
    done = replace(done, awaits={**done.awaits, **_still_awaited(situation, settled)})
    line = tuple(queue_order(situation, targets))
    after = _after(situation, repaired, done.changes)
    return LivePlan(situation, repaired, settled, targets, done, line, after, _leavers(situation, done))


def _leavers(situation: Situation, done: FeasibleChanges) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    leaves = ((name, _left(job, done.changes.get(name))) for name, job in situation.jobs.items())
    for name, seats in leaves:
        for seat in dict.fromkeys(seats):
            found.setdefault(seat, []).append(name)
    return found


def _left(job: JobState, seats: Seats | None) -> Seats:
    """The seats that a job gives up, if these are what it changes to; None: it changes nothing now."""
    return job.leaving if seats is None else tuple((Counter(job.seats) - Counter(seats)).elements())


def _held(situation: Situation, repaired: Repairs) -> dict[str, Seats]:
    """What everybody holds at this moment, and what repairs give to some besides."""
    held = {name: job.seats for name, job in situation.jobs.items()}
    for name, decided in repaired.items():
        if isinstance(decided, Resize):
            held[name] = tuple((Counter(held[name]) | Counter(decided.seats)).elements())
    return held


def _still_awaited(situation: Situation, settled: SettledState) -> Mapping[str, Seats]:
    """What gangs that settle wait for."""
    fixed = {name: one.seats for name, one in settled.committed.items() if name in settled.fixed}
    return {
        name: tuple(sorted((Counter(seats) - Counter(situation.jobs[name].seats)).elements()))
        for name, seats in fixed.items()
    }


def _after(situation: Situation, repaired: Repairs, changes: Mapping[str, Seats]) -> SeatingPlan:
    """The board once the changes have begun: everybody has its new seats and nobody has left its old ones."""
    board = situation.board.copy()
    given = {name: one.seats for name, one in repaired.items() if isinstance(one, Resize)} | dict(changes)
    for name, seats in given.items():
        job = situation.jobs[name]
        more = tuple(sorted((Counter(seats) - Counter(job.seats)).elements()))
        if more:
            board.sit(job, more)
    return board
