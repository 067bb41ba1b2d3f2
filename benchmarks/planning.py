"""The planner's choice against the best measured plan, and predicted against measured step times, setting by setting.

Needs root: links and speeds are emulated with network namespaces, tc and cgroup quotas. A setting takes a minute, so
what is finished is kept in the JSON file and not done again; FAIRLEAD_SETTINGS=cnn/2,wide chooses some.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import regret
from benchmarks.machine import machine, versions
from benchmarks.platform import PROGRAMS
from benchmarks.reporter import Bench, table, write
from benchmarks.settings import Setting, chosen, setting
from benchmarks.turns import calibrated, compared, predicted_again
from fairlead.home import Home, default_home
from fairlead.planning.profiles import ModelProfile, model_from, to_plain
from fairlead.profiling.analysis_client import ask_for_profile

ROUNDS, QUICK_ROUNDS = 7, 3
SLOW_LINK = 0.5
"""The link is the bottleneck where it is shaped, and so much of DDP's measured step is not computing."""


def run(bench: Bench, file: Path | None, *, again: bool = False) -> None:
    """Candidates of every setting take turns; the planner is calibrated per model on two plain workers beforehand."""
    home = Home(default_home())
    kept = _kept(file)
    settings = chosen(quick=bench.quick)
    bench.details = {"settings": kept.get("settings", {}), "profiles": kept.get("profiles", {})}
    if again:
        _predict_again(bench, home, file)
    for number, one in enumerate(settings):
        if one.id in bench.details["settings"]:
            continue
        with bench.step(f"{number + 1}/{len(settings)} {one.id}"):
            model = _model(bench, one, home, file)
            rounds = QUICK_ROUNDS if bench.quick else ROUNDS
            found = compared(one, model, home, rounds)
            bench.details["settings"][one.id] = found
            _keep(bench, file)
        print(f"  {_line(found)}", flush=True)
    judge(bench, {one.id: bench.details["settings"][one.id] for one in settings})


def _predict_again(bench: Bench, home: Home, file: Path | None) -> None:
    """Profiles and predictions made anew; what was measured stays, as far as it covers what is chosen now."""
    bench.details["profiles"] = {}
    kept = {}
    for name, found in bench.details["settings"].items():
        one = setting(name)
        now = predicted_again(one, found, _model(bench, one, home, file), home)
        if now is None:
            print(f"  {name}: another plan is chosen now, which was not run", flush=True)
        else:
            kept[name] = now
    bench.details["settings"] = kept
    _keep(bench, file)


def _model(bench: Bench, one: Setting, home: Home, file: Path | None) -> ModelProfile:
    """The model's profile, calibrated once by a few steps of a few plans on two equal workers without a slow link."""
    profiles = bench.details["profiles"]
    if one.model not in profiles:
        plain = ask_for_profile("zoo.py:training", {"model": one.model}, device="cpu", folder=PROGRAMS)
        known = calibrated(one.model, plain, home)
        profiles[one.model] = to_plain(known)
        _keep(bench, file)
    return model_from(profiles[one.model])


def _kept(file: Path | None) -> dict[str, Any]:
    if file is None or not file.is_file():
        return {}
    details: dict[str, Any] = json.loads(file.read_text()).get("details", {})
    return details


def _keep(bench: Bench, file: Path | None) -> None:
    if file is not None:
        write(file, bench, machine(), versions(["fairlead", "torch"]))


def _line(found: Mapping[str, Any]) -> str:
    best, lost = regret.best(found), regret.regret(found, found["chosen"])
    own = regret.row_of(found, found["chosen"])
    off = "" if own is None else f", predicted {own['predicted_s'] * 1e3:.1f} ms, took {regret.measured(own) * 1e3:.1f}"
    beyond = "did not run" if lost is None else f"{lost:.0%} beyond doubt"
    return f"chosen {found['chosen']}, best {best['id']} ({regret.measured(best) * 1e3:.1f} ms), {beyond}{off}"


# ------------------------------------------------------------ what it comes to


