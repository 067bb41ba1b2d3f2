"""Two workers of which one is half as fast: how much of the ideal they reach, and how far their times lie apart.

Cores are emulated by cgroup quotas (as root). The ideal of 2:1 workers is 1.5 times the fast one alone. Two machines
do not slow each other down, but two processes on one do (they share caches and memory, and cores that may be threads
of one core): so the fast worker is measured while the slow one trains as well, apart from it. A row without a target
shows what it is against the fast worker on an otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.platform import PROGRAMS
from benchmarks.reporter import Bench, main
from fairlead.agent.embedded.emulation import emulated
from fairlead.planning.plan import Plan

CORES = (0.4, 0.2)
IDEAL = sum(CORES) / max(CORES)
MODEL, BATCH, PIECES = "transformer", 256, 3  # much to compute for what is exchanged, at the same cost a sample
WINDOW_S, ROUNDS, QUICK_ROUNDS = 6.0, 15, 3
SETTLE = 2  # rounds before the shares have followed
PATIENCE_S = 900.0


def run(bench: Bench) -> None:
    """Speed of 2:1 workers against the fast one alone, and the spread of their compute times before each exchange."""
    rounds = SETTLE + (QUICK_ROUNDS if bench.quick else ROUNDS)
    alone, both = Plan(microbatches=PIECES), Plan(data=2, sync="allreduce", microbatches=PIECES)
    with bench.step(f"{MODEL} on {CORES[0]:g} and {CORES[1]:g} cores, in turns"):
        taken = _turns([alone, alone, both, both], accompanied=[0], held=[3], rounds=rounds)
    judge(bench, *taken)


def judge(
    bench: Bench, apart: dict[str, Any], alone: dict[str, Any], following: dict[str, Any], equal: dict[str, Any]
) -> None:
    """The rows that were promised. Ratios are taken round by round: whatever disturbs one disturbs its neighbours."""
    ratios = _of_ideal(apart, following)
    bench.add("unequal workers 2:1, of the ideal 1.5x", median(ratios), "%", peer="equal shares",
              peer_value=median(_of_ideal(apart, equal)), target=">= 95")  # fmt: skip
    bench.add("the same, against the fast one on an idle machine", median(_of_ideal(alone, following)), "%")
    bench.add("unequal workers, spread of compute times", 100 * median(map(spread, following["compute_s"][SETTLE:])),
              "%", peer="equal shares", peer_value=100 * median(map(spread, equal["compute_s"][SETTLE:])),
              target="<= 7")  # fmt: skip
    bench.details["unequal"] = {"apart": apart, "alone": alone, "following": following, "equal": equal}
    shares = " ".join(f"{median(column):.1%}" for column in zip(*following["shares"][SETTLE:], strict=True))
    bench.note(
        f"unequal workers: {MODEL}, batches of {BATCH} in {PIECES} pieces, quotas of {CORES[0]:g} and {CORES[1]:g} "
        f"core in periods of 10 ms; shares came to {shares}; {min(ratios):.0f} to {max(ratios):.0f} % in "
        f"{len(ratios)} rounds"
    )


def _of_ideal(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    return [100 * a / b / IDEAL for a, b in zip(one["step_s"], other["step_s"], strict=True)][SETTLE:]


def spread(times_s: Sequence[float]) -> float:
    """How far the times lie apart, as a part of their mean."""
    return (max(times_s) - min(times_s)) * len(times_s) / sum(times_s)


def _turns(plans: Sequence[Plan], accompanied: Sequence[int], held: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    with emulated(len(CORES), None, 0.0, CORES) as places:
        question = {
            "run": "zoo.py:training", "params": {"model": MODEL, "batch_size": BATCH}, "rounds": rounds,
            "plans": [plan.to_plain() for plan in plans], "held": list(held), "accompanied": list(accompanied),
            "window_s": WINDOW_S, "places": [asdict(place) for place in places], "folder": str(PROGRAMS),
        }  # fmt: skip
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            [sys.executable, "-m", "fairlead.training.plan_benchmark"], input=json.dumps(question), capture_output=True,
            text=True, env=variables, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    answer = json.loads(lines[-1]) if lines else {"error": done.stderr.strip().rpartition("\n")[2]}
    broken = answer.get("error") or next((one["error"] for one in answer["taken"] if one["error"]), "")
    if broken:
        raise RuntimeError(f"unequal workers: {broken}")
    taken: list[dict[str, Any]] = answer["taken"]
    return taken


if __name__ == "__main__":
    main("unequal", run)
