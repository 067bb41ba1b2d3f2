"""The same tenants on a real platform with real processes: what happened, by the logs that trainings write."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.platform import PROGRAMS, Platform, kill, platform, wait_until
from benchmarks.tenants_world import Ask, Course, Kill, Scene, Span, Work, drawn, jobs_at_once, kill_times, share
from fairlead.demo.participants import granted_folders
from fairlead.errors import FairleadError

CORES = 0.18  # of each node, so that the platform has cores of its own
FOLDER = PROGRAMS / "tenants"
LOOK_S = 0.2  # between two looks at which workers live
ASK_S = 0.1  # between two looks of a tenant at the log of its job
REST_S = 1.0  # a gang that tells of no step for longer is not at work
MEASURED_S = 12.0
GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """What a process said in a log."""

    at_s: float
    pid: int
    what: str


class Live:
    """One run."""

    def __init__(self, running: Platform, scene: Scene, logs: Path) -> None:
        self.running, self.scene, self.logs = running, scene, logs
        self.course = Course({f"t{at}": weight for at, weight in enumerate(scene.weights)}, scene.machines)
        self.work: dict[str, Work] = {}
        self.ids: dict[str, str] = {}  # job as the platform calls it -> as it is asked for
        self.over = threading.Event()
        self.stretch = 1.0  # how much longer a step takes than it should, with all nodes busy
        self._errors: list[BaseException] = []
        self.begun_s = time.time()  # the log's times count from here
        self._seen: dict[tuple[str, str, int], tuple[float, float]] = {}

    def play(self) -> Course:
        """Measure a step, let the tenants come, kill, and read the logs when time is up."""
        for name, weight in self.course.weights.items():
            spec = {"name": name, "weight": weight, "policy": {"folders": granted_folders()}}
            self.running.client.create_tenant(spec)
        self.stretch = self._measured()
        begun_s = self.begun_s = time.time()
        threads = [threading.Thread(target=self._guarded, args=(self._look,), daemon=True)]
        for tenant, _ in enumerate(self.scene.weights):
            devices = share(self.scene.weights, tenant, self.scene.machines)
            threads += [threading.Thread(target=self._guarded, args=(self._stream, tenant, slot, devices), daemon=True)
                        for slot in range(jobs_at_once(devices))]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            self._kill(begun_s)
            while time.time() < begun_s + self.scene.seconds and not self._errors:
                time.sleep(0.1)
        finally:
            self.over.set()
            for thread in threads:
                thread.join(GIVE_UP_S)
        if self._errors:
            raise self._errors[0]
        return self._read()

    def _guarded(self, what: Any, *args: Any) -> None:
        try:
            what(*args)
        except BaseException as error:  # noqa: BLE001 (told by the thread that waits)
            self._errors.append(error)

    # ------------------------------------------------------------ the tenants

    def _measured(self) -> float:
        """How much longer than it should a step takes with every node busy."""
        asks = [(Ask(f"measured-{at}", "t0", "single", 0.0, 1, 1, 1000.0), Work(True, 10_000, 0.1))
                for at in range(self.scene.machines)]  # fmt: skip
        jobs = [self._hand_in(ask, work) for ask, work in asks]
        try:
            wait_until(lambda: all(len(self._log(ask.id)) > 3 for ask, _ in asks), GIVE_UP_S, "all train", every_s=0.1)
            time.sleep(MEASURED_S)
        finally:
            for job in jobs:
                self.running.end(job)
        gaps = [latter.at_s - former.at_s for ask, _ in asks for former, latter in pairwise(self._log(ask.id)[-60:])]
        return median(gaps) / 0.1

    def _hand_in(self, ask: Ask, work: Work) -> Any:
        log = self.logs / f"{ask.id}.log"
        log.touch()
        log.chmod(0o666)
        spec: dict[str, Any] = {"name": ask.id, "tenant": ask.tenant, "workers": {"min": ask.least, "max": ask.most},
                                "retries": 3}  # fmt: skip
        if work.training:
            params = {"steps": work.steps, "step_s": work.step_s, "log": str(log)}
            spec |= {"run": "logged.py:training", "params": params}
        else:
            spec |= {"command": ["python", "command.py", f"{work.lasts_s:.2f}", str(log)]}
        if ask.deadline_s is not None:
            spec["sla"] = {"deadline": f"{max(ask.deadline_s - self._now_s(), 0.1):.2f}s"}
        if self.scene.tells == "all" or (self.scene.tells == "promised" and ask.deadline_s is not None):
            spec["takes"] = f"{ask.run_s(ask.least):.2f}s"
        while True:
            try:
                return self.running.client.submit(spec, folder=FOLDER, key=ask.id)
            except FairleadError:
                if self.over.wait(0.2):
                    raise

    def _stream(self, tenant: int, slot: int, devices: float) -> None:
        chance, number = Random(f"{self.scene.seed}/{tenant}/{slot}"), 0
        self.over.wait(chance.uniform(0.0, 1.0))
        while not self.over.is_set():
            number += 1
            ask, work = drawn(chance, f"{tenant}-{slot}-{number}", f"t{tenant}", self._now_s(), devices)
            ask = stretched(ask, self.stretch if work.training else 1.0)
            self.course.asks[ask.id], self.work[ask.id] = ask, work
            self.course.step_s[ask.id] = work.step_s * self.stretch
            with suppress(FairleadError):  # time is up
                self.ids[self._hand_in(ask, work).id] = ask.id
            while not self.over.wait(ASK_S):
                if ended_s(self._log(ask.id), work) is not None:
                    break
            self.over.wait(chance.uniform(0.05, 0.3))

    def _log(self, job: str) -> list[Line]:
        return lines((self.logs / f"{job}.log").read_text(), self.begun_s)

    # ------------------------------------------------------------ from outside

    def _look(self) -> None:
        """Note which workers live: each holds a device from when it is first seen to when it is last."""
        while not self.over.wait(LOOK_S):
            now_s = self._now_s()
            for record in self.running.node_records().values():
                for name, worker in record["workers"].items():
                    job, _, each = name.partition("/")
                    pid = int(worker["process"]["pid"])
                    if alive(pid):
                        first_s, _ = self._seen.get((job, each, pid), (now_s, now_s))
                        self._seen[job, each, pid] = first_s, now_s

    def _kill(self, begun_s: float) -> None:
        chance = Random(f"{self.scene.seed}/kills")
        for kind, after_s in kill_times(chance, self.scene):
            while time.time() < begun_s + after_s and not self._errors:
                time.sleep(0.05)
            self._kill_one(kind, chance)

    def _kill_one(self, kind: str, chance: Random) -> None:
        for _ in range(20):
            workers = {(job, node): [int(worker["process"]["pid"])] for node, record in
                       self.running.node_records().items() for name, worker in record["workers"].items()
                       for job in [self.ids.get(name.partition("/")[0], "")]
                       if job and alive(int(worker["process"]["pid"])) and self._at_work(job)}  # fmt: skip
            if workers:
                break
            time.sleep(0.3)
        else:
            return
        victim, node = chance.choice(sorted(workers))
        hit = {"worker": {victim}, "node": {job for job, where in workers if where == node}}.get(
            kind, {job for job, _ in workers})  # fmt: skip
        held = Counter(job for job, _ in workers)
        of = {job: self.course.asks[job].tenant for job in held}
        others = {job: sum(count for other, count in held.items() if other != job and of[other] == of[job])
                  for job in hit}  # fmt: skip
        pid = {"worker": workers[victim, node][0], "node": self.running.node_manager_pid(node)}.get(
            kind, self.running.control.pid)  # fmt: skip
        killed_s = kill(pid) - self.begun_s
        self.course.kills.append(Kill(kind, killed_s, sorted(hit), others))
        if kind == "control-plane":
            self.running.up()

    def _at_work(self, job: str) -> bool:
        told = self._log(job)
        return bool(told) and self._now_s() - told[-1].at_s < REST_S

    def _now_s(self) -> float:
        return time.time() - self.begun_s

    # ------------------------------------------------------------ the end

    def _read(self) -> Course:
        course = self.course
        course.span = Span(0.0, self.scene.seconds)
        for job, ask in list(course.asks.items()):
            told = [line for line in self._log(job) if line.at_s <= course.span.to_s]
            ended = ended_s(told, self.work[job])
            if ended is not None:
                course.ended[job] = ended
            if ask.kind != "command":
                course.steps[job] = steps(told)
            course.worked[job] = at_work(told)
        for (job, _, _), (first_s, last_s) in self._seen.items():
            if job in self.ids:
                course.held[self.ids[job]].append(Span(first_s, min(last_s + LOOK_S / 2, course.span.to_s)))
        self._told()
        return course

    def _told(self) -> None:
        """What the platform says itself."""
        course, kept, recovered = self.course, {}, []
        views = {self.ids[job.id]: job.view for job in self.running.client.jobs() if job.id in self.ids}
        for name, view in views.items():
            course.preempts += view.preemptions
            course.resizes += view.resizes
            kept[name] = view.sla_met is True
            recovered += [view.recovery_s] if view.recoveries and view.recovery_s else []
            if view.state in ("failed", "cancelled"):
                course.failed.append(name)
        course.failed += sorted(set(self.ids.values()) - set(views))
        course.told_kept, course.told_recoveries_s = kept, recovered


def stretched(ask: Ask, by: float) -> Ask:
    """The same with the speed that was measured: it takes longer, and has as much longer."""
    deadline_s = None if ask.deadline_s is None else ask.submitted_s + by * (ask.deadline_s - ask.submitted_s)
    return replace(ask, work_s=by * ask.work_s, deadline_s=deadline_s)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def lines(text: str, begun_s: float = 0.0) -> list[Line]:
    """What was said, counted from a moment on, without a last line that is being written."""
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [Line(float(at_s) - begun_s, int(pid), what) for at_s, pid, what in (line.split() for line in whole)]


def ended_s(told: Sequence[Line], work: Work) -> float | None:
    """When all was done."""
    last = str(work.steps) if work.training else "end"
    return next((line.at_s for line in told if line.what == last), None)


def steps(told: Sequence[Line]) -> list[tuple[float, int]]:
    """Each step of a gang once, by the first of its ranks; what was done again, again."""
    found: list[tuple[float, int]] = []
    told_s: dict[int, float] = {}
    for line in sorted(told, key=lambda line: line.at_s):
        step = int(line.what)
        if step not in told_s or line.at_s - told_s[step] > REST_S:
            found.append((line.at_s, step))
        told_s[step] = line.at_s
    return found


def at_work(told: Sequence[Line]) -> list[tuple[Span, int]]:
    """From when to when a gang was at work, and how many processes; each process of a command begins anew."""
    found: list[tuple[Span, set[int]]] = []
    for line in sorted(told, key=lambda line: line.at_s):
        again = line.what in ("tick", "end") and found and line.pid not in found[-1][1]
        if found and not again and line.at_s - found[-1][0].to_s <= REST_S:
            found[-1] = Span(found[-1][0].from_s, line.at_s), found[-1][1] | {line.pid}
        else:
            found.append((Span(line.at_s, line.at_s), {line.pid}))
    return [(span, len(pids)) for span, pids in found]


@contextmanager
def _folder() -> Iterator[Path]:
    """Where all tenants may write."""
    folder = Path(tempfile.mkdtemp(prefix="fl-tenants-", dir="/tmp"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def play(scene: Scene) -> Course:
    """Play a scene on a platform of its own."""
    with _folder() as logs, platform(f"{scene.machines}x{CORES:g}", isolation="user") as running:
        return Live(running, scene, logs).play()
