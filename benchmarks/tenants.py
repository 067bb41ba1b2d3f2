"""Tenants that all have demand, on the real controller in virtual time: promises kept, shares, recoveries, losses.

``python -m benchmarks.tenants`` plays 2, 6 and 10 tenants of equal weight, and 6 and 10 of weights 1 2 3 1 2 3 and so
on, on eight machines of one device: each tenant always has three jobs or more in the cluster (elastic, rigid and single
trainings, and commands as for inference), 35 % of them with a deadline of 1.5 to 3 times what they need at their
tenant's fair share. A worker, a node manager and the control plane are killed on the way. Everything is timed by step
logs outside of the platform (``tenants_world``, ``tenants_figures``); the platform's own figures stand beside it. The
same seeds are played with plain first come, first served.

To judge a change of the policy, play one row with one seed (5 to 10 CPU seconds), or compare two policies on the same
seeds; tenants hand in the same jobs, the n-th of each line when the one before it has ended::

    python -m benchmarks.tenants --rows 10 --seeds 1 --no-fifo
    python -m benchmarks.tenants --rows 6w --seeds 3 --no-fifo --policy benchmarks.tenants_fifo:fifo

``--live`` plays on a real platform with real processes, on nodes of 0.18 core (``tenants_live``); step times are first
measured with all nodes busy. It needs a machine of which nobody else makes use.

``--policy`` names a function from ``ClusterState`` to ``Round`` that takes the place of ``decide`` in the controller;
``--within`` a function that gives a context in which to play, for any other change. ``--seeds 3`` plays seeds 1 to 3,
``--seed 7`` only that one. ``--misses 0`` shows no story of missed promises.

Promises count when their deadline lies within the run. The reference (``tenants_reference``) is what each tenant could
keep on what is its own. Shares count from 30 s on, as used / due; the due is max-min by weight among tenants with
demand, at each instant. Recovery is from a kill to the next step of each gang that ran then, of trainings and commands,
and whose minimum fits what is due to its tenant; those of the control plane are shown apart, as no gang need stop for
it.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from statistics import fmean
from typing import Any

from benchmarks.reporter import Bench, main
from benchmarks.tenants_fifo import fifo
from benchmarks.tenants_figures import Figures, Recovery, figures, pooled
from benchmarks.tenants_live import play as play_live
from benchmarks.tenants_world import Scene, play

ROWS: dict[str, tuple[str, tuple[float, ...]]] = {
    "2": ("2 equal", (1.0,) * 2),
    "6": ("6 equal", (1.0,) * 6),
    "10": ("10 equal", (1.0,) * 10),
    "6w": ("6, weights 1 2 3", (1.0, 2.0, 3.0) * 2),
    "10w": ("10, weights 1 2 3", (*(1.0, 2.0, 3.0) * 3, 1.0)),
}
SEEDS, SECONDS = 34, 240.0  # for 500 promises a row
QUICK_SEEDS, QUICK_SECONDS, LIVE_SEEDS = 1, 90.0, 3
FIFO = f"{fifo.__module__}:{fifo.__name__}"


@dataclass(frozen=True, slots=True)
class Part:
    """One run to be played, here or in another process."""

    row: str
    scene: Scene
    policy: str | None = None
    within: str | None = None
    live: bool = False


@dataclass
class Pool:
    """The runs of one row under one policy."""

    runs: list[Figures] = field(default_factory=list)
    took_s: float = 0.0

    def total(self, name: str) -> int:
        return sum(getattr(run, name) for run in self.runs)

    def part(self, name: str, of: str) -> float | None:
        whole = self.total(of)
        return self.total(name) / whole if whole else None

    def each(self, name: str) -> list[Any]:
        return [getattr(run, name) for run in self.runs]

    def recoveries(self, *kinds: str) -> list[Recovery]:
        return [one for run in self.runs for one in run.recoveries if one.kind in kinds]


def named(path: str | None) -> Any:
    """What ``module:name`` stands for."""
    if path is None:
        return None
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def played(part: Part) -> tuple[Part, Figures, float]:
    """One run's figures, and the processor time that it took."""
    begun_s = time.process_time()
    course = play_live(part.scene) if part.live else play(part.scene, named(part.policy), named(part.within))
    found = replace(figures(course), seed=part.scene.seed)
    return part, found, time.process_time() - begun_s


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {','.join(ROWS)}; all")
    parser.add_argument("--seeds", type=int, help=f"so many runs a row ({SEEDS})")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--seconds", type=float, help=f"of virtual time a run ({SECONDS:g})")
    parser.add_argument("--policy", metavar="MODULE:NAME", help="in place of decide")
    parser.add_argument("--within", metavar="MODULE:NAME", help="gives a context in which to play")
    parser.add_argument("--no-fifo", action="store_true", help="without the line of plain FIFO")
    parser.add_argument("--no-kills", action="store_true", help="nothing is killed")
    parser.add_argument("--tells", choices=("promised", "all", "none"), default="promised",
                        help="which jobs say how long they take (takes_s)")  # fmt: skip
    parser.add_argument("--live", action="store_true", help="real processes on nodes of 0.18 core, no other policy")
    parser.add_argument("--misses", type=int, default=12, help="so many stories of missed promises a row (12)")
    parser.add_argument("--workers", type=int, default=1, help="processes that play")


