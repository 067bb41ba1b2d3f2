"""What the sandbox costs: start of a gang of four, and speed of training, inside it and outside, turn by turn."""

from __future__ import annotations

import os
import signal
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.platform import Platform, platform, wait_until
from benchmarks.reporter import Bench, main, spread

WORKERS = 4
SAMPLE_S = 0.0003
GIVE_UP_S = 120.0
WINDOW_S, SETTLED_S = 0.4, 0.1
INSIDE, OUTSIDE = "sandbox", "user"


def run(bench: Bench) -> None:
    """Start and speed of gangs in the sandbox, against the same platform without it."""
    turns, windows = (3, 10) if bench.quick else (15, 150)
    peer = f"--isolation {OUTSIDE}"
    with _both(str(WORKERS)) as both, bench.step(f"gangs of {WORKERS}, {turns} turns each"):
        starts: dict[str, list[tuple[float, float]]] = {INSIDE: [], OUTSIDE: []}
        for turn in range(turns):
            for level in _order(turn):
                starts[level].append(_gang(both[level], turn))
    with _both("1") as both, bench.step(f"training, {windows} windows each"):
        speeds = _speeds(both, windows)
    (ready_in, first_in), (ready_out, first_out) = (_medians(starts[level]) for level in (INSIDE, OUTSIDE))
    bench.add(f"gang of {WORKERS} decided to joined, median of {turns}", ready_in, "s", target="ratio <= 1.3",
              peer=peer, peer_value=ready_out)  # fmt: skip
    bench.add("submit to first step, median", first_in, "s", target="ratio <= 1.3", peer=peer, peer_value=first_out)
    inside, outside = (statistics.mean(speeds[level]) for level in (INSIDE, OUTSIDE))
    bench.add(f"training, {windows} windows", inside, "steps/s", target="ratio >= 0.97", peer=peer, peer_value=outside)
    ratios = [one / other for one, other in zip(speeds[INSIDE], speeds[OUTSIDE], strict=True)]
    bench.add("same, window by window, median", statistics.median(ratios), "of outside")
    bench.add("same, middle half of the windows", spread(ratios), "wide")
    bench.note("two platforms side by side, of which one works at a time; the turns alternate")
    bench.note("both are warm: the platform is up and its fork servers are loaded")
    bench.note("with root, from a tenant's second gang on, sandboxes stand ready; the first gang is among the turns")
    bench.note(f"trainings: one runs for {WINDOW_S} s while the other is stopped, so that both meet the same noise")


@contextmanager
def _both(nodes: str) -> Iterator[dict[str, Platform]]:
    with platform(nodes, isolation=INSIDE) as inside, platform(nodes, isolation=OUTSIDE) as outside:
        yield {INSIDE: inside, OUTSIDE: outside}


def _order(turn: int) -> tuple[str, str]:
    return (INSIDE, OUTSIDE) if turn % 2 else (OUTSIDE, INSIDE)


def _medians(seen: list[tuple[float, float]]) -> tuple[float, float]:
    joined, first = zip(*seen, strict=True)
    return statistics.median(joined), statistics.median(first)


def _gang(running: Platform, turn: int) -> tuple[float, float]:
    """Seconds from the decision to the gang's joining, and from submit to the first step."""
    begun_s = time.time()
    job = running.train("steady.py:training", f"start-{turn}", workers=str(WORKERS), sample_s=SAMPLE_S)
    wait_until(lambda: bool(job.metrics()), GIVE_UP_S, "a first step", every_s=0.02)
    stepped_s = float(job.metrics()[0]["time_s"] or 0.0)
    generation = job.detail().generations[0]
    running.end(job)
    running.warm(WORKERS)
    return (generation.running_s or stepped_s) - generation.created_s, stepped_s - begun_s


def _speeds(both: dict[str, Platform], windows: int) -> dict[str, list[float]]:
    """Steps a second of one worker in each window in which it, and not the other, runs."""
    jobs = {level: both[level].train("counted.py:training", "speed") for level in both}
    files = {level: both[level].home / "jobs" / jobs[level].id / "output" / "steps" for level in both}
    for level in both:
        wait_until(lambda file=files[level]: file.exists() and _steps(file) > 0, GIVE_UP_S, "a first step")  # type: ignore[misc]
    pids = {level: next(iter(both[level].worker_pids(jobs[level].id).values())) for level in both}
    speeds: dict[str, list[float]] = {level: [] for level in both}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    for turn in range(windows):
        for level in _order(turn):
            os.kill(pids[level], signal.SIGCONT)
            speeds[level].append(_window(files[level]))
            os.kill(pids[level], signal.SIGSTOP)
    for level, job in jobs.items():
        os.kill(pids[level], signal.SIGCONT)
        both[level].end(job)
    return speeds


def _window(file: Path) -> float:
    time.sleep(SETTLED_S)
    begun_s, before = time.monotonic(), _steps(file)
    time.sleep(WINDOW_S)
    return (_steps(file) - before) / (time.monotonic() - begun_s)


def _steps(file: Path) -> int:
    return int(struct.unpack("<q", file.read_bytes())[0])


if __name__ == "__main__":
    main("isolation", run)
