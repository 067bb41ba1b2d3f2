"""Replays seeds of the storm: ``python -m tests.storm SEED [--trace]``, or ``--from 0 --count 100`` for many."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.storm.reverted import REVERTS, reverted
from tests.storm.run import run_seed
from tests.storm.simulated_store import Database


def main() -> int:
    """Exit code 1 when an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--quiet", action="store_true", help="only the sum")
    parser.add_argument("--plain", action="store_true", help="without pipelines and the like, as old seeds were")
    parser.add_argument("--revert", type=int, choices=sorted(REVERTS), help="without the mend of this fault")
    given = parser.parse_args()
    seeds = given.seeds or range(given.first, given.first + given.count)
    counts: Counter[str] = Counter()
    shown: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="fl-storm-") as folder:
        database = Database(Path(folder))
        for seed in seeds:
            began_s = time.process_time()
            with reverted(given.revert):
                report = run_seed(seed, database, keep_trace=given.trace, plain=given.plain)
            took_s = time.process_time() - began_s
            for line in report.lines:
                print(line)
            counts.update({one.invariant for one in report.wrong})
            for one in report.wrong:
                shown.setdefault(one.invariant, seed)
            if not given.quiet:
                print(f"seed {seed}: {report.digest[:16]} {report.virtual_s:.0f} virtual s in {took_s:.2f} s, "
                      f"{report.jobs} jobs, {report.faults} faults")  # fmt: skip
                for one in report.wrong:
                    print(f"    {one.at_s:8.2f} {one.invariant}: {one.text}")
    for invariant, count in counts.most_common():
        print(f"{count:5} of {len(seeds)} seeds: {invariant} (python -m tests.storm {shown[invariant]} --trace)")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
