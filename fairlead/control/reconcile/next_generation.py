"""The next generation of a gang: who is in it, which plan it runs and where it meets, settled together, stored as one.

Whoever gives a gang devices or another plan comes through here: a round that starts, resizes or mends it, a review that
found a better plan, and a first generation whose model had to be looked at before.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from fairlead.cluster import Node, Placement
from fairlead.control.plans.plan_questions import ChosenPlan
from fairlead.control.reconcile.rendezvous import draw, point_of
from fairlead.control.records import OFFERED, Generation, GenerationPhase, Job, JobPhase, stop_changes
from fairlead.control.store import events, generations, jobs
from fairlead.scheduling.state import Reason

BETTER_PLAN = "better-plan"
"""The reason of a generation that is there for the sake of its plan alone."""

_KINDS = {BETTER_PLAN: "job-replanned"}


@dataclass(frozen=True, slots=True)
class Seated:
    """A gang on the devices that it is given, as somebody decided for a reason, and the plan that suits it there."""

    job: Job
    members: Placement  # those that stay first
    reason: Reason
    newest: Generation | None = None  # that it has now
    next_worker: int | None = None  # None: nobody is new
    choice: ChosenPlan | None = None  # None: a worker has to look at the model first

    @property
    def whole(self) -> bool:
        """Whether it could also go on as it is."""
        return self.newest is not None and self.newest.broken_s is None

    @property
    def used(self) -> int:
        """How many of the devices stay with it."""
        return _used(self.job, self.choice, len(self.members))


def next_generation(seated: Seated, nodes: Mapping[str, Node], now_s: float, taken: set[int]) -> Generation:
    """From a job and devices to a generation with members, plan and rendezvous, at a port that it adds to ``taken``."""
    job, reason = seated.job, seated.reason
    point = draw(job.id, job.generation + 1, now_s, taken, secrets.token_hex(16))
    taken.add(point.port)
    drawn = Generation(
        job.id, job.generation + 1, GenerationPhase.PLANNED, seated.members, reason.code, reason.text, now_s, str(point)
    )
    return settled(drawn, job, seated.choice, nodes)


def settled(drawn: Generation, job: Job, choice: ChosenPlan | None, nodes: Mapping[str, Node]) -> Generation:
    """With its plan, the members that stay with it by rank, and the address of the first of them.

    A generation whose model has to be looked at first comes here again when that is done, before its ranks meet.
    """
    ranked = sorted(drawn.members, key=lambda member: member.rank)
    plan, first = (None, ()) if choice is None else (choice.plan, choice.members)
    order = [*first, *(place for place in range(len(ranked)) if place not in first)][: _used(job, choice, len(ranked))]
    members = tuple(replace(ranked[place], rank=rank) for rank, place in enumerate(order))
    if plan is not None and len(members) < len(ranked):
        plan = {**plan, OFFERED: len(ranked)}
    point, node = point_of(drawn), nodes.get(members[0].node)
    point = point if node is None else replace(point, address=node.address)
    return replace(drawn, members=members, plan=plan, rendezvous=str(point))


def _used(job: Job, choice: ChosenPlan | None, given: int) -> int:
    """How many devices its plan uses, and at least as many as the job demands; what would lie idle is given back."""
    used = None if choice is None or choice.plan is None else int(choice.plan["workers_used"])
    return given if used is None else min(given, max(used, job.min_workers))


def store(
    connection: Connection, seated: Seated, nodes: Mapping[str, Node], now_s: float, taken: set[int],
    facts: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether there is a next generation now, or an end: a plan that was asked for by name may be refused.

    A gang that would go on with the same members stays as it is.
    """
    job, reason = seated.job, seated.reason
    if seated.choice is not None and seated.choice.refused:
        if seated.whole:
            _stays(connection, seated)
        else:
            jobs.update(connection, job.id, **stop_changes(JobPhase.FAILED, "failed", seated.choice.refused, now_s))
        return not seated.whole
    made = next_generation(seated, nodes, now_s, taken)
    newest = seated.newest
    if newest is not None and seated.whole and reason.code != BETTER_PLAN and made.workers == newest.workers:
        _stays(connection, seated)
        return False
    generations.insert(connection, made)
    changes: dict[str, Any] = {"generation": made.number}
    if seated.next_worker is not None:
        changes["next_worker"] = seated.next_worker
    if job.phase is JobPhase.QUEUED:
        changes |= {"phase": JobPhase.STARTING, "since_s": now_s}
    elif seated.whole and reason.code != BETTER_PLAN:
        changes["resizes"] = job.resizes + 1
    jobs.update(connection, job.id, **changes)
    kind = _KINDS.get(reason.code, "job-starting" if job.phase is JobPhase.QUEUED else "job-resizing")
    events.append(connection, time_s=now_s, kind=kind, text=f"{job.id}: {reason.text}", tenant=job.tenant, job=job.id,
                  facts={**facts, "generation": made.number, "reason": reason.code})  # fmt: skip
    return True


def _stays(connection: Connection, seated: Seated) -> None:
    """It goes on as it is, and is not offered the same again before more is known of its model."""
    newest = None if seated.newest is None else generations.get(connection, seated.job.id, seated.newest.number)
    if newest is not None and newest.plan is not None:
        plan = {**newest.plan, OFFERED: len(seated.members)}
        generations.update(connection, newest.job, newest.number, plan=plan)
