"""The table of a campaign: faults and recoveries by kind, what was lost or doubled, the ledger, the losses."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.campaign.faults import WEIGHTS, Fault
from tests.chaos.campaign.held_devices import Held
from tests.chaos.campaign.state_file import State
from tests.chaos.campaign.work import TRAININGS

LEDGER_PART, LEDGER_LIFE_S = 0.02, 2.0
"""How far the ledger may be off: a part of what was held, so much for each life of a worker, and what nobody led."""

STARTS_S = 5.0  # before a worker is seen


def by_kind(state: State, recovered: Mapping[int, Sequence[float]]) -> list[str]:
    """Faults, and seconds from each to the next step of the trainings that it hit."""
    lines = [f"{'FAULT':34}{'TIMES':>6}{'RECOVERIES':>12}{'MEDIAN':>10}{'WORST':>10}"]
    for kind in WEIGHTS:
        faults = [fault for fault in state.faults if fault.kind == kind]
        took_s = [s for fault in faults for s in recovered.get(fault.number, ())]
        took_s += [fault.back_s for fault in faults if fault.back_s is not None]
        figures = f"{statistics.median(took_s):8.2f} s{max(took_s):8.2f} s" if took_s else ""
        lines.append(f"{kind:34}{len(faults):6}{len(took_s):12}{figures}")
    return lines


def outcomes(state: State) -> list[str]:
    """What became of the jobs."""
    judged = [(entry, entry.verdict) for entry in state.entries if entry.verdict is not None]
    kinds = Counter(entry.kind for entry in state.entries)
    apart = [v.loss_difference for _, v in judged if v.loss_difference is not None]
    exact = [v.exact for _, v in judged if v.exact is not None]
    again = [v.repeated for _, v in judged if v.repeated is not None]
    return [
        f"jobs: {len(state.entries)} ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})",
        f"lost: {sum(v.lost for _, v in judged)}   doubled: {sum(v.doubled for _, v in judged)}   "
        f"orphans: {len(state.orphans)}   not ended: {len(state.entries) - len(judged)}   "
        f"begun again after their end: {sum(v.begun_after_done for _, v in judged)}",
        f"losses: at most {max(apart, default=0.0):.2g} from the undisturbed run "
        f"({sum(e.kind in TRAININGS for e, _ in judged)} trainings); bit-equal {sum(exact)} of {len(exact)} under "
        f"the same plan; repeated with the same weights {sum(again)} of {len(again)}",
    ]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was booked, between what workers lived and what nodes knew of them."""

    booked_s: float
    lived_s: float
    known_s: float
    lives: int
    wrong: dict[str, float]  # by job, by how many seconds it lies outside, the allowance taken off

    @property
    def right(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        worst = max(self.wrong, key=lambda job: abs(self.wrong[job]), default="")
        said = f"; worst {worst} {self.wrong[worst]:+.1f} s" if worst else ""
        return (f"ledger: {self.booked_s:,.0f} device-seconds booked; workers lived {self.lived_s:,.0f}, nodes knew "
                f"of them for {self.known_s:,.0f}; jobs outside by more than {LEDGER_PART:.0%} and {LEDGER_LIFE_S:g} s "
                f"a life: {len(self.wrong)}{said}")  # fmt: skip


def ledger(held: Mapping[str, Held], booked_s: Mapping[str, float], faults: Sequence[Fault] = ()) -> Ledger:
    """Of all jobs of which anything was seen."""
    return Ledger(
        sum(booked_s.get(job, 0.0) for job in held), sum(seen.lived_s for seen in held.values()),
        sum(seen.known_s for seen in held.values()), sum(len(seen.lives) for seen in held.values()),
        {job: off_s for job, seen in held.items() if (off_s := _off_s(seen, booked_s.get(job, 0.0), faults))},
    )  # fmt: skip


def _off_s(seen: Held, booked_s: float, faults: Sequence[Fault]) -> float:
    """Seconds outside of what may have been held; 0.0: it lies within."""
    control = [fault for fault in faults if fault.victim == "control plane"]
    away_s = sum(fault.away_s for fault in control if fault.at_s < seen.until_s + STARTS_S
                 and fault.at_s + fault.away_s > seen.since_s - STARTS_S - fault.away_s)  # fmt: skip
    slack_s = LEDGER_LIFE_S * len(seen.lives)
    low_s = seen.lived_s * (1 - LEDGER_PART) - slack_s
    high_s = max(seen.known_s, seen.lived_s) * (1 + LEDGER_PART) + slack_s + away_s
    return min(0.0, booked_s - low_s) + max(0.0, booked_s - high_s)
