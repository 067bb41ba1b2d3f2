"""Forecasts starts and finishes by simulating the policy on a virtual clock from the present state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from fairlead.cluster import Node
from fairlead.scheduling.job_speed import (
    FIRST_START_S,
    efficient_speed,
    expected_work_left,
    first_start_s,
    speed_on_seats,
    start_loss_s,
)
from fairlead.scheduling.state import ClusterState, Hold, JobState, Preempt, Resize, Round, Start

Policy = Callable[[ClusterState], Round]
NEVER_ENOUGH: Callable[[], bool] = lambda: False  # noqa: E731

MOST_WAITING = 200
"""Waiting jobs that are simulated, the highest bids; later ones are estimated from the work ahead of them."""

MOST_STEPS, FEWEST_STEPS, EFFORT = 64, 8, 20_000
"""Simulated rounds: fewer with more jobs, so that a forecast costs about the same everywhere."""

FOR_ONE = 4
"""... and if not all waiting jobs are simulated, only so many rounds, until the jobs in question have started."""

REACH = 50.0
"""The last step is so many times longer than the first: the far future is less certain."""

SOON_S = 0.5
"""The first step where the state does not say how long a round is."""

NEVER = ("no-such-gang", "no-such-room", "quota", "budget", "declined", "not-here")
"""Codes of holds that waiting alone does not end."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected times by job. A missing job does not start as things are, or cannot be forecast."""

    start_s: Mapping[str, float]  # of jobs that wait now; live, when their gangs are up
    finish_s: Mapping[str, float]
    seats: Mapping[str, tuple[str, ...]]  # where waiting jobs would start
    until_s: float  # the end of the simulation; later times are estimated from the work ahead


@dataclass(slots=True)
class ForecastJob:
    """A job during the simulation."""

    job: JobState
    left: float
    owed_s: float = 0.0  # of the restart, still to be paid
    speed: float = 0.0

    def ends_in(self) -> float:
        return self.owed_s + self.left / self.speed if self.speed > 0 else inf

    def run(self, seconds: float, device_type: str) -> None:
        """Work for so many seconds; finished jobs are removed by :meth:`ForecastRun.advance`."""
        served_s = max(0.0, seconds - self.owed_s)
        self.owed_s = max(0.0, self.owed_s - seconds)
        did = min(self.left, self.speed * served_s)
        self.left -= did
        job = self.job
        ran_s = {**job.ran_s, device_type: job.ran_s.get(device_type, 0.0) + served_s}
        samples = None if job.remaining_samples is None else max(0.0, job.remaining_samples - did)
        self.job = replace(
            job, work_done=job.work_done + did, ran_s=ran_s, frozen=False, remaining_samples=samples,
            work_left=None if job.work_left is None else max(0.0, job.work_left - did),
            attained_device_s=job.attained_device_s + served_s * len(job.seats),
        )  # fmt: skip


@dataclass(slots=True)
class ForecastRun:
    """The simulated state, and the starts and finishes seen so far."""

    state: ClusterState
    jobs: dict[str, ForecastJob]
    nodes: Mapping[str, Node]
    now_s: float
    start_s: dict[str, float] = field(default_factory=dict)
    finish_s: dict[str, float] = field(default_factory=dict)
    seats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)  # waiting jobs, with the code of the reason
    awaited: frozenset[str] = frozenset()  # jobs that waited at the beginning
    comes_up_s: float = FIRST_START_S  # duration of a first start
    leaving: bool = False  # whether the last round freed devices

    @classmethod
    def of(cls, state: ClusterState) -> ForecastRun:
        nodes = {node.name: node for node in state.nodes}
        jobs = {}
        comes_up_s = first_start_s(state)
        for job, left in zip(state.jobs, expected_work_left(state, state.jobs), strict=True):
            jobs[job.id] = ForecastJob(job, left, speed=speed_on_seats(job, job.seats, nodes))
            if job.frozen and job.starts_over:  # it does not work yet
                jobs[job.id].owed_s = max(0.0, comes_up_s - (state.now_s - job.since_s))
        waits = frozenset(job.id for job in state.jobs if not job.seats)
        return cls(state, jobs, nodes, state.now_s, awaited=waits, comes_up_s=comes_up_s)

    def seen(self) -> ClusterState:
        """The state for the policy."""
        again = [t if t.spent is None or t.spent.again_s > self.now_s else replace(t, spent=None)
                 for t in self.state.tenants]  # fmt: skip
        jobs = [played.job for played in self.jobs.values()]
        return replace(self.state, now_s=self.now_s, jobs=jobs, tenants=again)

    def apply(self, made: Round) -> None:
        self.state = replace(self.state, memory=made.memory)
        self.blocked = {}
        self.leaving = any(isinstance(one, Preempt) for one in made.decisions)
        for decision in made.decisions:
            played = self.jobs[decision.job]
            if isinstance(decision, Start | Resize):
                self._sit(played, decision.seats)
            elif isinstance(decision, Preempt):
                played.job = replace(played.job, seats=(), since_s=self.now_s, broken=False)
                played.speed, played.owed_s = 0.0, 0.0
            elif isinstance(decision, Hold):
                self.blocked[decision.job] = decision.reason.code

    def _sit(self, played: ForecastJob, seats: tuple[str, ...]) -> None:
        job = played.job
        self.leaving |= len(seats) < len(job.seats)
        if job.id in self.awaited and job.id not in self.start_s:
            at_once = self.state.at_once or self.now_s == self.state.now_s  # a start in the first round is "now"
            comes_up_s = 0.0 if at_once else start_loss_s(self.state, job, self.comes_up_s)
            self.start_s[job.id], self.seats[job.id] = self.now_s + comes_up_s, seats
        played.job = replace(job, seats=seats, since_s=self.now_s, broken=False)
        played.speed, played.owed_s = (
            speed_on_seats(job, seats, self.nodes),
            start_loss_s(self.state, job, self.comes_up_s),
        )

    def advance(self, seconds: float) -> None:
        """Let all running jobs work; remove finished ones."""
        for name, played in list(self.jobs.items()):
            if not played.job.seats:
                continue
            ends_s = played.ends_in()
            if ends_s <= seconds + 1e-9:
                self.finish_s[name] = self.now_s + ends_s
                del self.jobs[name]
            else:
                there = (self.nodes[name].device_type for name in played.job.seats if name in self.nodes)
                played.run(seconds, next(there, ""))  # its nodes may be gone by now
        self.now_s += seconds

    def next_s(self) -> float:
        """Seconds until the next event."""
        soonest = min((played.ends_in() for played in self.jobs.values() if played.job.seats), default=inf)
        wakes = [float(self.state.memory.get("wake_s", inf)) - self.now_s]
        wakes += [tenant.spent.again_s - self.now_s for tenant in self.state.tenants if tenant.spent is not None]
        return min(soonest, *(wake for wake in wakes if wake > 0), inf)

    def begun(self, name: str) -> bool:
        """Whether it runs, is done, or will never start as things are."""
        played = self.jobs.get(name)
        return played is None or bool(played.job.seats) or self.blocked.get(name) in NEVER

    def narrow(self, bids: Mapping[str, float], kept: Collection[str]) -> list[ForecastJob]:
        """Remove waiting jobs beyond ``MOST_WAITING``; returns them in the order of their bids."""
        waiting = [name for name, played in self.jobs.items() if not played.job.seats and name not in kept]
        waiting.sort(key=lambda name: (-bids.get(name, 0.0), self.jobs[name].job.submitted_s, name))
        late = [self.jobs.pop(name) for name in waiting[MOST_WAITING:]]
        gone = {played.job.id for played in late}
        remembered = dict(self.state.memory)
        if gone and "seen" in remembered:  # otherwise the policy would count them as finished
            remembered["seen"] = {name: one for name, one in remembered["seen"].items() if name not in gone}
        self.state = replace(self.state, memory=remembered)
        return late