def parts(given: argparse.Namespace) -> list[Part]:
    """All runs that were asked for."""
    usual = QUICK_SEEDS if given.quick else LIVE_SEEDS if given.live else SEEDS
    seeds = [given.seed] if given.seed else range(1, 1 + (given.seeds or usual))
    seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    policies = [given.policy] if given.no_fifo or given.live else [given.policy, FIFO]
    return [
        Part(row, Scene(ROWS[row][1], seed, seconds, kills=not given.no_kills, tells=given.tells), policy,
             given.within, given.live)
        for row in given.rows.split(",") for policy in policies for seed in seeds
    ]  # fmt: skip


def _all(chosen: Sequence[Part], workers: int) -> Iterator[tuple[Part, Figures, float]]:
    if workers <= 1:
        yield from map(played, chosen)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(played, chosen)


def run(bench: Bench) -> None:
    """Promises, shares and recoveries of tenants that all have demand, in virtual time."""
    given = bench.given
    pools: dict[tuple[str, str | None], Pool] = {}
    chosen = parts(given)
    with bench.step(f"{len(chosen)} runs"):
        for part, found, took_s in _all(chosen, given.workers):
            pool = pools.setdefault((part.row, part.policy), Pool())
            pool.runs.append(found)
            pool.took_s += took_s
            bench.details.setdefault(f"{ROWS[part.row][0]} {part.policy or 'fairlead'}", []).append(
                {"cpu_s": took_s, **asdict(found)}
            )
    ours = {row: pools[row, given.policy] for row in given.rows.split(",")}
    for row, pool in ours.items():
        _row(bench, ROWS[row][0], pool, pools.get((row, FIFO)), 0.93 if given.live else 0.97)
    _recovery(bench, list(ours.values()), [pool for (_, policy), pool in pools.items() if policy == FIFO])
    for row, pool in ours.items():
        _notes(bench, ROWS[row][0], pool, given.misses)


def _row(bench: Bench, name: str, pool: Pool, other: Pool | None, kept: float) -> None:
    def add(what: str, unit: str, figure: Callable[[Pool], float | None], target: str | None = None) -> None:
        bench.add(f"{name}: {what}", figure(pool), unit, target=target, peer="FIFO" if other else None,
                  peer_value=figure(other) if other else None)  # fmt: skip

    add(f"promises kept, of {pool.total('promises')}", "", lambda p: p.part("kept", "promises"))
    add(f"... of {pool.total('reference')} of the reference", "", lambda p: p.part("kept_of_reference", "reference"),
        f">= {kept}")  # fmt: skip
    add("Jain of used / due", "", lambda p: fmean(p.each("jain_devices")), ">= 0.98")
    add("... worst run", "", lambda p: min(p.each("jain_devices")), ">= 0.96")
    add("Jain of useful steps", "", lambda p: fmean(p.each("jain_steps")), ">= 0.97")
    add("... worst run", "", lambda p: min(p.each("jain_steps")), ">= 0.95")
    add("longest that a tenant with work had nothing", "s", lambda p: max(p.each("empty_s")))
    add("... of largest gang x turn / due", "", lambda p: max(p.each("empty_part")), "<= 1")
    add("device time lost to changes", "", lambda p: fmean(p.each("lost_to_changes")), "<= 0.05")
    add("preempts a run", "", lambda p: fmean(p.each("preempts")))
    add("resizes a run", "", lambda p: fmean(p.each("resizes")))
    add("device time held", "", lambda p: fmean(p.each("used")))
    add("jobs ended a run", "", lambda p: fmean(p.each("jobs")))
    add("jobs lost or doubled", "", lambda p: float(sum(len(run.lost) + len(run.doubled) for run in p.runs)), "<= 0")


