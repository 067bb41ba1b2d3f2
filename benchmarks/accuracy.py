"""Whether speed costs accuracy (D8): the contest's four tasks under many seeds, as jobs and as plain loops.

One seed says little: the same loop ends up to two points apart under two of them. What is measured here does not
depend on how busy the machine is.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contest import prepare
from benchmarks.platform import PROGRAMS, platform
from benchmarks.reporter import Bench, main
from benchmarks.training import CONTEST, SLICED, TASKS, Contestant, job_of_the_contest, run_of

SEEDS = 12
PLAIN = Contestant(SLICED, (sys.executable, str(CONTEST / "plain.py")), threads=("1",), peer=False)


def run(bench: Bench) -> None:
    """Accuracy after the last epoch, means over the seeds, against a loop in one process."""
    seeds = range(2 if bench.quick else SEEDS)
    with tempfile.TemporaryDirectory(prefix="fairlead-contest-") as made, platform("2") as running:
        folder = Path(made)
        folder.chmod(0o755)
        tasks = os.environ.get("FAIRLEAD_TASKS", ",".join(TASKS)).split(",")
        sources = prepare(folder, {name: TASKS[name] for name in tasks})
        running.client.create_tenant("contest", policy={"folders": [made]})
        for task in tasks:
            with bench.step(f"{task}, {len(seeds)} seeds each"):
                ours = [100 * job_of_the_contest(running, task, folder, seed).accuracy for seed in seeds]
                theirs = [100 * run_of(PLAIN, ("sliced", "0"), task, folder, seed).accuracy for seed in seeds]
            bench.details[task] = {"fairlead": ours, SLICED: theirs}
            behind = statistics.mean(theirs) - statistics.mean(ours)
            bench.add(f"{task}, accuracy behind, {len(seeds)} seeds", behind, "points", target="<= 0.3")
            bench.note(f"{task}: {sources[task]}; {statistics.mean(ours):.2f} against {statistics.mean(theirs):.2f} %, "
                       f"standard error of the difference {error(ours, theirs):.2f} points")  # fmt: skip
    bench.note(f"against the {SLICED}, with the same network, batch, learning rate and epochs")


def error(one: Sequence[float], other: Sequence[float]) -> float:
    """Standard error of the difference of the means."""
    return math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))


if __name__ == "__main__":
    sys.path.insert(0, str(PROGRAMS))
    main("accuracy", run)
