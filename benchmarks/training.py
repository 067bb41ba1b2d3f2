"""Time to a trained model: Fairlead against what people use, each as its documentation recommends.

Everybody has the same arrays, network, global batch, learning rate, epochs and both cores, and evaluates after each
epoch.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import unequal
from benchmarks.contest import environment, prepare
from benchmarks.platform import PROGRAMS, Platform, platform
from benchmarks.reporter import Bench, main
from fairlead.errors import FairleadError

GIVE_UP_S = 150.0
FAREWELL_S = 20.0  # Ray takes five
CONTEST = PROGRAMS / "contest"
TASKS = {"cifar10": (10_000, 4), "bank": (37_000, 6), "kdd99": (60_000, 4), "imdb": (12_000, 5)}
FEWER = 6  # times, when it is only for a look
LOADERS = (("rows", "0"), ("rows", "2"), ("tensors", "0"))
AHEAD = 0.725  # 1 / 1.38
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


class Broken(RuntimeError):
    """A peer did not come to its end."""


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
            ratios = []
            for task in tasks:
                results = _contest(bench, running, task, folder, contestants(python))
                ratios.append(_tell(bench, task, results, sources[task]))
    _sum_up(bench, ratios)
    try:
        unequal.run(bench)
    except FairleadError as error:  # cores are emulated as root only
        bench.note(f"unequal workers: not measured, {error}")
    bench.note(
        "loop: from the beginning of the first step to the end of the last evaluation; whole: from command to end"
    )
    bench.note("each peer is shown with the best of: a data set of rows with 0 or 2 loader workers, a TensorDataset")


def _sum_up(bench: Bench, ratios: Sequence[float]) -> None:
    """Over all tasks: how many loops are ahead by as much as the sources claim, and whether any is behind."""
    ahead = sum(ratio <= AHEAD for ratio in ratios)
    bench.add(f"loops 1.38x ahead of the best peer, of {len(ratios)}", ahead, "tasks",
              target=">= 3" if len(ratios) == len(TASKS) else None)  # fmt: skip
    bench.add("the slowest loop, of the best peer's time", max(ratios), "x", target="<= 1")


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
            first = {loader: run_of(one, loader, task, folder) for loader in one.loaders}
            best = min(first, key=lambda loader: first[loader].loop_s)
            kept = Results({"/".join(best): [first[best]]})
            found[one.name] = (one, kept)
            bench.details[f"{task}, {one.name}"] = {"/".join(loader): list(_figures(r)) for loader, r in first.items()}
        job_of_the_contest(running, task, folder)  # whoever was called before is warm
    for turn in range(turns):
        with bench.step(f"{task}: turn {turn + 1} of {turns}"):
            found[FAIRLEAD][1].add("job", job_of_the_contest(running, task, folder))
            for one, results in list(found.values())[1:]:
                if one is not None and turn:
                    (loader,) = results.runs
                    results.add(loader, run_of(one, tuple(loader.split("/")), task, folder))  # type: ignore[arg-type]
    return found


def _figures(run: Run) -> tuple[float, float, float]:
    return run.loop_s, run.whole_s, run.accuracy


def _tell(bench: Bench, task: str, found: Mapping[str, tuple[Contestant | None, Results]], source: str) -> float:
    """The rows of one task; returns the loop's time as a part of the best peer's."""

    def figure(name: str, what: str) -> float:
        (runs,) = found[name][1].runs
        return found[name][1].median(runs, what)

    peers = [name for name, (one, _) in found.items() if one is not None and one.peer]
    rivals = [name for name, (one, _) in found.items() if one is not None and not one.peer]
    for what, words, target in (
        ("loop_s", "loop", f"ratio <= {AHEAD}"),
        ("whole_s", "command to result", "ratio <= 1"),
    ):
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
    bench.note(f"{task}, loops from the fastest to the slowest repeat: " + ", ".join(
        f"{name} {min(times):.2f}-{max(times):.2f} s" for name, times in (
            (name, [run.loop_s for runs in results.runs.values() for run in runs])
            for name, (_, results) in found.items())
    ))  # fmt: skip
    return figure(FAIRLEAD, "loop_s") / min(figure(name, "loop_s") for name in peers)


def job_of_the_contest(running: Platform, task: str, folder: Path, seed: int = 0) -> Run:
    """As a person would: ``fairlead run`` on a platform that runs, until the job has ended."""
    begun_s = time.time()
    words = ("run", "as_job.py:training", "--workers", "1:2", "--tenant", "contest", "--param", f"name={task}",
             "--param", f"folder={folder}", "--param", f"seed={seed}", "--watch", "--json")  # fmt: skip
    done = subprocess.run(running.command(*words), cwd=CONTEST, env=running.environment, capture_output=True, text=True,
                          timeout=GIVE_UP_S, check=False)  # fmt: skip
    ended_s = time.time()
    if done.returncode:
        raise RuntimeError(f"fairlead {task}: {done.stderr.strip() or done.stdout.strip()}")
    job = next(running.client.jobs(tenant="contest"))
    with tempfile.TemporaryDirectory(prefix="fairlead-result-") as place:
        job.result(download=place)
        figures = json.loads(next(Path(place).rglob("metrics.json")).read_text())
    return Run(figures["seconds"], ended_s - begun_s, figures["accuracy"])


def run_of(one: Contestant, loader: tuple[str, str], task: str, folder: Path, seed: int = 0, tries: int = 3) -> Run:
    """One run of a peer; once more if it breaks, as ranks on gloo that leave one another sometimes do."""
    try:
        return _tried(one, loader, task, folder, seed)
    except Broken as error:
        if tries == 1:
            raise
        print(f" again, as it broke: {str(error).splitlines()[-1]} ...", end="", file=sys.stderr, flush=True)
        return run_of(one, loader, task, folder, seed, tries - 1)


def _tried(one: Contestant, loader: tuple[str, str], task: str, folder: Path, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="fairlead-diary-") as place:
        diary, said = Path(place) / "diary", Path(place) / "said"
        command = [*one.command, task, str(folder), str(diary), *loader, *one.threads]
        quiet = {"PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
        quiet["CONTEST_SEED"] = str(seed)
        threads = {"OMP_NUM_THREADS": one.threads[0] if one.threads else "1"}
        with np.load(folder / f"{task}.npz") as asked:
            epochs = int(asked["epochs"])
        begun_s = time.time()
        with said.open("w") as output:
            started = subprocess.Popen(command, env={**os.environ, **quiet, **threads}, stdout=output, stderr=output,
                                       cwd=place, start_new_session=True)  # fmt: skip
        _await_end(started, lambda: len(_lines(diary)) > epochs)
        ended_s, lines = time.time(), _lines(diary)
        if len(lines) <= epochs or started.returncode == -signal.SIGKILL:
            raise Broken(f"{one.name}: {said.read_text().strip()[-2000:]}")
    return Run(lines[-1][0] - lines[0][0], ended_s - begun_s, lines[-1][2])


def _lines(diary: Path) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in diary.read_text().splitlines()] if diary.exists() else []


def _await_end(started: subprocess.Popen[bytes], trained: Callable[[], bool]) -> None:
    """Wait for a peer, but for a rank that waits for one that is gone only so long."""
    until_s = time.monotonic() + GIVE_UP_S
    done = False
    try:
        while started.poll() is None and time.monotonic() < until_s:
            if not done and trained():
                done, until_s = True, time.monotonic() + FAREWELL_S
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # and whoever is left of it
        started.wait()


if __name__ == "__main__":
    sys.path.insert(0, str(PROGRAMS))
    main("training", run, peers=("accelerate", "lightning", "ray"))
