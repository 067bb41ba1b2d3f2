"""What must hold after every step, judged by what simulated workers and machines really do, and by what is stored."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlead import wire
from tests.storm.ends import ENDS
from tests.storm.more import KEPT_S
from tests.storm.virtual_loop import START_S

if TYPE_CHECKING:
    from tests.storm.simulated_agents import Manager
    from tests.storm.simulated_workers import Meeting, SimWorker
    from tests.storm.world import World

HEARD_WITHIN_S = 6.0
"""What a worker on a node that is well says is stored and acknowledged, when all has been well for so long."""

LEADS_WITHIN_S = 12.0
"""A leader that takes over leads within so long, whatever its nodes do."""

STANDS_S = 10.0
"""No gang that is whole stands still for longer, leader or no leader."""

ANSWERS_S = 1.0  # a slower network takes longer than a leader waits for an answer: such a node may be passed over
TROUBLE_LASTS_S = 30.0  # of a machine: so long commands to it may fail, and be tried again
MOST_INBOX = 300
ANSWERED_WITHIN_S = 10.0
MOST_LEFT = 40  # events that are stored and kept by their node all the same: those before an answer that was lost
GONE_S = 15.0  # so long cursors of node managers that are gone are kept here
METERED_WITHIN_S = 20.0  # what the leader does now and then, it does so often
MOST_COMMANDS = 60  # to one node about one job, in LOOKS_S
MOST_LOOKS = 5  # at a gang of which nothing is heard but progress, in LOOKS_S
LOOKS_S = 10.0
CLOCKS_S = 8.0  # that two leaders' clocks differ by at the most
CLOCK_SLACK_S = 30.0  # leaders' clocks differ by less; nodes' by more


@dataclass
class JobTruth:
    """What the storm knows about one job."""

    acting: dict[int, Any] = field(default_factory=dict)  # generation -> meeting
    met: dict[int, str] = field(default_factory=dict)  # generation -> rendezvous
    blamed: list[str] = field(default_factory=list)  # what the storm did to it that it may fail for
    disturbed: list[str] = field(default_factory=list)  # what befell it or its nodes
    failures: int = 0  # that were told and counted against it
    preemptions: int = 0
    phase: tuple[Any, ...] = ()
    message: str | None = None  # at its end, as is the next
    finished_s: float | None = None
    idle_since_s: float | None = None
    stirred_s: float = 0.0  # when something happened to it that asks for a look


class Truth:
    """The judge."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs: defaultdict[str, JobTruth] = defaultdict(JobTruth)
        self.devices: dict[tuple[str, int], SimWorker] = {}
        self.accepted: set[str] = set()
        self.looks: defaultdict[str, list[float]] = defaultdict(list)
        self.commands: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.steady_since_s = float("inf")  # since when a leader leads and its store answers
        self.calm_since_s: dict[str, float] = {}  # by machine
        self._last_event = 0
        self.ends: dict[str, str] = {}  # by job
        self._pruned: set[str] = set()

    def wrong(self, invariant: str, text: str) -> None:
        self._world.wrong(invariant, text)

    # ------------------------------------------------------------ what workers do

    def started(self, worker: SimWorker) -> None:
        seat = worker.manager.name, worker.device
        other = self.devices.get(seat)
        if other is not None:
            self.wrong("device-twice", f"{worker} starts on device {worker.device}, where {other} still is")
        self.devices[seat] = worker
        if not worker.behaviour.training:
            address = f"{worker.environment.get('MASTER_ADDR')}:{worker.environment.get('MASTER_PORT')}"
            self.met(worker.job, worker.generation, address, worker.name)
            self._alone_at(worker, address)
            for one in self.devices.values():
                if one.job == worker.job and one.generation != worker.generation:
                    self.wrong("two-generations", f"{worker} of generation {worker.generation} and {one} of "
                                                  f"{one.generation} are both at work")  # fmt: skip

    def _alone_at(self, worker: SimWorker, address: str) -> None:
        for one in self.devices.values():
            meets = not one.behaviour.training and one.environment.get("WORLD_SIZE", "1") != "1"
            theirs = f"{one.environment.get('MASTER_ADDR')}:{one.environment.get('MASTER_PORT')}"
            if one.job != worker.job and meets and theirs == address:
                self.wrong("rendezvous-shared", f"{worker} and {one} were given the same {address}")

    def stopped(self, worker: SimWorker) -> None:
        seat = worker.manager.name, worker.device
        if self.devices.get(seat) is worker:
            del self.devices[seat]

    def met(self, job: str, generation: int, rendezvous: str, worker: str) -> None:
        known = self.jobs[job].met.setdefault(generation, rendezvous)
        if known != rendezvous:
            self.wrong("rendezvous-differs", f"generation {generation} of {job}: {worker} is to meet at {rendezvous}, "
                                             f"others at {known}")  # fmt: skip

    def acts(self, meeting: Meeting) -> None:
        acting = self.jobs[meeting.job].acting
        self._world.trace("acts", meeting.job, meeting.generation, meeting.step)
        if acting:
            text = f"{meeting.job}: generation {meeting.generation} begins while {sorted(acting)} acts"
            self.wrong("two-generations", text)
        acting[meeting.generation] = meeting

    def rests(self, meeting: Meeting) -> None:
        self._world.trace("rests", meeting.job, meeting.generation, meeting.step)
        self.jobs[meeting.job].acting.pop(meeting.generation, None)

    def commanded(self, manager: Manager, request: wire.Request) -> None:
        """A node manager is about to do this."""
        newest = manager.machine.newest_epoch
        if request.epoch < newest and not isinstance(request.body, wire.Status):  # that one asks
            self.wrong("old-epoch", f"{manager.name} obeys {request.body} of epoch {request.epoch}; {newest} leads")
        manager.machine.newest_epoch = max(newest, request.epoch)
        if not isinstance(request.body, wire.Acknowledge | wire.Status):
            job = getattr(request.body, "job", "")
            self._world.trace("command", manager.name, request.epoch, type(request.body).__name__, job)
            now_s = self._world.loop.now_s
            recent = self.commands[manager.name, job] = [at_s for at_s in self.commands[manager.name, job]
                                                         if at_s > now_s - LOOKS_S] + [now_s]  # fmt: skip
            if len(recent) > MOST_COMMANDS:
                self.wrong("chatter", f"{manager.name} was given {len(recent)} commands about {job} in {LOOKS_S:g} s")

    # ------------------------------------------------------------ what is stored

    def committed(self) -> None:
        """A transaction was made."""
        self._world.holdings.committed()
        rows = self._world.eye.execute(
            "SELECT id, phase, failures, preemptions, generation, message, finished_s FROM jobs ORDER BY id"
        ).fetchall()
        told = self._world.eye.execute(
            "SELECT id, kind, job, facts FROM events WHERE id > ? ORDER BY id", (self._last_event,)
        ).fetchall()
        for number, kind, job, facts in told:
            self._last_event = number
            self._world.trace("event", kind, job)
            if job is not None:
                self.stir(job)
            if kind == "job-submitted":
                self._world.flows.handed_in(job, facts)
            if kind == "job-failing" and '"reason":"worker-' in facts:
                self.jobs[job].failures += 1
            if kind == "job-queued" and '"outcome":"preempted"' in facts:
                self.jobs[job].preemptions += 1
            if kind in _TOUCHED and not self.jobs[job].disturbed and not self._planned_badly(job):
                self.wrong("undisturbed-touched", f"{job}: {kind}, and nothing befell it or its nodes")
        for job, phase, failures, preemptions, generation, message, finished_s in rows:
            known = self.jobs[job]
            if (phase, generation) != known.phase:
                self._world.trace("job", job, phase, generation)
                known.phase = (phase, generation)
                self.stir(job)
            counted = failures, preemptions
            if counted != (known.failures, known.preemptions) and not self._world.more.prunes:  # it forgets events, too
                self.wrong("counts", f"{job}: {failures} failures and {preemptions} preemptions are counted, "
                                     f"{known.failures} and {known.preemptions} were told")  # fmt: skip
            if self.ends.get(job, phase) != phase or job in self._pruned:
                self.wrong("ended-changes", f"{job} was {self.ends[job]} and is {phase}")
            if phase in ENDS and job not in self.ends:
                self.ends[job] = phase
                known.message, known.finished_s = message, finished_s
        missing = (self.accepted | self.ends.keys()) - {row[0] for row in rows} - self._pruned
        for job in sorted(missing):
            kept_s = self._world.loop.now_s + START_S - (self.jobs[job].finished_s or START_S)
            if self._world.more.prunes and job in self.ends and kept_s > KEPT_S - CLOCKS_S:
                self._pruned.add(job)
            else:
                self.wrong("lost-job", f"accepted and not stored: {job}")

    def _planned_badly(self, job: str) -> bool:
        """Whether a seat of it was planned on a machine that was in trouble already, or had just been."""
        found = self._world.eye.execute(
            "SELECT members FROM generations WHERE job = ? ORDER BY number DESC LIMIT 2", (job,)
        ).fetchall()
        recent_s = self._world.loop.now_s - TROUBLE_LASTS_S
        return any(f'"{name}"' in members and at_s > recent_s
                   for members, in found for name, at_s in self.calm_since_s.items())  # fmt: skip

    # ------------------------------------------------------------ now and then

    def every_second(self) -> None:
        world = self._world
        now_s = world.loop.now_s
        found = world.eye.execute("SELECT node, incarnation, sequence FROM node_cursors").fetchall()
        cursors = {(node, incarnation): sequence for node, incarnation, sequence in found}
        for name, machine in sorted(world.machines.items()):
            if not machine.well or world.network.weather[name].slow_s > ANSWERS_S:
                self.calm_since_s[name] = now_s
            manager = machine.manager
            if manager is None:
                continue
            since_s = max(self.calm_since_s.get(name, 0.0), self.steady_since_s)
            left = sum(now_s - said_s > ANSWERED_WITHIN_S for said_s in manager.unheard.values())
            if now_s - since_s > ANSWERED_WITHIN_S and left > MOST_LEFT:
                self.wrong("outbox", f"{name} keeps {left} events that nobody acknowledged")
            stored = cursors.get((name, manager.incarnation), 0)
            oldest = min((said_s for number, said_s in manager.unheard.items() if number > stored), default=now_s)
            if now_s - max(since_s, oldest) > HEARD_WITHIN_S:
                text = f"{name} is well, and what was said there {now_s - oldest:.1f} s ago was not stored"
                self.wrong("not-heard", text)
        if world.more.pipeline:
            world.flows.look()
        world.ends.every_second(now_s - max(self.steady_since_s, *self.calm_since_s.values(), 0.0))
        for leader in world.leaders:
            leader.check()
        world.supervisor.check()
        for job, truth in sorted(self.jobs.items()):
            self._standing(job, truth)
            self._looked_at_in_vain(job, truth)

    def stir(self, job: str) -> None:
        """Something happened to it that asks for a look."""
        self.jobs[job].stirred_s = self._world.loop.now_s

    def _looked_at_in_vain(self, job: str, truth: JobTruth) -> None:
        now_s = self._world.loop.now_s
        self.looks[job] = [at_s for at_s in self.looks[job] if at_s > now_s - LOOKS_S]
        quiet = truth.phase[:1] == ("running",) and now_s - max(truth.stirred_s, self.steady_since_s) > LOOKS_S
        if quiet and len(self.looks[job]) > MOST_LOOKS and not self._planned_badly(job):
            self.wrong("looks", f"{job} was looked at {len(self.looks[job])} times in the last {LOOKS_S:g} s, in which "
                                "nothing happened to it")  # fmt: skip

    def _standing(self, job: str, truth: JobTruth) -> None:
        """Whether a gang that left a generation in order, and of which all are alive, does nothing."""
        world = self._world
        last = world.last_meeting(job)
        stands = (last is not None and not truth.acting and job not in self.ends
                  and all(one.left_generation == last.generation and not one.ended
                          and world.machines[one.manager.name].well for one in last.present.values()))  # fmt: skip
        if not stands:
            truth.idle_since_s = None
        elif truth.idle_since_s is None:
            truth.idle_since_s = world.loop.now_s
        elif world.loop.now_s - truth.idle_since_s > STANDS_S:
            self.wrong("stands-still", f"{job}: its workers wait since {truth.idle_since_s:.1f} s")

    def looked(self, job: str) -> None:
        """The leader looked at a gang."""
        self.looks[job].append(self._world.loop.now_s)

    def disturb(self, job: str, what: str) -> None:
        self.jobs[job].disturbed.append(what)
        self.stir(job)

    def disturb_node(self, name: str, what: str) -> None:
        """Something befalls a machine, and so all that is there or on its way there."""
        self.calm_since_s[name] = self._world.loop.now_s
        for job, *_ in self._world.eye.execute(
            "SELECT DISTINCT job FROM generations WHERE phase != 'ended' AND members LIKE ?", (f'%"{name}"%',)
        ).fetchall():
            self.disturb(job, f"{what} {name}")
        for worker in self._world.workers():
            if worker.manager.name == name:
                self.disturb(worker.job, f"{what} {name}")

    # ------------------------------------------------------------ at the end

    def settled(self) -> None:
        """All has been well for a while: nothing may be left of the storm."""
        world = self._world
        rows = world.eye.execute("SELECT id, phase, message FROM jobs ORDER BY id").fetchall()
        gone = [(job, self.ends[job], self.jobs[job].message) for job in sorted(self._pruned)]
        for job, phase, message in (*rows, *gone):
            world.ends.judge(job, phase, message)
            world.holdings.judge(job)
        world.flows.settled(self.ends)
        for worker in world.workers():
            self.wrong("left-over", f"{worker} is {worker.phase} still")
        for name, machine in sorted(world.machines.items()):
            if machine.manager is not None and len(machine.manager.unheard) > MOST_LEFT:
                self.wrong("not-heard", f"{name} keeps {len(machine.manager.unheard)} events that nobody acknowledged")
        takes_s = GONE_S + METERED_WITHIN_S
        long_ago_s = world.loop.now_s - takes_s if world.loop.now_s - self.steady_since_s > takes_s else 0.0
        cursors = world.eye.execute("SELECT node, incarnation FROM node_cursors ORDER BY 1, 2").fetchall()
        for node, incarnation in cursors:
            if world.gone_s.get(incarnation, world.loop.now_s) < long_ago_s:
                self.wrong("cursors", f"the cursor of {incarnation} of {node} is kept, which is gone for long")
        self._times()

    def _times(self) -> None:
        """Stored times of what happened lie between what was before and what came after."""
        query = "SELECT job, number, created_s, broken_s, ended_s FROM generations WHERE broken_s IS NOT NULL"
        for job, number, created_s, broken_s, ended_s in self._world.eye.execute(query).fetchall():
            if broken_s < created_s - CLOCK_SLACK_S or (ended_s and broken_s > ended_s + CLOCK_SLACK_S):
                text = f"generation {number} of {job} broke {broken_s - created_s:.1f} s after it was planned"
                self.wrong("times", text)
        elapsed_s = self._world.loop.now_s + CLOCK_SLACK_S
        for job, recovery_s in self._world.eye.execute("SELECT id, recovery_s FROM jobs").fetchall():
            if not 0 <= recovery_s <= elapsed_s:
                self.wrong("times", f"{job} took {recovery_s:.1f} s to recover, in {elapsed_s:.1f} s altogether")


_TOUCHED = frozenset({"worker-lost", "generation-abandoned", "job-failing", "plan-failed", "job-set-aside"})
"""Events that an undisturbed job has no reason for."""