def forecast(
    state: ClusterState, policy: Policy, *, finishes: Collection[str] = (), first: Round | None = None,
    enough: Callable[[], bool] = NEVER_ENOUGH,
) -> Forecast:  # fmt: skip
    """Simulate the policy until all waiting jobs have started and ``finishes`` are done, or far enough ahead.

    ``first`` is the policy's round for this state, if known. No further submissions are assumed, so starts are the
    earliest to expect, unless running jobs end early. The simulation ends once it is ``enough``; the rest is estimated
    from the work ahead.
    """
    game = ForecastRun.of(state)
    made = policy(game.seen()) if first is None else first
    game.apply(made)
    bids = {one.job: float(one.reason.facts.get("bid", 0.0)) for one in made.decisions if isinstance(one, Hold)}
    late = game.narrow(bids, finishes)
    steps = max(FEWEST_STEPS, min(MOST_STEPS, EFFORT // max(len(game.jobs), 1)))
    for_some = bool(late and finishes)
    steps = min(steps, FOR_ONE) if for_some else steps
    for _ in range(steps):
        if enough() or (all(game.begun(name) for name in finishes) if for_some else _told(game, finishes)):
            break
        game.advance(_step_s(game, state, steps))
        if game.jobs:
            game.apply(policy(game.seen()))
    _look_further(game, late)
    return Forecast(game.start_s, game.finish_s, game.seats, game.now_s)


def _told(game: ForecastRun, finishes: Collection[str]) -> bool:
    """Whether all starts and the ``finishes`` are known."""
    waits = any(not one.job.seats and game.blocked.get(name) not in NEVER for name, one in game.jobs.items()
                if name in game.awaited and name not in game.start_s)  # fmt: skip
    return not waits and not any(name in game.jobs for name in finishes)


def _step_s(game: ForecastRun, state: ClusterState, steps: int) -> float:
    """Seconds to the next event, at least the step that makes sense so far ahead, and at most four times that.

    Live, the round after one that freed devices follows soon.
    """
    first_s = state.round_s or SOON_S
    ahead_s = game.now_s - state.now_s
    least_s = max(first_s, ahead_s * (float(REACH ** (1.0 / steps)) - 1.0))
    wanted_s = first_s if game.leaving else min(max(game.next_s(), least_s), 4.0 * least_s)
    return wanted_s if state.round_s is None else ceil(wanted_s / first_s - 1e-9) * first_s


def _look_further(game: ForecastRun, late: Sequence[ForecastJob]) -> None:
    """Beyond the simulation: running jobs finish; waiting ones start when the work ahead is done on all devices."""
    devices = max(1.0, float(sum(node.devices for node in game.nodes.values() if node.schedulable)))
    waiting = [played for played in game.jobs.values() if not played.job.seats]
    ahead_s = 0.0
    for name, played in game.jobs.items():
        if played.job.seats and played.speed > 0:
            game.finish_s[name] = game.now_s + played.ends_in()
            ahead_s += min(played.ends_in(), inf) * len(played.job.seats) / devices
    for played in (*waiting, *late):
        if game.blocked.get(played.job.id) in NEVER:
            continue
        speed = efficient_speed(played.job)
        if speed <= 0:
            continue  # it runs nowhere, so no job waits for it
        alone_s = played.left / speed
        begins_s = game.now_s + ahead_s
        if played.job.id in game.awaited:
            game.start_s.setdefault(played.job.id, begins_s)
        game.finish_s.setdefault(played.job.id, begins_s + alone_s)
        ahead_s += alone_s * played.job.min_workers / devices
