"""Simulates a trace under a policy: a virtual clock, arrivals, completions and failures; states as on the platform."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from fairlead.cluster import DEVICE, Node, NodeState, same_seats
from fairlead.errors import FairleadError
from fairlead.scheduling.market.colocation import Table
from fairlead.scheduling.state import ClusterState, Hold, Preempt, Resize, Round, Sleep, Start, TenantState
from fairlead.simulation.active_job import ActiveJob
from fairlead.simulation.clusters import is_pool
from fairlead.simulation.energy import Energy, Meter
from fairlead.simulation.failures import Failure, NoFailures, Outages
from fairlead.simulation.interference import TrueInterference
from fairlead.simulation.outcome import JobOutcome, Outcome
from fairlead.simulation.placement_rules import broken_rule
from fairlead.simulation.thermal import Temperatures
from fairlead.simulation.trace import Clock, Trace
from fairlead.simulation.usage_tally import UsageTally

Policy = Callable[[ClusterState], Round]
Progress = Callable[[int, int, float], None]
"""Called after each step with jobs done, all jobs, and the virtual time."""

DECLINED = "declined"
"""The code of a hold that is final: the job is never run."""

PATIENCE = 2_000
"""After so many rounds without progress or arrivals, the policy will never finish the remaining jobs."""


class SimulationError(FairleadError):
    """The policy made an impossible decision, or makes no progress."""

    code, status, exit_code = "simulation", 500, 1


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run; None: as in the trace's own simulator."""

    round_s: float | None = None
    restart_cost_s: float | None = None
    clock: Clock | None = None
    declared: bool = True  # whether a policy sees the work left
    tenants: Sequence[TenantState] = ()
    outages: Outages = field(default_factory=NoFailures)
    draw: bool = False  # record data for plots
    energy: Energy | None = None  # nodes may sleep; None: they never do
    colocation: Table | None = None  # interference between gangs on one node; None: none


