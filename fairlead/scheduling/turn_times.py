"""When a tenant's turn begins and ends, as told to people who wait; the market decides it.

Between tenants it follows the buckets of :mod:`.market.rotation`: they fill at what is due to a tenant and empty by
what it holds. Within a tenant the job that has waited longest comes first from time to time (:mod:`.wanted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.market.rotation import COMMAND_TURNS
from fairlead.scheduling.market_targets import TURN_LASTS_S, TURN_S
from fairlead.scheduling.mentioned_jobs import MentionedJob
from fairlead.scheduling.phrases import devices, utc_time
from fairlead.scheduling.state import JobState

LEAST = 1e-6  # devices


@dataclass(frozen=True, slots=True)
class Turn:
    """Moments as things stand; None: there is none that waiting alone would bring."""

    begins_s: float | None  # when the tenant has saved up for the gang; now, if it has already
    ends_s: float | None  # the next end of a turn by which another tenant holds more than its share
    over: float = 0.0  # so much more


class TurnTimes:
    """What one round says of turns; what is the same for all who ask is found out once."""

    def __init__(self, plan: LivePlan) -> None:
        self._plan, self._situation, self._parts = plan, plan.situation, plan.situation.parts

    def of(self, job: JobState) -> Turn | None:
        """The turns that this waiting job depends on; None where tenants do not take turns of minutes."""
        parts, now_s = self._parts, self._situation.now_s
        if not (parts.quick(self._situation.dials) and parts.tree.flat and len(parts.names) > 1):
            return None
        own = parts.tree.own(job.tenant)
        has, due = self._has[own], float(parts.entitled[own])
        lacks_s = (job.min_workers / 2 + has - due) * parts.turn_s - parts.accounts[own].bucket
        begins_s = now_s if lacks_s <= 0 else now_s + lacks_s / (due - has) if due - has > LEAST else None
        kinds = self._plan.board.kinds(self._plan.board.shape(job))
        ends = [end for end in self._ends if end[2] != own and end[3] in kinds]
        end_s, over, _, _ = min(ends, default=(None, 0.0, "", ""))
        return Turn(begins_s, end_s, over)

    def within_tenant(self, job: JobState) -> str:
        """What the job that has waited longest, or those behind it, are told about the turn within their tenant."""
        now_s, jobs = self._situation.now_s, self._situation.jobs
        when_s, last = self._situation.state.memory.get("turned", {}).get(job.tenant, (-TURN_S, ""))
        if last in jobs and jobs[last].seats and 0.0 <= now_s - when_s < TURN_LASTS_S:
            until = utc_time(when_s + TURN_LASTS_S)
            return f"{MentionedJob(last, job.tenant)} has its turn until {until}, as it had waited longest"
        first_s, first = self._longest[job.tenant]
        if first != job.id:
            return ""
        due_s = max(first_s, when_s) + TURN_S
        return (
            f"it comes first of its tenant {'now' if due_s <= now_s else f'at {utc_time(due_s)}'}, as it waits longest"
        )

    @cached_property
    def _has(self) -> dict[str, float]:
        return dict(zip(self._parts.names, self._parts.has.tolist(), strict=True))

    @cached_property
    def _longest(self) -> dict[str, tuple[float, str]]:
        """By tenant, since when its job waits that has waited longest, and which that is."""
        found: dict[str, tuple[float, str]] = {}
        for job in self._situation.waiting:
            began = (max(job.since_s, job.submitted_s), job.id)
            found[job.tenant] = min(found.get(job.tenant, began), began)
        return found

    @cached_property
    def _ends(self) -> list[tuple[float, float, str, str]]:
        """The turns by which queues hold more than their share: when each ends, how much more, whose and of which type.

        A training goes on until its queue is behind by nothing; a command keeps its devices to its end if it says how
        long it takes, else for so many turns.
        """
        parts, ends = self._parts, []
        for name, seats in self._plan.situation.board.seats.items():
            job = self._situation.jobs[name]
            queue = parts.tree.own(job.tenant)
            due, debt, size = float(parts.entitled[queue]), -parts.accounts[queue].bucket, len(seats)
            over = self._has[queue] - due
            if not seats or over <= LEAST:
                continue
            if not job.starts_over:
                left_s = ((size - over) * parts.turn_s - debt) / over
            elif "takes_s" in job.facts:
                left_s = self._plan.targets.remaining_s.get(job.id, 0.0)
            else:
                left_s = (size * parts.turn_s * (COMMAND_TURNS if size > due else 1.0) - debt) / over
            kind = self._plan.board.kind(seats) or ""
            ends.append((self._situation.now_s + max(0.0, left_s), over, queue, kind))
        return ends


def in_words(turn: Turn, job: JobState, now_s: float) -> tuple[str, dict[str, Any]]:
    """What who waits is told, and the moments as facts."""
    said = []
    if turn.ends_s is not None:
        extra = f"holds {devices(max(1, round(turn.over)))} more than its share"
        ends = f"until about {utc_time(turn.ends_s)}" if turn.ends_s > now_s + 1.0 else "which ends now"
        said.append(f"another tenant {extra}, by a turn {ends}")
    if turn.begins_s is not None:
        begins = f"begins about {utc_time(turn.begins_s)}" if turn.begins_s > now_s + 1.0 else "has begun"
        said.append(f"the turn of tenant {job.tenant} {begins}")
    return "; ".join(said), {"turn_begins_s": turn.begins_s, "turn_ends_s": turn.ends_s}
