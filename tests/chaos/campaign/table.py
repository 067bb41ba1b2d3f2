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
"""How far the ledger may be off: a part of what was held, and so much for the start and end of a worker."""


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
    """What was booked beside what workers lived and what nodes knew of them.

    No job may be booked less than its workers lived. More may be booked while a control plane or a node manager
    does nothing: the devices that it had set aside, or not taken back yet, are nobody else's.
    """

    booked_s: float
    lived_s: float
    known_s: float
    free: dict[str, float]  # by job, what its workers lived beyond what was booked, the allowance taken off
    more_s: float  # of all jobs, what was booked beyond what nodes knew
    allowed_s: float  # of that

    @property
    def right(self) -> bool:
        return not self.free and self.more_s <= self.allowed_s

    def __str__(self) -> str:
        worst = max(self.free, key=lambda job: self.free[job], default="")
        said = f" (worst {worst}: {self.free[worst]:.1f} s)" if worst else ""
        return (f"ledger: {self.booked_s:,.0f} device-seconds booked, workers lived {self.lived_s:,.0f}, nodes knew of "
                f"them for {self.known_s:,.0f}; jobs that held devices for nothing: {len(self.free)}{said}; "
                f"booked beyond that: {self.more_s:,.0f} s of {self.allowed_s:,.0f} allowed")  # fmt: skip


def ledger(held: Mapping[str, Held], booked_s: Mapping[str, float], faults: Sequence[Fault], nodes: int) -> Ledger:
    """Of all jobs of which anything was seen."""
    free = {job: seen.lived_s * (1 - LEDGER_PART) - LEDGER_LIFE_S * len(seen.lives) - booked_s.get(job, 0.0)
            for job, seen in held.items()}  # fmt: skip
    lives = sum(len(seen.lives) for seen in held.values())
    idle_s = sum(fault.away_s * (nodes if fault.victim == "control plane" else 1) for fault in faults)
    return Ledger(
        sum(booked_s.get(job, 0.0) for job in held), sum(seen.lived_s for seen in held.values()),
        sum(seen.known_s for seen in held.values()), {job: seconds for job, seconds in free.items() if seconds > 0},
        sum(max(0.0, booked_s.get(job, 0.0) - seen.known_s) for job, seen in held.items()),
        LEDGER_PART * sum(seen.known_s for seen in held.values()) + LEDGER_LIFE_S * lives + idle_s,
    )  # fmt: skip
