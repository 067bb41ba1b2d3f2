"""What the sandbox costs: start of a gang of four, and speed of training, inside it and outside, turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.platform import Platform, platform, wait_until
from benchmarks.reporter import Bench, main, spread

WORKERS = 4
SAMPLE_S = 0.0003
SAMPLES, EPOCHS = 40_000, 31  # four seconds or so
GIVE_UP_S = 120.0
INSIDE, OUTSIDE = "sandbox", "user"


def run(bench: Bench) -> None:
    """Start and speed of gangs in the sandbox, against the same platform without it."""
    turns, rounds = (3, 2) if bench.quick else (15, 12)
    with _both() as both:
        starts: dict[str, list[tuple[float, float]]] = {INSIDE: [], OUTSIDE: []}
        speeds: dict[str, list[float]] = {INSIDE: [], OUTSIDE: []}
        with bench.step(f"gangs of {WORKERS}, {turns} turns each"):
            for turn in range(turns):
                for level in _order(turn):
                    starts[level].append(_gang(both[level], turn))
        with bench.step(f"training, {rounds} turns each"):
            for turn in range(rounds):
                for level in _order(turn):
                    speeds[level].append(_speed(both[level], turn))
    (ready_in, first_in), (ready_out, first_out) = (_medians(starts[level]) for level in (INSIDE, OUTSIDE))
    peer = f"--isolation {OUTSIDE}"
    bench.add(f"gang of {WORKERS} decided to joined, median of {turns}", ready_in, "s", target="ratio <= 1.3",
              peer=peer, peer_value=ready_out)  # fmt: skip
    bench.add("submit to first step, median", first_in, "s", target="ratio <= 1.3", peer=peer, peer_value=first_out)
    bench.add(f"training throughput, median of {rounds}", statistics.median(speeds[INSIDE]), "samples/s",
              peer=peer, peer_value=statistics.median(speeds[OUTSIDE]))  # fmt: skip
    ratios = [inside / outside for inside, outside in zip(speeds[INSIDE], speeds[OUTSIDE], strict=True)]
    bench.add("same, turn by turn, median", statistics.median(ratios), "of outside", target=">= 0.97")
    bench.add("same, middle half of the turns", spread(ratios), "wide")
    bench.note("two platforms side by side, of which one works at a time; the turns alternate")
    bench.note("both are warm: the platform is up and its fork servers are loaded")
    bench.note("with root, from a tenant's second gang on, sandboxes stand ready; the first gang is among the turns")


@contextmanager
def _both() -> Iterator[dict[str, Platform]]:
    with platform(str(WORKERS), isolation=INSIDE) as inside, platform(str(WORKERS), isolation=OUTSIDE) as outside:
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


def _speed(running: Platform, turn: int) -> float:
    """Samples a second of one worker, from the end of its first epoch to the end of the last."""
    job = running.train("workloads.py:training", f"speed-{turn}", "1", kind="mlp", epochs=EPOCHS, samples=SAMPLES)
    job.result(timeout=GIVE_UP_S)
    rows = job.metrics()
    first = max(row["time_s"] or 0.0 for row in rows if row["epoch"] == 0)
    return float((EPOCHS - 1) * SAMPLES / ((rows[-1]["time_s"] or 0.0) - first))


if __name__ == "__main__":
    main("isolation", run)