def judge(bench: Bench, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """The figures that were promised, over these settings."""
    lost = {name: regret.regret(one, one["chosen"]) for name, one in settings.items()}
    known = [each for each in lost.values() if each is not None]
    if not known:
        return
    bench.add("settings", float(len(settings)), "settings", target=">= 24")
    bench.add("choice within 10 % of the best", 100 * sum(r <= 0.1 for r in known) / len(lost), "%", target=">= 90")
    bench.add("worst choice, beyond the interval", 100 * max(known), "%", target="<= 25")
    many = {name: each for name, each in lost.items() if setting(name).workers > 1}
    if many:
        good = sum(each is not None and each <= 0.1 for each in many.values())
        bench.add(
            f"within 10 %, {len(many)} settings of 2 and more workers", 100 * good / len(many), "%", target=">= 90"
        )
    firsts = [regret.regret(one, one.get("first", one["chosen"])) for one in settings.values()]
    sure = [each for each in firsts if each is not None]
    bench.add("the planner's first, without a margin for replicas", 100 * sum(r <= 0.1 for r in sure) / len(lost), "%")
    bench.add("worst of the planner's first", 100 * max(sure, default=0.0), "%")
    plain = [r for one in settings.values() if (r := regret.plain_regret(one, one["chosen"])) is not None]
    bench.add("within 10 % by the medians alone", 100 * sum(r <= 0.1 for r in plain) / len(lost), "%")
    bench.add("worst by the medians alone", 100 * max(plain), "%")
    rule = [regret.regret(one, one["rule"]) for one in settings.values()]
    ruled = [each for each in rule if each is not None]
    bench.add("|D|/|M| rule within 10 %", 100 * sum(r <= 0.1 for r in ruled) / len(rule), "%")
    bench.add("|D|/|M| rule, worst", 100 * max(ruled, default=0.0), "%")
    rows = [row for one in settings.values() for row in regret.ran(one)]
    own = [row for one in settings.values() if (row := regret.row_of(one, one["chosen"])) is not None]
    off = median(map(regret.error, rows))
    bench.add(f"median error of {len(rows)} predicted steps", 100 * off, "%", target="<= 15")
    bench.add("median error of the chosen plans", 100 * median(map(regret.error, own)), "%")
    _against_ddp(bench, settings)
    for name, each in sorted(lost.items(), key=lambda pair: -(pair[1] or 0.0)):
        if each is None or each > 0.1:
            bench.note(f"{name}: {_line(settings[name])}")
    loads = [one["load"][0] for one in settings.values()]
    bench.note(f"load when settings began: {min(loads):.0f} to {max(loads):.0f}, median {median(loads):.0f}")
    if "FAIRLEAD_DATA" not in os.environ:
        bench.note("FAIRLEAD_DATA is not set: the data are made up, in the shapes of the real ones")


def _against_ddp(bench: Bench, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """How much faster than plain DDP, where the link and not the core holds DDP up."""
    ratios = []
    for name, one in settings.items():
        ddp, own = regret.row_of(one, "ddp"), regret.row_of(one, one["chosen"])
        if ddp is not None and own is not None and link_bound(setting(name), one):
            ratios.append(regret.measured(ddp) / regret.measured(own))
    if ratios:
        bench.add(f"faster than DDP, median of {len(ratios)} slow links", median(ratios), "times", target=">= 1.8")
        bench.add("faster than DDP, least of them", min(ratios), "times")


def link_bound(where: Setting, found: Mapping[str, Any]) -> bool:
    """Whether DDP mostly waits for a shaped link, by measured times: one process tells what its share computes for."""
    ddp, alone = regret.row_of(found, "ddp"), regret.row_of(found, "single")
    if where.bytes_per_s is None or ddp is None or alone is None:
        return False
    computing_s = regret.measured(alone) / where.workers * max(where.cores) / min(where.cores)
    return 1 - computing_s / regret.measured(ddp) > SLOW_LINK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=run.__doc__)
    parser.add_argument("--quick", action="store_true", help="two settings, three rounds: for a look, not for a figure")
    parser.add_argument("--json", metavar="FILE", type=Path, help="where to keep results: what is done is not repeated")
    parser.add_argument("--predict-again", action="store_true", help="keep measured times, make all predictions anew")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("links and speeds are emulated with network namespaces and cgroups: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was built in the kernel is taken down again
    bench = Bench("planning", given.quick)
    run(bench, given.json, again=given.predict_again)
    print(table(bench.rows))
    for note in bench.notes:
        print(f"  {note}")
    _keep(bench, given.json)


if __name__ == "__main__":
    main()
