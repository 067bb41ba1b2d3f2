"""The mix of jobs of a campaign: handed in, spared for a while when they were hit, judged when they have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.campaign import own_logs
from tests.chaos.campaign.faults import Fault
from tests.chaos.crashable import PROGRAMS, Crashable, wait_until

TENANTS = {"alpha": 2.0, "beta": 1.0, "gamma": 1.0}
KINDS = ("elastic", "single", "command", "rigid", "pipeline", "elastic", "command")
TRAININGS: dict[str, dict[str, Any]] = {
    "elastic": {"tenant": "alpha", "workers": "1:3"},
    "rigid": {"tenant": "beta", "workers": "2", "plan": "ddp"},
    "single": {"tenant": "gamma", "workers": "1"},
}
OTHERS = {"command": "gamma", "pipeline": "beta"}
NEAR = 1e-4
"""How far losses may lie from those of an undisturbed run where the plans were others."""

MOST_HITS = 2
"""Workers of one command or stage that are killed: it takes no steps, so three losses in a row would mean itself."""

COMMAND = """
life=$FAIRLEAD_WORKER-$(cut -c1-8 /proc/sys/kernel/random/uuid)
note() { echo "$(date +%s.%N) $1 $life" >> "$FAIRLEAD_OUTPUT/runs.log"; }
note begin
at=0
while [ $at -lt $1 ]; do sleep 0.2; at=$((at + 1)); note tick; done
echo $((at * 3)) > "$FAIRLEAD_OUTPUT/value"
note done
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How long the jobs of a campaign take."""

    steps: int = 120
    pause_s: float = 0.25
    ticks: int = 30


@dataclass(slots=True)
class Verdict:
    """How a job came out of all that."""

    state: str
    trouble: list[str] = field(default_factory=list)  # each makes the campaign fail
    lost: bool = False
    doubled: bool = False
    begun_after_done: int = 0
    generations: int = 0
    loss_difference: float | None = None
    exact: bool | None = None  # equal to the undisturbed run to the last bit; None: it ran under other plans
    repeats: bool = False  # the platform says that a rerun gives the same bits
    repeated: bool | None = None  # and whether it did; None: not tried


@dataclass(slots=True)
class Entry:
    """One job, or pipeline, that the campaign handed in."""

    number: int
    kind: str
    id: str
    verdict: Verdict | None = None
    hit_at_step: int = -1  # of a training: it is not hit again before it has made another one
    hits: int = 0


@dataclass(slots=True)
class Undisturbed:
    """What a training comes to without any fault."""

    losses: dict[int, float]
    weights: str | None


class Work:
    """Hands in and judges."""

    def __init__(self, platform: Crashable, size: Size) -> None:
        self.platform = platform
        self.size = size

    def hand_in(self, number: int, kind: str) -> Entry:
        """The same number again is the same job."""
        key = f"campaign-{number}"
        if kind in TRAININGS:
            made = self._train(key, f"{kind[0]}{number}", kind, self.size.pause_s).id
        elif kind == "command":
            spec: dict[str, Any] = {"name": f"c{number}", "tenant": OTHERS[kind], "command": self._command()}
            made = self.platform.submit(spec, key, folder=PROGRAMS).id
        else:
            spec = {"name": f"p{number}", "stages": self._stages()}
            fields: dict[str, Any] = {"folder": PROGRAMS, "tenant": OTHERS[kind], "key": key}
            made = self.platform.call(lambda c: c.run_pipeline(spec, **fields).id)
        return Entry(number, kind, made)

    def undisturbed(self) -> Undisturbed:
        """Run the training that all others are like to its end, on one worker, with nobody in its way."""
        job = self._train("undisturbed", "undisturbed", "single", 0.0)
        self.platform.wait_for_end(job.id, 180)
        assert self.platform.state(job.id) == "succeeded", self.platform.story(job.id)
        lineage = self.platform.call(lambda c: c.lineage(job.id))
        return Undisturbed(self.platform.losses(job.id), lineage.weights)

    def _train(self, key: str, name: str, kind: str, pause_s: float) -> Any:
        fields = TRAININGS[kind] | {"name": name, "params": {"steps": self.size.steps, "pause_s": pause_s}}
        return self.platform.submit("witness.py:training", key, folder=PROGRAMS, **fields)

    def _command(self) -> list[str]:
        return ["sh", "-c", COMMAND, "sh", str(self.size.ticks)]

    def _stages(self) -> dict[str, Any]:
        def stage(value: int | str) -> dict[str, Any]:
            args = {"value": value, "ticks": self.size.ticks // 2}
            return {"run": "witness.py:relay", "args": args, "cache": False}

        return {"first": stage(1), "second": stage("$first"), "third": stage("$second")}

    # ------------------------------------------------------------ while it goes on

    def output(self, job: str) -> Path:
        return self.platform.home / "jobs" / job / "output"

    def ended(self, entry: Entry) -> bool:
        if entry.kind == "pipeline":
            return self.platform.call(lambda c: c.pipeline(entry.id)).ended
        return self.platform.ended(entry.id)

    def hurry(self, entry: Entry) -> None:
        if entry.kind in TRAININGS and self.output(entry.id).is_dir():
            (self.output(entry.id) / "hurry").touch()

    def step(self, job: str) -> int:
        """The last step of a training by its own log; 0: none yet, or no training."""
        made = own_logs.steps(self.output(job))
        return made[-1].number if made else 0

    # ------------------------------------------------------------ when it has ended

    def judged(self, entry: Entry, faults: Sequence[Fault], undisturbed: Undisturbed) -> Verdict:
        """How it came out of all faults so far."""
        if entry.kind == "pipeline":
            return self._judged_pipeline(entry, faults)
        detail = self.platform.call(lambda c: c.detail(entry.id))
        verdict = Verdict(detail.state, generations=len(detail.generations), lost=detail.state != "succeeded")
        if verdict.lost:
            verdict.trouble.append(f"{detail.state}: {detail.message}")
        elif entry.kind == "command":
            value = (self.output(entry.id) / "value").read_text().strip()
            if value != str(self.size.ticks * 3):
                verdict.trouble.append(f"its value is {value!r}")
        else:
            stopped = {worker for fault in faults if fault.for_s for worker in fault.workers_of(entry.id)}
            self._judge_steps(entry, stopped, verdict)
            self._judge_losses(entry, undisturbed, verdict)
        self._judge_runs(entry.id, faults, verdict)
        return verdict

    def _judge_steps(self, entry: Entry, stopped: set[str], verdict: Verdict) -> None:
        made = own_logs.steps(self.output(entry.id))
        if lost := own_logs.missing(made, self.size.steps):
            verdict.lost = True
            verdict.trouble.append(f"steps that nobody made: {_few(lost)}")
        if twice := own_logs.doubled(made, stopped):
            verdict.doubled = True
            verdict.trouble.append(f"steps made again after the one that follows: {_few(twice)}")
        told = [int(row["step"]) for row in self.platform.call(lambda c: c.metrics(entry.id))]
        if told != list(range(1, self.size.steps + 1)):
            verdict.trouble.append(f"the platform's history has {len(told)} steps, {len(set(told))} different ones")

    def _judge_losses(self, entry: Entry, undisturbed: Undisturbed, verdict: Verdict) -> None:
        losses, lineage = self.platform.losses(entry.id), self.platform.call(lambda c: c.lineage(entry.id))
        apart = [abs(losses[step] - undisturbed.losses[step]) for step in losses.keys() & undisturbed.losses.keys()]
        verdict.loss_difference = max(apart, default=math.inf)
        alone = lineage.repeats == "bits" and {each.workers for each in lineage.history} == {1}
        verdict.repeats = lineage.repeats == "bits"
        verdict.exact = (verdict.loss_difference == 0.0 and lineage.weights == undisturbed.weights) if alone else None
        if verdict.exact is False or verdict.loss_difference > NEAR:
            course = ", ".join(f"{each.plan} from step {each.first_step}" for each in lineage.history)
            verdict.trouble.append(f"losses differ by {verdict.loss_difference:.2g} under {course}")

    def repeated(self, entry: Entry) -> bool:
        """Train it again with nobody in its way, in the same parts of the batch: whether the weights are the same."""
        again = self.platform.call(lambda c: c.rerun(entry.id))
        job = again.job.id
        wait_until(lambda: self.output(job).is_dir(), 120, f"{job} begins")
        (self.output(job) / "hurry").touch()
        self.platform.wait_for_end(job, 180)
        return self.platform.call(lambda c: c.lineage(job)).same_weights is True

    def _judged_pipeline(self, entry: Entry, faults: Sequence[Fault]) -> Verdict:
        run = self.platform.call(lambda c: c.pipeline(entry.id))
        verdict = Verdict(run.state, lost=run.state != "succeeded")
        if verdict.lost:
            verdict.trouble.append(f"{run.state}: {run.view.message}")
        elif run.stages["third"].value != 4:
            verdict.trouble.append(f"its value is {run.stages['third'].value!r}")
        for stage in run.view.stages:
            if stage.job is not None:
                self._judge_runs(stage.job, faults, verdict)
        return verdict

    def _judge_runs(self, job: str, faults: Sequence[Fault], verdict: Verdict) -> None:
        lived = own_logs.runs(self.output(job))
        ended = own_logs.begun_after_done(lived)
        verdict.begun_after_done += len(ended)
        hits = [(worker, fault.at_s) for fault in faults for worker in fault.workers_of(job)]
        if again := own_logs.unexcused(ended, hits):
            verdict.doubled = True
            verdict.trouble.append(f"ran again after its end, which nothing hid: {_few([run.life for run in again])}")
        if both := own_logs.beside_each_other(lived):
            verdict.doubled = True
            verdict.trouble.append(f"ran beside itself: {both}")


def _few(many: Sequence[object]) -> str:
    return ", ".join(map(str, many[:5])) + (f" and {len(many) - 5} more" if len(many) > 5 else "")
