"""Decides when a straggler is replaced, and which members stay. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.cluster import Member, Placement
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import Generation
from fairlead.scheduling.repair import STRAGGLER
from fairlead.scheduling.state import Reason

SLOW_AFTER_S = 120.0
"""A worker is replaced after computing at less than half the expected speed for this long, uninterrupted."""

SLOW_AGAIN_S = 600.0
"""The same in a generation that began with a replacement: then the node may not be at fault."""


def straggler_nodes(newest: Generation | None, workers: Mapping[str, WorkerFact]) -> tuple[str, ...]:
    """The nodes of workers to be replaced, the longest slow first."""
    if newest is None:
        return ()
    patience_s = SLOW_AGAIN_S if newest.reason_code == STRAGGLER else SLOW_AFTER_S
    facts = [workers[member.worker] for member in newest.members if member.worker in workers]
    slow = [fact for fact in facts if fact.alive and fact.generation == newest.number and fact.slow_s >= patience_s]
    return tuple(fact.node for fact in sorted(slow, key=lambda fact: (-fact.slow_s, fact.node)))


def members_that_stay(survivors: Placement, workers: Mapping[str, WorkerFact], reason: Reason) -> Placement:
    """All survivors; without the one on the node that a straggler is to leave."""
    if reason.code != STRAGGLER:
        return survivors

    def slowness(member: Member) -> tuple[bool, float]:
        return member.node == reason.facts["leaves"], workers[member.worker].slow_s

    goes = max(survivors, key=slowness, default=None)
    return tuple(member for member in survivors if member is not goes)
