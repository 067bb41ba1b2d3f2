"""Forecasts when a tenant's turn begins and ends, for the reasons of waiting jobs; the market decides the turns.

Between tenants it follows the buckets of :mod:`.market.rotation`: they fill at what is due to a tenant and empty by
what it holds. Within a tenant the longest waiting job comes first every few minutes (:mod:`.market_targets`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.market.rotation import COMMAND_TURNS
from fairlead.scheduling.market_targets import LONGEST_WAIT_S, LONGEST_WAIT_TURN_S
from fairlead.scheduling.mentioned_jobs import MentionedJob
from fairlead.scheduling.phrases import devices, utc_time
from fairlead.scheduling.state import JobState

LEAST = 1e-6  # devices


@dataclass(frozen=True, slots=True)
class Turn:
    """Times as things stand; None where waiting alone does not bring the moment."""

    begins_s: float | None  # when the tenant has saved up for the gang; now, if it has already
    ends_s: float | None  # the next end of a turn by which another tenant holds more than its share
    over: float = 0.0  # devices above its share


class TurnTimes:
    """Turn times of one round; values that are the same for all jobs are computed once."""

    def __init__(self, plan: LivePlan) -> None:
        self._plan, self._situation, self._shares = plan, plan.situation, plan.situation.shares

    def of(self, job: JobState) -> Turn | None:
        """The turns that this waiting job depends on; None where tenants do not take turns of minutes."""
        shares, now_s = self._shares, self._situation.now_s
        if not (shares.quick(self._situation.config) and shares.tree.flat and len(shares.names) > 1):
            return None
        own = shares.tree.own(job.tenant)
        has, due = self._has[own], float(shares.entitled[own])
        lacks_s = (job.min_workers / 2 + has - due) * shares.turn_s - shares.accounts[own].bucket
        begins_s = now_s if lacks_s <= 0 else now_s + lacks_s / (due - has) if due - has > LEAST else None
        kinds = self._plan.seating.kinds(self._plan.seating.shape(job))
        ends = [end for end in self._ends if end[2] != own and end[3] in kinds]
        end_s, over, _, _ = min(ends, default=(None, 0.0, "", ""))
        return Turn(begins_s, end_s, over)

    def within_tenant(self, job: JobState) -> str:
        """Words for the turn of the longest waiting job in the tenant, for that job and the ones behind it."""
        now_s, jobs = self._situation.now_s, self._situation.jobs
        when_s, last = self._situation.state.memory.get("turned", {}).get(job.tenant, (-LONGEST_WAIT_S, ""))
        if last in jobs and jobs[last].seats and 0.0 <= now_s - when_s < LONGEST_WAIT_TURN_S:
            until = utc_time(when_s + LONGEST_WAIT_TURN_S)
            return f"{MentionedJob(last, job.tenant)}, which had waited longest, comes first until {until}"
        first_s, first = self._longest[job.tenant]
        if first != job.id:
            return ""
        due_s = max(first_s, when_s) + LONGEST_WAIT_S
        begins = "now" if due_s <= now_s else f"from {utc_time(due_s)} on"
        return f"it waits longest of its tenant, so it comes first {begins}"

    @cached_property
    def _has(self) -> dict[str, float]:
        return dict(zip(self._shares.names, self._shares.has.tolist(), strict=True))

    @cached_property
    def _longest(self) -> dict[str, tuple[float, str]]:
        """By tenant, its longest waiting job with the time since when it waits."""
        found: dict[str, tuple[float, str]] = {}
        for job in self._situation.waiting:
            began = (max(job.since_s, job.submitted_s), job.id)
            found[job.tenant] = min(found.get(job.tenant, began), began)
        return found

    @cached_property
    def _ends(self) -> list[tuple[float, float, str, str]]:
        """The turns of queues that hold more than their share: end, devices above the share, queue and device type.

        A training runs until its queue's bucket is even; a command runs to its end if it declares its duration, else
        for ``COMMAND_TURNS`` turns.
        """
        shares, ends = self._shares, []
        for name, seats in self._plan.situation.seating.seats.items():
            job = self._situation.jobs[name]
            queue = shares.tree.own(job.tenant)
            due, debt, size = float(shares.entitled[queue]), -shares.accounts[queue].bucket, len(seats)
            over = self._has[queue] - due
            if not seats or over <= LEAST:
                continue
            if not job.starts_over:
                left_s = ((size - over) * shares.turn_s - debt) / over
            elif "takes_s" in job.facts:
                left_s = self._plan.targets.remaining_s.get(job.id, 0.0)
            else:
                left_s = (size * shares.turn_s * (COMMAND_TURNS if size > due else 1.0) - debt) / over
            kind = self._plan.seating.kind(seats) or ""
            ends.append((self._situation.now_s + max(0.0, left_s), over, queue, kind))
        return ends


def turn_text(turn: Turn, job: JobState, now_s: float) -> tuple[str, dict[str, Any]]:
    """Words for a waiting job about the turns it depends on, and their times as facts."""
    said = []
    if turn.ends_s is not None:
        extra = f"holds {devices(max(1, round(turn.over)))} more than its share"
        ends = f"until about {utc_time(turn.ends_s)}" if turn.ends_s > now_s + 1.0 else "and gives them back now"
        said.append(f"another tenant {extra} {ends}")
    if turn.begins_s is not None:
        begins = f"begins about {utc_time(turn.begins_s)}" if turn.begins_s > now_s + 1.0 else "has begun"
        said.append(f"the next turn of tenant {job.tenant} {begins}")
    return "; ".join(said), {"turn_begins_s": turn.begins_s, "turn_ends_s": turn.ends_s}
