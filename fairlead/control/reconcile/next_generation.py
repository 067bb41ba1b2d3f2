"""Builds and stores the next generation of a gang: members, plan and rendezvous, settled together and stored as one
row.

Every change of a gang's devices or plan comes through here: a round that starts, resizes or recovers it, a review that
found a better plan, and a first generation whose model was profiled before.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from fairlead.cluster import Node, Placement
from fairlead.control.plans.plan_questions import ChosenPlan
from fairlead.control.reconcile.rendezvous import draw_rendezvous, rendezvous_of
from fairlead.control.records import OFFERED, Generation, GenerationPhase, Job, JobPhase, stop_changes
from fairlead.control.store import events, generations, jobs
from fairlead.scheduling.state import Reason

BETTER_PLAN = "better-plan"
"""Reason code of a generation that only changes the plan."""

_KINDS = {BETTER_PLAN: "job-replanned"}


@dataclass(frozen=True, slots=True)
class SeatedGang:
    """A gang with the devices it is given, the reason, and the plan that suits it there."""

    job: Job
    members: Placement  # survivors first
    reason: Reason
    newest: Generation | None = None  # its present generation
    next_worker: int | None = None  # None: no newcomers
    choice: ChosenPlan | None = None  # None: a worker has to profile the model first

    @property
    def can_go_on(self) -> bool:
        """True if it could also go on as it is."""
        return self.newest is not None and self.newest.broken_s is None

    @property
    def used(self) -> int:
        """How many of the devices it keeps."""
        return _devices_used(self.job, self.choice, len(self.members))


def next_generation(seated: SeatedGang, nodes: Mapping[str, Node], now_s: float, taken: set[int]) -> Generation:
    """Make the next generation, with members, plan and rendezvous at a port that is added to ``taken``."""
    job, reason = seated.job, seated.reason
    point = draw_rendezvous(job.id, job.generation + 1, now_s, taken, secrets.token_hex(16))
    taken.add(point.port)
    drawn = Generation(
        job.id, job.generation + 1, GenerationPhase.PLANNED, seated.members, reason.code, reason.text, now_s, str(point)
    )
    return with_plan(drawn, job, seated.choice, nodes)


def with_plan(drawn: Generation, job: Job, choice: ChosenPlan | None, nodes: Mapping[str, Node]) -> Generation:
    """The generation with its plan, the members that the plan uses by rank, and the address of the first of them.

    Called a second time, before the ranks meet, for a generation whose model had to be profiled first.
    """
    ranked = sorted(drawn.members, key=lambda member: member.rank)
    plan, first = (None, ()) if choice is None else (choice.plan, choice.members)
    order = [*first, *(place for place in range(len(ranked)) if place not in first)][
        : _devices_used(job, choice, len(ranked))
    ]
    members = tuple(replace(ranked[place], rank=rank) for rank, place in enumerate(order))
    if plan is not None and len(members) < len(ranked):
        plan = {**plan, OFFERED: len(ranked)}
    point, node = rendezvous_of(drawn), nodes.get(members[0].node)
    point = point if node is None else replace(point, address=node.address)
    return replace(drawn, members=members, plan=plan, rendezvous=str(point))


def _devices_used(job: Job, choice: ChosenPlan | None, given: int) -> int:
    """How many devices the plan uses, and at least as many as the job demands; the others are given back."""
    used = None if choice is None or choice.plan is None else int(choice.plan["workers_used"])
    return given if used is None else min(given, max(used, job.min_workers))


def store_generation(
    connection: Connection, seated: SeatedGang, nodes: Mapping[str, Node], now_s: float, taken: set[int],
    facts: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Store the next generation, or the end of a job whose requested plan is refused; False if neither was needed.

    A gang that would go on with the same members stays as it is.
    """
    job, reason = seated.job, seated.reason
    if seated.choice is not None and seated.choice.refused:
        if seated.can_go_on:
            _keep_generation(connection, seated)
        else:
            jobs.update(connection, job.id, **stop_changes(JobPhase.FAILED, "failed", seated.choice.refused, now_s))
        return not seated.can_go_on
    made = next_generation(seated, nodes, now_s, taken)
    newest = seated.newest
    if newest is not None and seated.can_go_on and reason.code != BETTER_PLAN and made.workers == newest.workers:
        _keep_generation(connection, seated)
        return False
    generations.insert(connection, made)
    changes: dict[str, Any] = {"generation": made.number}
    if seated.next_worker is not None:
        changes["next_worker"] = seated.next_worker
    if job.phase is JobPhase.QUEUED:
        changes |= {"phase": JobPhase.STARTING, "since_s": now_s}
    elif seated.can_go_on and reason.code != BETTER_PLAN:
        changes["resizes"] = job.resizes + 1
    jobs.update(connection, job.id, **changes)
    kind = _KINDS.get(reason.code, "job-starting" if job.phase is JobPhase.QUEUED else "job-resizing")
    events.append(connection, time_s=now_s, kind=kind, text=f"{job.id}: {reason.text}", tenant=job.tenant, job=job.id,
                  facts={**facts, "generation": made.number, "reason": reason.code})  # fmt: skip
    return True


def _keep_generation(connection: Connection, seated: SeatedGang) -> None:
    """Keep the generation; the gang is not offered the same devices again before more is known of its model."""
    newest = None if seated.newest is None else generations.get(connection, seated.job.id, seated.newest.number)
    if newest is not None and newest.plan is not None:
        plan = {**newest.plan, OFFERED: len(seated.members)}
        generations.update(connection, newest.job, newest.number, plan=plan)
