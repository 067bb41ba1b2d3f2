"""From a kill -9 to the next finished step: of workers, nodes and the control plane; torchrun in the same run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from benchmarks.platform import Platform, kill, platform, wait_until
from benchmarks.reporter import Bench, main
from benchmarks.torchrun import torchrun
from fairlead.errors import Unavailable
from fairlead.sdk.jobs import Job
from fairlead.views.jobs import JobDetail

NODES = 4
TARGET = "<= 2.0"
PAUSE_S = 0.02  # of the peer's step: about what a step of the gang of three takes
STEADY = 15  # steps before each kill, so that a snapshot exists and all is calm
GIVE_UP_S = 60.0


def run(bench: Bench) -> None:
    """Seconds from a kill -9 to the next finished step, median and worst."""
    times = 2 if bench.quick else 5
    with bench.step("torchrun, a worker of three"):
        peer, peer_s = _torchrun(bench)
    with platform(str(NODES)) as running:
        killed: Counter[str] = Counter()
        gang = running.train("steady.py:training", "gang", workers="1:3")
        with bench.step("a worker of a gang of three"):
            _report(bench, "kill a worker of 3", [_worker_dies(running, gang, n) for n in range(times)], peer, peer_s)
        with bench.step("the node of one of three"):
            _report(bench, "kill a node of 3", [_node_dies(running, gang, 3, killed) for _ in range(times)])
        with bench.step("the control plane"):
            _control_dies(bench, running, gang, times)
        running.end(running.client.job(gang.id))  # by the address that the platform has now
        single = running.train("steady.py:training", "single", workers="1")
        with bench.step("the node of a single worker"):
            took_s = [_node_dies(running, single, 1, killed) for _ in range(times)]
            _report(bench, "kill a single worker's node", took_s)
        running.end(single)
    bench.note("seconds from kill -9 to the next finished step; a gang's survivors go on, a single worker's job starts "
               "again on another node from its last snapshot; the control plane is started by fairlead up")  # fmt: skip


def _report(bench: Bench, what: str, took_s: list[float], peer: str | None = None, peer_s: float | None = None) -> None:
    bench.add(f"{what}: median of {len(took_s)}", statistics.median(took_s), "s", target=TARGET,
              peer=peer, peer_value=peer_s)  # fmt: skip
    bench.add(f"{what}: worst", max(took_s), "s")


# ------------------------------------------------------------ kills


def _worker_dies(running: Platform, gang: Job, turn: int) -> float:
    """One rank dies, another one each time: rank 0, which reports, is among them."""
    detail = _steady(gang, 3)
    members = detail.generations[-1].members
    victim = members[turn % len(members)].worker
    return _next_step_after(kill(running.worker_pids(gang.id)[victim]), gang)


def _node_dies(running: Platform, job: Job, workers: int, killed: Counter[str]) -> float:
    """The node manager dies and its workers with it. The node that died least is taken: it comes back soonest."""
    running.warm(NODES)
    detail = _steady(job, workers)
    node = min((member.node for member in detail.generations[-1].members), key=lambda name: killed[name])
    killed[node] += 1
    return _next_step_after(kill(running.node_manager_pid(node)), job)


def _steady(job: Job, workers: int) -> JobDetail:
    """Wait until the job runs with so many workers, and has for a while."""

    def calm() -> bool:
        detail = job.detail()
        newest = detail.generations[-1] if detail.generations else None
        if newest is None or detail.state != "running" or newest.phase != "running" or detail.workers != workers:
            return False
        begun_s = newest.running_s or newest.created_s
        return time.time() - begun_s > 1.5 and sum(row["time_s"] > begun_s for row in job.metrics()) > STEADY

    try:
        wait_until(calm, GIVE_UP_S, f"{job.name} trains with {workers} workers", every_s=0.1)
    except TimeoutError as error:
        seen = job.detail()
        raise TimeoutError(f"{error}: it is {seen.state} with {seen.workers}, {seen.reason}") from None
    return job.detail()


def _next_step_after(killed_s: float, job: Job) -> float:
    """Seconds from the kill to the first step of the generation that it led to.

    A step that was under way may still be finished by the survivors right after the kill: it does not count.
    """
    found: list[float] = []

    def stepped() -> bool:
        later = [g.created_s for g in job.detail().generations if g.created_s >= killed_s]
        if later:
            found.extend(sorted(row["time_s"] for row in job.metrics() if row["time_s"] > later[0]))
        return bool(found)

    wait_until(stepped, GIVE_UP_S, f"{job.name} trains again", every_s=0.05)
    return found[0] - killed_s


def _control_dies(bench: Bench, running: Platform, gang: Job, times: int) -> None:
    """It is started again at once; meanwhile the gang trains on, as its steps must show."""
    seen = [_control_dies_once(running, gang.id) for _ in range(times)]
    answers_s, pauses_s, harmed = zip(*seen, strict=True)
    name = "kill the control plane"
    bench.add(f"{name}: API back, median", statistics.median(answers_s), "s", target=TARGET)
    bench.add(f"{name}: API back, worst", max(answers_s), "s")
    bench.add(f"{name}: longest step", max(pauses_s), "s", target=TARGET)
    bench.add(f"{name}: gangs disturbed", float(sum(harmed)), f"of {times}", target="<= 0")


def _control_dies_once(running: Platform, job: str) -> tuple[float, float, bool]:
    """Seconds until the API answers, the longest gap between two steps meanwhile, and whether the gang noticed."""
    running.warm(NODES)
    before = _steady(running.client.job(job), 3)
    killed_s = kill(running.control.pid)
    running.up()
    wait_until(lambda: _asked(lambda: running.client.job(job)), GIVE_UP_S, "the API answers")
    answered_s = time.time()
    gang = running.client.job(job)
    wait_until(lambda: gang.metrics()[-1]["time_s"] > answered_s, GIVE_UP_S, "steps after it", every_s=0.05)
    stepped = [row["time_s"] for row in gang.metrics() if row["time_s"] > killed_s - 0.5]
    pause_s = max(after - earlier for earlier, after in pairwise(stepped))
    return answered_s - killed_s, pause_s, gang.detail().generation != before.generation


def _asked(what: Callable[[], object]) -> bool:
    try:
        what()
    except Unavailable:
        return False
    return True


# ------------------------------------------------------------ the peer


def _torchrun(bench: Bench) -> tuple[str, float | None]:
    """A worker of torchrun's dies: the plain way, and with a store prefix per attempt that makes gloo restart."""
    plain = [_torchrun_once(False) for _ in range(1 if bench.quick else 2)]
    worked = [took_s for took_s in plain if took_s is not None]
    if worked:
        return f"torchrun --max-restarts ({len(worked)} of {len(plain)} recovered)", statistics.median(worked)
    bench.note(f"torchrun --max-restarts as documented: 0 of {len(plain)} gangs trained again within {GIVE_UP_S:g} s")
    helped = [_torchrun_once(True) for _ in range(1 if bench.quick else 3)]
    worked = [took_s for took_s in helped if took_s is not None]
    bench.note(f"peer: with a store prefix per attempt in the user's code {len(worked)} of {len(helped)} trained again")
    return "torchrun + workaround", statistics.median(worked) if worked else None


def _torchrun_once(workaround: bool) -> float | None:
    """Seconds from the kill to rank 0's next step; None when torchrun gave up."""
    env = {"WORKAROUND": "1"} if workaround else {}
    with torchrun("steady_ddp.py", (100_000, PAUSE_S), workers=3, restarts=3, env=env) as gang:
        wait_until(lambda: gang.ended or len(gang.steps(0)) > 3 * STEADY, GIVE_UP_S, "torchrun trains", every_s=0.05)
        if gang.ended:
            return None
        old = {rank: gang.steps(rank)[-1].pid for rank in range(3)}
        killed_s = kill(old[1])
        until = time.monotonic() + GIVE_UP_S
        fresh: list[float] = []
        while not fresh and not gang.ended and time.monotonic() < until:
            time.sleep(0.05)
            fresh = [step.time_s for step in gang.steps(0) if step.pid != old[0]]
        return fresh[0] - killed_s if fresh else None


if __name__ == "__main__":
    main("recovery", run)
