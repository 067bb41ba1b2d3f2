"""One campaign: hands in jobs, injects faults among them, judges each job when it has ended, and all at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.campaign import leftovers, own_logs, state_file, table
from tests.chaos.campaign.faults import Fault, Faults, Stopped
from tests.chaos.campaign.held_devices import HeldDevices
from tests.chaos.campaign.state_file import State
from tests.chaos.campaign.work import KINDS, MOST_HITS, TENANTS, TRAININGS, Entry, Size, Work
from tests.chaos.crashable import Crashable, wait_until

PATIENCE_S = 60.0  # for a step of anybody; then the next fault comes all the same
AT_END_S = 300.0
BOOKED_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a campaign does at a time."""

    live: int = 5  # jobs at once
    pause_s: tuple[float, float] = (0.5, 5.0)  # between two faults, beside the wait for a step
    repeated: int = 6  # gangs that are trained again undisturbed, when all is over


FULL = Pace()


class Campaign:
    """Goes on where its state file says that it was."""

    def __init__(
        self, file: Path, seed: int, nodes: int, size: Size, say: Callable[[str], None], pace: Pace = FULL
    ) -> None:  # fmt: skip
        self._file = file
        self._say = say
        self._pace = pace
        found = state_file.read(file)
        self.state = found or State(seed, nodes, size)
        self.state.interrupted += found is not None
        home = state_file.home(file)
        home.mkdir(parents=True, exist_ok=True)
        self.platform = Crashable(home, str(self.state.nodes))
        self.work = Work(self.platform, self.state.size)
        self._stopped = Stopped()
        self._faults = Faults(self.platform, self.state.seed, self._stopped)
        self._began_s = time.monotonic() - self.state.took_s
        self._held: HeldDevices | None = None

    # ------------------------------------------------------------ the whole

    def run(self, faults: int) -> bool:
        """Until there were so many faults and all jobs have ended; whether all is as it must be."""
        try:
            self.platform.up()
            self._begin()
            with HeldDevices(self.platform, self.state.held) as self._held:
                try:
                    self._disturb(faults)
                    self._finish()
                finally:
                    self._stopped.continue_all()
                    self._remember()
            good = self._tell()
        finally:
            self._stopped.continue_all()
            self.platform.down()
        left = leftovers.left(self.platform.home)
        for each in left:
            self._say(f"left behind: {each}")
        return good and not left

    def _begin(self) -> None:
        there = {tenant.name for tenant in self.platform.client.tenants()}
        for name, weight in TENANTS.items():
            if name not in there:
                self.platform.client.create_tenant(name, weight=weight)
        if self.state.undisturbed is None:
            self.state.undisturbed = self.work.undisturbed()
            self._remember()

    def _disturb(self, faults: int) -> None:
        while len(self.state.faults) < faults:
            self._look_after_jobs(self._pace.live)
            self._wait_for_a_step()
            number = self.state.drawn
            chance = self._faults.chance(-number - 1)
            time.sleep(chance.uniform(*self._pace.pause_s))  # the moment itself is what is tested
            fault = self._faults.inject(number, self._may_lose())
            self.state.drawn += 1
            if not self.platform.control_lives():
                self.platform.up()
            if fault is not None:
                self._note(fault)

    def _note(self, fault: Fault) -> None:
        self.state.faults.append(fault)
        hit = {worker.partition("/")[0] for worker in fault.workers}
        for entry in self._live():
            if entry.id in hit:
                entry.hits += 1
                entry.hit_at_step = self.work.step(entry.id)
        self._remember()
        done = sum(entry.verdict is not None for entry in self.state.entries)
        still = f" for {fault.for_s:.0f} s" if fault.for_s else ""
        back = f", back after {fault.back_s:.2f} s" if fault.back_s is not None else ""
        count = f"{self.state.took_s:7.0f} s  fault {len(self.state.faults)}"
        self._say(f"{count}: {fault.kind}: {fault.victim}{still}{back}  ({done} jobs ended)")

    def _remember(self) -> None:
        self.state.took_s = time.monotonic() - self._began_s
        if self._held is not None:
            self.state.held = self._held.by_job
        state_file.write(self._file, self.state)

    # ------------------------------------------------------------ jobs

    def _live(self) -> list[Entry]:
        return [entry for entry in self.state.entries if entry.verdict is None]

    def _look_after_jobs(self, live: int) -> None:
        """Judge those that have ended, and hand in others in their place."""
        for entry in self._live():
            if self.work.ended(entry):
                self._judge(entry)
        while len(self._live()) < live:
            number = len(self.state.entries)
            entry = self.work.hand_in(number, KINDS[number % len(KINDS)])
            self.state.entries.append(entry)
            self._remember()

    def _judge(self, entry: Entry) -> None:
        assert self.state.undisturbed is not None
        entry.verdict = self.work.judged(entry, self.state.faults, self.state.undisturbed)
        for trouble in entry.verdict.trouble:
            self._say(f"  TROUBLE with {entry.id} ({entry.kind}, hit {entry.hits} times): {trouble}")
        self._remember()

    def _may_lose(self) -> dict[str, bool]:
        """Who may lose a worker now: losses in a row without a step would be taken for the job's own doing."""
        may = dict.fromkeys({worker.partition("/")[0] for worker in self.platform.workers()}, True)
        for entry in self._live():
            if entry.kind in TRAININGS:
                may[entry.id] = self.work.step(entry.id) != entry.hit_at_step
            else:
                may[entry.id] = entry.hits < MOST_HITS
        for job in may.keys() - {entry.id for entry in self._live()}:  # a stage of a pipeline
            hits = sum(worker.startswith(f"{job}/") for fault in self.state.faults for worker in fault.workers)
            may[job] = hits < MOST_HITS
        return may

    def _wait_for_a_step(self) -> None:
        trainings = [entry for entry in self._live() if entry.kind in TRAININGS]
        before = {entry.id: self.work.step(entry.id) for entry in trainings}

        def stepped() -> bool:
            self._look_after_jobs(self._pace.live)
            return any(self.work.step(entry.id) != before[entry.id] for entry in trainings)

        try:
            wait_until(stepped, PATIENCE_S, "some training takes a step", every_s=0.5)
        except AssertionError:
            self._say(f"  no training took a step for {PATIENCE_S:g} s")

    # ------------------------------------------------------------ the end

    def _finish(self) -> None:
        self._stopped.continue_all()

        def ended() -> bool:
            for entry in self._live():
                self.work.hurry(entry)
            self._look_after_jobs(0)
            return not self._live()

        try:
            wait_until(ended, AT_END_S, "all jobs end", every_s=0.5)
        except AssertionError:
            for entry in self._live():
                self._say(f"  NOT ENDED: {entry.id} ({entry.kind})")
                if entry.kind != "pipeline":
                    self._say(self.work.platform.story(entry.id))
            return
        try:
            wait_until(lambda: not leftovers.orphans(self.platform, ()), 30, "no worker is left")
        except AssertionError:
            self.state.orphans = leftovers.orphans(self.platform, ())
        self._repeat()

    def _repeat(self) -> None:
        """Some of the gangs that kept their plan, again with nobody in their way: the same bits must come out."""
        gangs = [(entry, entry.verdict) for entry in self.state.entries if entry.kind == "rigid"]
        kept = [(entry, verdict) for entry, verdict in gangs if verdict is not None and verdict.repeats]
        for entry, verdict in kept[: self._pace.repeated]:
            if verdict.repeated is None:
                verdict.repeated = self.work.repeated(entry)
                if not verdict.repeated:
                    verdict.trouble.append("trained again in the same parts it has other weights")
                    self._say(f"  TROUBLE with {entry.id}: {verdict.trouble[-1]}")
                self._remember()

    def _tell(self) -> bool:
        recovered = {fault.number: self._recovered_s(fault) for fault in self.state.faults}
        ledger = self._ledger()
        for text in [*table.by_kind(self.state, recovered), *table.outcomes(self.state), str(ledger)]:
            self._say(text)
        again = f" in {self.state.interrupted + 1} runs" if self.state.interrupted else ""
        took = f"{self.state.took_s / 60:.1f} minutes"
        self._say(f"{len(self.state.faults)} faults in {took}{again}, seed {self.state.seed}")
        told = "contradiction" in self.platform.log()
        if told:
            self._say("the platform contradicted itself: see its log")
        verdicts = [entry.verdict for entry in self.state.entries]
        return (not told and all(v is not None and not v.trouble for v in verdicts)
                and not self.state.orphans and ledger.right)  # fmt: skip

    def _recovered_s(self, fault: Fault) -> list[float]:
        """Of each training that it hit."""
        by_job: dict[str, set[str]] = {}
        for worker in fault.workers:
            job, _, name = worker.partition("/")
            by_job.setdefault(job, set()).add(name)
        took = [own_logs.recovered_s(own_logs.steps(self.work.output(job)), workers, fault.at_s)
                for job, workers in by_job.items()]  # fmt: skip
        return [seconds for seconds in took if seconds is not None]

    def _ledger(self) -> table.Ledger:
        """When nothing runs any more: what ended last is booked within a few seconds."""
        assert self._held is not None
        held = self._held.by_job

        def compared() -> table.Ledger:
            used = self.platform.call(lambda c: c.usage("job", limit=100_000))
            booked = {line.keys["job"]: line.device_hours * 3600 for line in used.lines}
            return table.ledger(held, booked, self.state.faults, self.state.nodes)

        until_s = time.monotonic() + BOOKED_WITHIN_S
        while not (found := compared()).right and time.monotonic() < until_s:
            time.sleep(1.0)
        return found