def simulate(
    trace: Trace,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run the whole trace on these nodes under this policy."""
    return Simulation(trace, nodes, policy, settings or Settings()).run(progress)


class Simulation:
    """One run. Time moves in steps; within a step only work progresses."""

    def __init__(self, trace: Trace, nodes: Sequence[Node], policy: Policy, settings: Settings) -> None:
        self.trace, self.policy, self.settings = trace, policy, settings
        self.round_s = trace.round_s if settings.round_s is None else settings.round_s
        self.clock = settings.clock or trace.clock
        self.restart_cost_s = trace.restart_cost_s if settings.restart_cost_s is None else settings.restart_cost_s
        if settings.energy is not None:
            nodes = [replace(node, wake_s=settings.energy.wake_s) for node in nodes]
        self.nodes = {node.name: node for node in nodes}
        self.sleep_after_s = trace.sleep_after_s if settings.energy is None else settings.energy.sleep_after_s
        self.temperatures = Temperatures(nodes)
        self.interference = None if settings.colocation is None else TrueInterference(settings.colocation)
        self.free = {node.name: node.devices for node in nodes}
        self.waiting = sorted(trace.jobs, key=lambda job: job.arrival_s)
        self.waiting.reverse()  # the next one is popped from the end
        self.active: dict[str, ActiveJob] = {}
        self.memory: Mapping[str, Any] = trace.memory
        first_s = self.waiting[-1].arrival_s if self.waiting else 0.0
        self.now_s = first_s if trace.begins_s is None else trace.begins_s
        self.began_s = self.now_s
        self.meter = Meter(nodes, self.began_s)
        self.grid_s = self.now_s if trace.grid_s is None else trace.grid_s
        if self.clock is Clock.ROUNDS and self.waiting:
            self.now_s = self._on_grid(self.now_s)
        self.rounds, self._idle = 0, 0
        self.done: list[JobOutcome] = []
        self.declined: list[JobOutcome] = []
        self.cpu: list[float] = []
        tenants = _tenants(trace, settings.tenants or trace.tenants)
        self.tally = UsageTally(tenants, nodes, draw=settings.draw, window_s=trace.window_s)
        self._down: list[tuple[float, str]] = []  # when which node comes back

    def run(self, progress: Progress | None = None) -> Outcome:
        total = len(self.waiting)
        self._resume_running_jobs()
        while self.waiting or self.active:
            self._admit()
            if not self.active:
                self._jump_to_next_arrival()
                continue
            self._decide()
            self._step()
            self._apply_outages()
            if progress is not None:
                progress(len(self.done), total, self.now_s)
        return self._outcome(total)

    # ------------------------------------------------------------ arrivals

    def _resume_running_jobs(self) -> None:
        """Seat the jobs that run as the trace begins, unless their nodes are gone."""
        if self.trace.seated:
            self._admit()
        for name, seats in self.trace.seated.items():
            job = self.active[name]
            there = all(seat in self.nodes and self.nodes[seat].schedulable for seat in seats)
            if there and job.job.min_workers <= len(seats) <= job.job.max_workers:
                self._seat_gang(job, seats, True)

    def _admit(self) -> None:
        while self.waiting and self.waiting[-1].arrival_s <= self.now_s:
            job = self.waiting.pop()
            if job.id in self.active:
                raise SimulationError(f"two jobs of the trace are called {job.id!r}")
            self.active[job.id] = ActiveJob(job, self.restart_cost_s)
            self.tally.arrive(self.active[job.id])

    def _jump_to_next_arrival(self) -> None:
        """No job is active: advance to the next arrival."""
        arrival_s = self.waiting[-1].arrival_s
        if self.clock is Clock.ROUNDS:
            arrival_s = self._on_grid(arrival_s)
        self.tally.step(self.now_s, arrival_s, ())
        self.temperatures.advance(arrival_s - self.now_s, self.nodes, self.free)
        self.now_s = arrival_s
        self._apply_outages()

    def _on_grid(self, when_s: float) -> float:
        """The first round at or after this time."""
        return self.grid_s + math.ceil((when_s - self.grid_s) / self.round_s) * self.round_s

    # ------------------------------------------------------------ decisions

    def _decide(self) -> None:
        state = self.state()
        begun_s = time.process_time()
        decided = self.policy(state)
        self.cpu.append(time.process_time() - begun_s)
        self.memory = decided.memory
        self._apply(decided)
        self.rounds += 1

    def state(self) -> ClusterState:
        """The present state for the policy."""
        declared = self.settings.declared
        return ClusterState(
            now_s=self.now_s,
            nodes=self._nodes_seen(),
            tenants=self.tally.states(self.now_s),
            jobs=[job.state(declared) for job in self.active.values()],
            memory=self.memory,
            round_s=None if self.clock is Clock.EVENTS else self.round_s,
            at_once=True,
            sleep_after_s=self.sleep_after_s,
            colocation=None if self.interference is None else self.interference.learned,
        )

    def _nodes_seen(self) -> tuple[Node, ...]:
        """The nodes with their temperatures, where those are simulated."""
        warm = self.temperatures.now_c
        return tuple(
            replace(node, temperature_c=warm[name]) if name in warm else node for name, node in self.nodes.items()
        )

    def _apply(self, decided: Round) -> None:
        """Carry out the round: first gangs leave, then gangs are seated, so that freed devices can be reused."""
        coming: list[tuple[ActiveJob, tuple[str, ...]]] = []
        for decision in decided.decisions:
            if isinstance(decision, Start | Resize):
                job = self.active[decision.job]
                if job.seats and same_seats(job.seats, decision.seats):
                    continue
                self._remove_gang(job)
                coming.append((job, decision.seats))
            elif isinstance(decision, Preempt):
                self._remove_gang(self.active[decision.job])
            elif isinstance(decision, Hold) and decision.reason.code == DECLINED:
                self._decline(self.active[decision.job])
        free = self.rounds == 0 and self.trace.first_round_free
        for job, seats in coming:
            self._seat_gang(job, seats, free)
        self._put_nodes_to_sleep(decided)
        if self.trace.pause_s and self.settings.restart_cost_s is None:
            for job in self.active.values():
                job.pause(self.trace.pause_s if job.seats else 0.0)

    def _put_nodes_to_sleep(self, decided: Round) -> None:
        """Put nodes to sleep as decided; a node in use stays awake."""
        if self.sleep_after_s is None:
            return
        for decision in decided.nodes:
            node = self.nodes[decision.node]
            if isinstance(decision, Sleep) and not node.asleep and self.free[node.name] == node.devices:
                self.nodes[node.name] = replace(node, asleep=True)
                self.meter.sleep(node.name, self.now_s)

    def _woken_s(self, seats: tuple[str, ...]) -> float:
        """Wake the sleeping ones of these nodes; returns the seconds until the last is awake."""
        asleep = [self.nodes[name] for name in sorted(set(seats)) if self.nodes[name].asleep]
        for node in asleep:
            self.nodes[node.name] = replace(node, asleep=False)
            self.meter.wake(node.name, self.now_s)
        return max((node.wake_s for node in asleep), default=0.0)

    def _decline(self, job: ActiveJob) -> None:
        """Remove a job that the policy declined; it counts as not done."""
        del self.active[job.job.id]
        self.tally.depart(job)
        self.declined.append(_job_outcome(job, math.inf))

    def _remove_gang(self, job: ActiveJob) -> None:
        for name in job.seats:
            self.free[name] += 1
        job.leave(self.now_s)

    def _seat_gang(self, job: ActiveJob, seats: tuple[str, ...], free: bool) -> None:
        if not job.job.min_workers <= len(seats) <= job.job.max_workers:
            asked = f"{job.job.min_workers} to {job.job.max_workers}"
            raise SimulationError(f"the policy gives job {job.job.id} {len(seats)} workers; it asked for {asked}")
        for name in seats:
            self.free[name] -= 1
            if self.free[name] < 0 or not self.nodes[name].schedulable:
                raise SimulationError(f"the policy gives job {job.job.id} a device of {name} that is not free")
        broken = broken_rule(job, seats, self.nodes, self.active.values()) if job.job.only or job.job.demand else None
        if broken is not None:
            raise SimulationError(f"the policy gives job {job.job.id} {broken}")
        job.sit(seats, self.nodes, self.now_s, free=free, wake_s=self._woken_s(seats))

    # ------------------------------------------------------------ time

    def _step(self) -> None:
        """Let all gangs run until the next round."""
        running = [job for job in self.active.values() if job.seats]
        if self.interference is not None:
            self.interference.meet(running)
        seconds = self._step_length_s(running)
        longest_s, got_on = 0.0, False
        ended: list[tuple[ActiveJob, float]] = []
        for job in running:
            before = job.course.done
            ran = job.run(seconds)
            got_on |= job.course.done > before or job.course.finished
            self.tally.serve(job, ran.service_s)
            self.meter.serve(job.seats, ran.service_s)
            longest_s = max(longest_s, ran.took_s)
            if self.settings.draw:
                job.segments.append((self.now_s, self.now_s + ran.took_s, job.seats))
            if job.course.finished:
                ended.append((job, ran.took_s))
        if self.clock is Clock.LAST and longest_s > 0:
            seconds = longest_s
        hopeful = got_on or self.waiting or math.isfinite(self.tally.next_budget_s(self.now_s))
        self._idle = 0 if hopeful else self._idle + 1
        if self._idle > PATIENCE:
            raise SimulationError(
                f"{len(self.active)} jobs wait for ever: the policy starts none of them where it can run"
            )
        self.tally.step(self.now_s, self.now_s + seconds, running, ended)
        self.temperatures.advance(seconds, self.nodes, self.free)
        for job, took_s in ended:
            self._finish(job, self.now_s + took_s)
        self.now_s += seconds

    def _step_length_s(self, running: Sequence[ActiveJob]) -> float:
        """Seconds to the next round; with the clock LAST the end of the last gang shortens it later."""
        if self.clock is Clock.ROUNDS:
            return self.round_s
        arrival_s = self.waiting[-1].arrival_s - self.now_s if self.waiting else math.inf
        if self.clock is Clock.LAST:
            return self.round_s if running or arrival_s == math.inf else arrival_s
        ends_s = min((job.ends_in() for job in running), default=math.inf)
        wake_s = float(self.memory.get("wake_s", math.inf)) - self.now_s
        if self.clock is Clock.SLOTS:
            soonest_s = min(arrival_s, ends_s, wake_s)
            return self.round_s if soonest_s == math.inf else max(self.round_s, soonest_s)
        again_s = self.tally.next_budget_s(self.now_s) - self.now_s
        soonest_s = min(arrival_s, ends_s, wake_s if wake_s > 0 else math.inf, again_s)
        waits = not running and math.isfinite(again_s)  # only time renews a budget
        return soonest_s if waits else min(self.round_s, soonest_s)

    def _finish(self, job: ActiveJob, when_s: float) -> None:
        for name in job.seats:
            self.free[name] += 1
        del self.active[job.job.id]
        self.tally.depart(job)
        self.done.append(_job_outcome(job, when_s))

    # ------------------------------------------------------------ failures

    def _apply_outages(self) -> None:
        for back_s, name in [down for down in self._down if down[0] <= self.now_s]:
            self._down.remove((back_s, name))
            if is_pool(self.nodes[name]):
                self._resize_pool(name, 1)
            else:
                self.nodes[name] = replace(self.nodes[name], state=NodeState.READY)
        for failure in self.settings.outages.until(self.now_s, tuple(self.nodes.values())):
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        """Take nodes (of a flat pool one device) out for a while; their gangs wait, rolled back to a snapshot."""
        for name in failure.nodes:
            node = self.nodes[name]
            if node.state is NodeState.LOST or node.devices == 0:
                continue
            self._down.append((failure.back_s, name))
            sitting = [job for job in self.active.values() if name in job.seats]
            if is_pool(node):
                self._resize_pool(name, -1)
                if self.free[name] < 0:
                    self._roll_back(sitting[-1])
                continue
            self.nodes[name] = replace(node, state=NodeState.LOST)
            for job in sitting:
                self._roll_back(job)

    def _resize_pool(self, name: str, by: int) -> None:
        node = self.nodes[name]
        self.nodes[name] = replace(node, capacity={**node.capacity, DEVICE: float(node.devices + by)})
        self.free[name] += by

    def _roll_back(self, job: ActiveJob) -> None:
        running_s = self.now_s - job.since_s
        job.course.lose(math.fmod(running_s, self.settings.outages.snapshot_s) * job.speed())
        self._remove_gang(job)

    # ------------------------------------------------------------ the end

    def _outcome(self, total: int) -> Outcome:
        ended_s = max((job.finished_s for job in self.done), default=self.began_s)
        self.tally.close_window(self.now_s)
        return Outcome(
            jobs=sorted(self.done, key=lambda job: (job.arrival_s, job.id)), devices=self.tally.capacity,
            jobs_in_trace=total, began_s=self.began_s, ended_s=ended_s,
            energy_kwh=self.meter.kwh(self.began_s, ended_s), decide_cpu_s=self.cpu,
            windows=self.tally.windows, busy=self.tally.busy, shares=self.tally.shares, rounds=self.rounds,
            declined=self.declined, peak_c=self.temperatures.peak_c,
        )  # fmt: skip


def _job_outcome(job: ActiveJob, when_s: float) -> JobOutcome:
    return JobOutcome(
        job.job.id, job.job.tenant, job.job.arrival_s, job.started_s or 0.0, when_s, job.job.exclusive_s,
        job.job.deadline_s, max(0, job.starts - 1), job.attained_device_s, merged(job.segments),
    )  # fmt: skip


def merged(segments: Sequence[tuple[float, float, tuple[str, ...]]]) -> list[tuple[float, float, tuple[str, ...]]]:
    """Merge consecutive segments on the same seats."""
    kept: list[tuple[float, float, tuple[str, ...]]] = list(segments[:1])
    for before, after in pairwise(segments):
        if before[1] == after[0] and before[2] == after[2]:
            kept[-1] = (kept[-1][0], after[1], after[2])
        else:
            kept.append(after)
    return kept


def _tenants(trace: Trace, given: Sequence[TenantState]) -> list[TenantState]:
    """The tenants of the settings, and further ones that have jobs in the trace."""
    known = {tenant.name: tenant for tenant in given}
    for name in sorted({job.tenant for job in trace.jobs}):
        known.setdefault(name, TenantState(name))
    return list(known.values())