def _recovery(bench: Bench, ours: Sequence[Pool], others: Sequence[Pool]) -> None:
    """Of all rows together."""
    for name, kinds in (("worker or node killed", ("worker", "node")), ("worker killed", ("worker",)),
                        ("node killed", ("node",)), ("control plane killed", ("control-plane",))):  # fmt: skip
        found = [one for pool in ours for one in pool.recoveries(*kinds)]
        peers = [one for pool in others for one in pool.recoveries(*kinds)]
        if not found:
            continue
        kills = sum(run.kills.get(kind, 0) for pool in ours for run in pool.runs for kind in kinds)
        for what, place, target in (("median", 0, "<= 0.6"), ("worst", 1, "<= 5")):
            bench.add(f"{name} {kills}x, to next step: {what}", pooled(found)[place], "s", target=target,
                      peer="FIFO" if peers else None, peer_value=pooled(peers)[place] if peers else None)  # fmt: skip


def _notes(bench: Bench, name: str, pool: Pool, stories: int) -> None:
    causes = Counter(f"{one.cause}{'' if one.reference else ' (not kept by the reference either)'}"
                     for run in pool.runs for one in run.missed)  # fmt: skip
    recovered = [seconds for run in pool.runs for seconds in run.told_recoveries_s]
    told, kept = pool.total("told_kept"), pool.total("kept")
    charged = [each for each in pool.each("charged") if each is not None]
    of_held = f", charges {fmean(charged):.3f} of what was held" if charged else ""
    bench.note(f"{name}: {pool.took_s:.0f} CPU s; used / due of the worst run: {_worst(pool)}; worst 10 s window "
               f"{min(pool.each('worst_window')):.2f}; nothing longest: {_emptiest(pool)}; the platform says {told} "
               f"promises kept ({told - kept:+d}){of_held}, and saw recoveries of "
               f"{' '.join(f'{each:.2f}' for each in sorted(recovered))} s")  # fmt: skip
    if causes:
        bench.note(f"{name}, missed: " + "; ".join(f"{count} {cause}" for cause, count in causes.most_common()))
    shown = [(run.seed, one) for run in pool.runs for one in run.missed if one.reference]
    for seed, one in shown[:stories]:
        bench.note(f"  seed {seed}, missed {one.job} ({one.cause}): {one.story}")
    times = sorted(one.took_s for one in pool.recoveries("worker", "node") if not one.why_not)
    bench.note(f"{name}: worker or node killed, to next step, each: {' '.join(f'{each:.2f}' for each in times)} s")
    for seed, recovery in ((run.seed, one) for run in pool.runs for one in run.recoveries):
        if recovery.took_s > 5.0:
            took = f"{recovery.took_s:.1f} s" + ("" if recovery.stepped else " to the end of the run, no step")
            bench.note(f"  seed {seed}, {recovery.kind} killed at {recovery.at_s:.1f}: {recovery.job} {took}"
                       + (f" ({recovery.why_not})" if recovery.why_not else ""))  # fmt: skip
    for run in pool.runs:
        for text in [*(f"lost {job}" for job in run.lost), *(f"doubled {job}" for job in run.doubled), *run.wrong]:
            bench.note(f"{name}, seed {run.seed}: {text}")


def _worst(pool: Pool) -> str:
    run = min(pool.runs, key=lambda run: run.jain_devices)
    return " ".join(f"{ratio:.2f}" for _, ratio in sorted(run.ratios.items(), key=lambda each: int(each[0][1:])))


def _emptiest(pool: Pool) -> str:
    run = max(pool.runs, key=lambda run: run.empty_s)
    return f"{run.empty_of} {run.empty_s:.1f} s"


if __name__ == "__main__":
    main("tenants", run, options=_options)
