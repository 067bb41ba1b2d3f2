"""What hostile workers cost others: 2,000 random messages of every type beside another tenant's jobs, on a platform."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.platform import PROGRAMS, Platform, platform, wait_until
from benchmarks.reporter import Bench, main
from fairlead import Client
from fairlead.sdk.jobs import Job
from fairlead.views.jobs import EventView

NODES = "4"  # one trains, one takes the commands, two are the attacker's
MESSAGES, QUICK_MESSAGES = 2000, 200
EACH = 40  # messages that one job tries to say before it ends
SIDE_BY_SIDE = 2
COMMANDS, QUICK_COMMANDS = 60, 10  # of the other tenant, at the least
LATER_S = 1.0
SEED = 20261119
ATTACKER = "attacker"
PAGE = 1000  # events in one answer


def run(bench: Bench) -> None:
    """How long other tenants' commands and steps take beside nobody, beside harmless jobs, and beside hostile ones."""
    messages = QUICK_MESSAGES if bench.quick else MESSAGES
    commands = QUICK_COMMANDS if bench.quick else COMMANDS
    with platform(NODES) as running:
        running.client.create_tenant(ATTACKER)
        training = running.train("hostile.py:watching", "watching")
        steps = running.home / "jobs" / training.id / "output" / "steps"
        wait_until(lambda: steps.exists() and len(_moments(steps)) > 100, 60, "the training trains", every_s=0.1)
        with bench.step("nobody else"):
            alone = _watched(running, steps, commands)
        with bench.step("beside harmless jobs"), Crowd(running, hostile=False).at_work():
            harmless = _watched(running, steps, commands)
        with bench.step(f"beside {messages} hostile messages"), Crowd(running, hostile=True).at_work() as crowd:
            hostile = _watched(running, steps, commands, lambda: sum(crowd.said.values()) >= messages)
        _report(bench, alone, harmless, hostile)
        _report_attack(bench, running, crowd)
        running.end(running.client.job(training.id))
    bench.note("a command is `true`, from submit to succeeded as its tenant sees it; steps by the training's own log; "
               "harmless jobs are the hostile ones without their words: they start, fail and end")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """What the other tenant saw."""

    commands_s: list[float]
    gaps_s: list[float]  # between steps of its training


def _watched(running: Platform, steps: Path, commands: int, enough: Callable[[], bool] = lambda: True) -> Seen:
    begun_s = time.time()
    took_s: list[float] = []
    while len(took_s) < commands or not enough():
        took_s.append(_command(running, len(took_s)))
    moments = [moment for moment in _moments(steps) if moment >= begun_s]
    return Seen(took_s, [after - before for before, after in pairwise(moments)])


def _command(running: Platform, number: int) -> float:
    begun_s = time.monotonic()
    job = running.client.submit({"name": f"true-{number}", "tenant": "bench", "command": ["true"]}, folder=PROGRAMS)
    wait_until(lambda: job.refresh().ended, 60, "a command ends", every_s=0.02)
    if job.state != "succeeded":
        raise RuntimeError(f"a command of somebody else {job.state}: {job.view.message}")
    return time.monotonic() - begun_s


def _moments(steps: Path) -> list[float]:
    return [float(line) for line in steps.read_text().split("\n")[:-1]]


@dataclass(slots=True)
class Crowd:
    """Jobs of the attacker, so many at once, one after the other."""

    running: Platform
    hostile: bool
    said: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    ends: Counter[str] = field(default_factory=Counter)  # what was told of them
    _stop: threading.Event = field(default_factory=threading.Event)
    _adding: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def at_work(self) -> Iterator[Crowd]:
        threads = [threading.Thread(target=self._go, args=(place,)) for place in range(SIDE_BY_SIDE)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _go(self, place: int) -> None:
        with Client(home=self.running.home, timeout_s=60.0) as client:
            number = 0
            while not self._stop.is_set():
                number += 1
                params = {"seed": SEED + 1000 * number + place, "messages": EACH, "hostile": self.hostile}
                name = f"{'hostile' if self.hostile else 'harmless'}-{place}-{number}"
                spec = {"name": name, "tenant": ATTACKER, "run": "hostile.py:attack", "params": params}
                job = client.submit(spec, folder=PROGRAMS)
                self._await(job)
                self._count(job)

    def _await(self, job: Job) -> None:
        until_s = time.monotonic() + 30.0
        while not job.refresh().ended and time.monotonic() < until_s:
            time.sleep(0.05)
        if not job.ended:  # it lies in wait for ever
            job.cancel().wait(30)

    def _count(self, job: Job) -> None:
        said = self.running.home / "jobs" / job.id / "output" / "said"
        with self._adding:
            self.jobs += 1
            self.said.update(said.read_text().split() if said.exists() else [])
            self.ends.update([f"{job.state}: {(job.view.message or '')[:60]}"])


# ------------------------------------------------------------ figures


def _report(bench: Bench, alone: Seen, harmless: Seen, hostile: Seen) -> None:
    _compare(bench, "command", alone.commands_s, harmless.commands_s, hostile.commands_s)
    _compare(bench, "step", alone.gaps_s, harmless.gaps_s, hostile.gaps_s)
    limit_s = statistics.median(harmless.commands_s) + LATER_S
    late, usual = (100 * sum(took_s > limit_s for took_s in seen.commands_s) / len(seen.commands_s)
                   for seen in (hostile, harmless))  # fmt: skip
    bench.add("commands a second over the usual", late, "%", peer="beside harmless", peer_value=usual)
    bench.add("commands", float(len(hostile.commands_s)), "", peer="beside harmless",
              peer_value=float(len(harmless.commands_s)))  # fmt: skip


def _compare(bench: Bench, name: str, alone: list[float], harmless: list[float], hostile: list[float]) -> None:
    figures: dict[str, Callable[[list[float]], float]] = {"median": statistics.median, "slowest": max}
    for what, figure in figures.items():
        bench.add(f"{name}, {what}, alone", figure(alone), "s")
        bench.add(f"{name}, {what}, beside hostile", figure(hostile), "s",
                  peer="beside harmless", peer_value=figure(harmless))  # fmt: skip
    bench.add(f"{name}: slowest later than beside harmless", max(hostile) - max(harmless), "s",
              target=f"<= {LATER_S:g}")  # fmt: skip


def _report_attack(bench: Bench, running: Platform, crowd: Crowd) -> None:
    bench.add("messages that were said", float(sum(crowd.said.values())), f"by {crowd.jobs} jobs")
    bench.add("kinds of messages", float(len(crowd.said)), "of 9")
    own = sum(event.kind in ("platform-error", "job-set-aside") for event in _events(running.client))
    bench.add("errors of the platform's own", float(own), "", target="<= 0")
    bench.details |= {"said": dict(crowd.said), "ends": dict(crowd.ends.most_common(50))}


def _events(client: Client) -> Iterator[EventView]:
    """All of the run, page by page."""
    after = 0
    while page := list(client.events(after=after, limit=PAGE)):
        yield from page
        after = page[-1].id


if __name__ == "__main__":
    main("hostile", run)
