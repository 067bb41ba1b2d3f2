"""Time to a trained model: Fairlead against what people use, each as its documentation recommends.

Everybody has the same arrays, network, global batch, learning rate, epochs and both cores, and evaluates after each
epoch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contest import environment, prepare
from benchmarks.platform import PROGRAMS, Platform, platform
from benchmarks.reporter import Bench, main

GIVE_UP_S = 900.0
CONTEST = PROGRAMS / "contest"
TASKS = {"cifar10": (10_000, 4), "bank": (37_000, 6), "kdd99": (60_000, 4), "imdb": (12_000, 5)}
FEWER = 6  # times, when it is only for a look
LOADERS = (("rows", "0"), ("rows", "2"), ("tensors", "0"))
FAIRLEAD, SLICED = "fairlead", "hand-written loop, sliced tensors"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who trains: the command, up to the words that all of them get."""

    name: str
    command: tuple[str, ...]
    loaders: Sequence[tuple[str, str]] = LOADERS
    threads: tuple[str, ...] = ()
    peer: bool = True  # what people use, and not only a rival that is honest


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from the first step to the end of the last epoch, from the command to its end, and the accuracy."""

    loop_s: float
    whole_s: float
    accuracy: float


@dataclass(slots=True)
class Results:
    """All runs of one task, by contestant and how it loads."""

    runs: dict[str, list[Run]] = field(default_factory=dict)

    def add(self, name: str, run: Run) -> None:
        self.runs.setdefault(name, []).append(run)

    def median(self, name: str, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs[name])

    def best(self, names: Sequence[str], what: str) -> str:
        return min(names, key=lambda name: self.median(name, what))


def run(bench: Bench) -> None:
    """Seconds to the same accuracy, in the loop and from the command to the result, against the best of the peers."""
    chosen = os.environ.get("FAIRLEAD_TASKS", ",".join(TASKS)).split(",")
    tasks = {name: TASKS[name] for name in chosen}
    if bench.quick:
        tasks = {name: (samples // FEWER, min(epochs, 2)) for name, (samples, epochs) in tasks.items()}
    with bench.step("the peers' environment"):
        python = environment(Path(os.environ.get("FAIRLEAD_PEERS", ".venv-peers")).absolute())
    with tempfile.TemporaryDirectory(prefix="fairlead-contest-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        with bench.step("data"):
            sources = prepare(folder, tasks)
        with platform("2") as running:
            running.client.create_tenant("contest", policy={"folders": [made]})
            for task in tasks:
                results = _contest(bench, running, task, folder, contestants(python))
                _tell(bench, task, results, sources[task])
    bench.note(
        "loop: from the first step to the end of the last epoch, with evaluation; whole: from the command to its end"
    )
    bench.note("each peer is shown with the best of: a data set of rows with 0 or 2 loader workers, a TensorDataset")


def contestants(python: Path) -> list[Contestant]:
    """Two processes of one thread each where they divide the work, as Fairlead may."""
    torchrun = (str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    launch = (str(python), "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1")  # fmt: skip
    plain = (str(python), str(CONTEST / "plain.py"))
    return [
        Contestant("torchrun DDP", (*torchrun, str(CONTEST / "with_ddp.py"))),
        Contestant("Accelerate", (*launch, str(CONTEST / "with_accelerate.py"))),
        Contestant("Lightning", (str(python), str(CONTEST / "with_lightning.py"))),
        Contestant("Ray Train", (str(python), str(CONTEST / "with_ray.py"))),
        Contestant("plain loop, 1 thread", plain, LOADERS, ("1",), peer=False),
        Contestant("plain loop, 2 threads", plain, LOADERS, ("2",), peer=False),
        Contestant(SLICED, plain, (("sliced", "0"),), ("1",), peer=False),
    ]


def _contest(
    bench: Bench, running: Platform, task: str, folder: Path, everybody: Sequence[Contestant]
) -> dict[str, tuple[Contestant | None, Results]]:
    """First everybody with every way of loading; then, in turns, all with their best one."""
    turns = 1 if bench.quick else 5
    found: dict[str, tuple[Contestant | None, Results]] = {FAIRLEAD: (None, Results())}
    with bench.step(f"{task}: which way of loading suits whom"):
        for one in everybody:
            first = {loader: _theirs(one, loader, task, folder) for loader in one.loaders}
            best = min(first, key=lambda loader: first[loader].loop_s)
            kept = Results({"/".join(best): [first[best]]})
            found[one.name] = (one, kept)
            bench.details[f"{task}, {one.name}"] = {"/".join(loader): list(_figures(r)) for loader, r in first.items()}
        _ours(running, task, folder)  # whoever was called before is warm
    for turn in range(turns):
        with bench.step(f"{task}: turn {turn + 1} of {turns}"):
            found[FAIRLEAD][1].add("job", _ours(running, task, folder))
            for one, results in list(found.values())[1:]:
                if one is not None and turn:
                    (loader,) = results.runs
                    results.add(loader, _theirs(one, tuple(loader.split("/")), task, folder))  # type: ignore[arg-type]
    return found


def _figures(run: Run) -> tuple[float, float, float]:
    return run.loop_s, run.whole_s, run.accuracy


def _tell(bench: Bench, task: str, found: Mapping[str, tuple[Contestant | None, Results]], source: str) -> None:
    def figure(name: str, what: str) -> float:
        (runs,) = found[name][1].runs
        return found[name][1].median(runs, what)

    peers = [name for name, (one, _) in found.items() if one is not None and one.peer]
    rivals = [name for name, (one, _) in found.items() if one is not None and not one.peer]
    for what, words, target in (("loop_s", "loop", "ratio <= 0.725"), ("whole_s", "command to result", "ratio <= 1")):
        best = min(peers, key=lambda name: figure(name, what))
        bench.add(
            f"{task}, {words}", figure(FAIRLEAD, what), "s", peer=best, peer_value=figure(best, what), target=target
        )
    for name in rivals:
        allowed = "ratio <= 1.05" if name == SLICED else "ratio <= 1"
        bench.add(
            f"{task}, loop",
            figure(FAIRLEAD, "loop_s"),
            "s",
            peer=name,
            peer_value=figure(name, "loop_s"),
            target=allowed,
        )
    best = min(rivals, key=lambda name: figure(name, "whole_s"))
    bench.add(f"{task}, command to result", figure(FAIRLEAD, "whole_s"), "s", peer=best,
              peer_value=figure(best, "whole_s"), target="ratio <= 1")  # fmt: skip
    others = statistics.median(figure(name, "accuracy") for name in (*peers, *rivals))
    bench.add(f"{task}, accuracy behind", 100 * (others - figure(FAIRLEAD, "accuracy")), "points", target="<= 0.3")
    bench.details[task] = {
        name: {loader: [list(_figures(r)) for r in runs] for loader, runs in results.runs.items()}
        for name, (_, results) in found.items()
    }
    bench.note(f"{task}: {source}; best ways of loading: " + ", ".join(
        f"{name} {next(iter(results.runs))}" for name, (one, results) in found.items() if one is not None
    ))  # fmt: skip


def _ours(running: Platform, task: str, folder: Path) -> Run:
    """As a person would: ``fairlead run`` on a platform that runs, until the job has ended."""
    begun_s = time.time()
    words = ("run", "as_job.py:training", "--workers", "1:2", "--tenant", "contest", "--param", f"name={task}",
             "--param", f"folder={folder}", "--watch", "--json")  # fmt: skip
    done = subprocess.run(running.command(*words), cwd=CONTEST, env=running.environment, capture_output=True, text=True,
                          timeout=GIVE_UP_S, check=False)  # fmt: skip
    ended_s = time.time()
    if done.returncode:
        raise RuntimeError(f"fairlead {task}: {done.stderr.strip() or done.stdout.strip()}")
    job = next(running.client.jobs(tenant="contest"))
    rows = job.metrics()
    judged = [row for row in rows if "accuracy" in row]
    first_s = rows[0]["time_s"] - (rows[1]["time_s"] - rows[0]["time_s"])  # the first step counts too
    return Run(judged[-1]["time_s"] - first_s, ended_s - begun_s, judged[-1]["accuracy"])


def _theirs(one: Contestant, loader: tuple[str, str], task: str, folder: Path) -> Run:
    with tempfile.TemporaryDirectory(prefix="fairlead-diary-") as place:
        diary = Path(place) / "diary"
        command = [*one.command, task, str(folder), str(diary), *loader, *one.threads]
        quiet = {"PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
        threads = {"OMP_NUM_THREADS": one.threads[0] if one.threads else "1"}
        begun_s = time.time()
        done = subprocess.run(command, env={**os.environ, **quiet, **threads}, capture_output=True, text=True,
                              timeout=GIVE_UP_S, check=False, cwd=place)  # fmt: skip
        ended_s = time.time()
        if done.returncode or not diary.exists():
            raise RuntimeError(f"{one.name}: {(done.stderr or done.stdout).strip()[-2000:]}")
        lines = [[float(word) for word in line.split()] for line in diary.read_text().splitlines()]
    return Run(lines[-1][0] - lines[0][0], ended_s - begun_s, lines[-1][2])


if __name__ == "__main__":
    sys.path.insert(0, str(PROGRAMS))
    main("training", run, peers=("accelerate", "lightning", "ray"))
