"""The table of a campaign: faults and recoveries by kind, what was lost or doubled, the ledger, the losses."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.campaign.faults import WEIGHTS
from tests.chaos.campaign.held_devices import Held
from tests.chaos.campaign.state_file import State
from tests.chaos.campaign.work import TRAININGS

LEDGER_PART, LEDGER_LIFE_S = 0.02, 3.0
"""How far the ledger may be off: a part of what was held, and so much for each life of a worker."""


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
    """What was booked against what was held."""

    booked_s: float
    held_s: float
    lives: int
    worst: str  # the job that is off most
    worst_s: float

    @property
    def allowed_s(self) -> float:
        return LEDGER_PART * self.held_s + LEDGER_LIFE_S * self.lives

    @property
    def right(self) -> bool:
        return abs(self.booked_s - self.held_s) <= self.allowed_s

    def __str__(self) -> str:
        apart_s = self.booked_s - self.held_s
        return (f"ledger: {self.booked_s:,.0f} device-seconds booked, {self.held_s:,.0f} seen from outside: "
                f"{apart_s:+.1f} s, {apart_s / max(self.lives, 1):+.2f} s for each of {self.lives} lives of workers "
                f"(allowed {self.allowed_s:.0f} s); most of one job {self.worst_s:+.1f} s ({self.worst})")  # fmt: skip


def ledger(held: Mapping[str, Held], booked_s: Mapping[str, float]) -> Ledger:
    """Of all jobs of which anything was seen."""
    apart_s = {job: booked_s.get(job, 0.0) - seen.device_s for job, seen in held.items()}
    worst = max(apart_s, key=lambda job: abs(apart_s[job]), default="")
    return Ledger(
        sum(booked_s.get(job, 0.0) for job in held), sum(seen.device_s for seen in held.values()),
        sum(len(seen.lives) for seen in held.values()), worst, apart_s.get(worst, 0.0),
    )  # fmt: skip
