"""A round in the making: what the stages read, and what they have decided so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead.scheduling.board import Board
from fairlead.scheduling.order import line_up
from fairlead.scheduling.shares import claims, demands, entitlements
from fairlead.scheduling.state import ClusterState, Decision, JobState, TenantState

PROMISE_S = 30.0
"""A job for which others made room comes first for this long once they have left; then it queues like everybody."""


@dataclass(slots=True)
class Draft:
    """The values of one round. Stages change only the board, the decisions and what is promised."""

    now_s: float
    board: Board
    jobs: Mapping[str, JobState]  # by id, sorted
    tenants: Mapping[str, TenantState]
    line: Sequence[JobState]  # the waiting ones, in order
    entitled: Mapping[str, float]
    claims: Mapping[str, int]  # entitlements in whole devices
    promised: dict[str, dict[str, Any]]  # job -> {"victims": still leaving, "since_s": ...}: others make room
    decisions: dict[str, Decision] = field(default_factory=dict)
    starting: dict[str, str] = field(default_factory=dict)  # job -> why it may start: promised, overdue, ...
    growing: set[str] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)  # devices per tenant given up for others in this round

    @classmethod
    def of(cls, state: ClusterState) -> Draft:
        """The beginning of a round. Sorting here makes the result independent of the order of the input."""
        jobs = {job.id: job for job in sorted(state.jobs, key=lambda job: job.id)}
        named = {tenant.name: tenant for tenant in state.tenants}
        for job in jobs.values():
            named.setdefault(job.tenant, TenantState(job.tenant))
        board = Board(state.nodes, jobs.values())
        tenants = {name: _within_budget(named[name], jobs.values()) for name in sorted(named)}
        entitled = entitlements(tenants.values(), demands(board, jobs.values()), board.capacity())
        waiting = [job for job in jobs.values() if not job.seats and not job.settling and not job.broken]
        return cls(
            now_s=state.now_s,
            board=board,
            jobs=jobs,
            tenants=tenants,
            line=sorted(line_up(waiting, tenants, board.used, state.now_s), key=lambda job: _barred(tenants, job)),
            entitled=entitled,
            claims=claims(entitled, tenants.values(), board.used),
            promised=_still_promised(state, jobs),
        )

    @property
    def queue(self) -> list[JobState]:
        """The waiting jobs that nothing was decided for yet, in order."""
        return [job for job in self.line if job.id not in self.starting]

    def used(self, tenant: str) -> int:
        return self.board.used.get(tenant, 0)

    def headroom(self, tenant: str) -> int:
        """Devices the tenant may still take under its claim; negative when it borrows."""
        return self.claims[tenant] - self.used(tenant)

    def quota_room(self, tenant: str) -> int:
        quota = self.tenants[tenant].quota
        return 1 << 30 if quota is None else quota - self.used(tenant)

    def unheld(self) -> Board:
        """The board as it would be if no free seats were held for anybody."""
        board = self.board.copy()
        for name in self.board.held:
            board.let_go(self.jobs[name])
        return board

    def untouched(self, job: JobState) -> bool:
        """Whether the job runs and may still be decided about in this round."""
        steady = bool(job.seats) and not job.settling and not job.broken
        return steady and job.id not in self.decisions and job.id not in self.growing

    def decide(self, decision: Decision) -> None:
        self.decisions[decision.job] = decision


def _within_budget(tenant: TenantState, jobs: Iterable[JobState]) -> TenantState:
    """Without a budget left it keeps what its gangs have, or need to be whole again, and gets nothing on top."""
    if tenant.spent is None:
        return tenant
    gangs = [job for job in jobs if job.tenant == tenant.name and (job.seats or job.broken)]
    kept = sum(max(len(job.seats), job.min_workers if job.broken else 0) for job in gangs)
    return replace(tenant, quota=kept if tenant.quota is None else min(kept, tenant.quota))


def _barred(tenants: Mapping[str, TenantState], job: JobState) -> bool:
    """Whether the job cannot start before another period: nobody waits behind it."""
    return tenants[job.tenant].spent is not None


def _still_promised(state: ClusterState, jobs: Mapping[str, JobState]) -> dict[str, dict[str, Any]]:
    """What earlier rounds promised and is not kept yet; a running job's promise ends when its victims have settled.

    Its time begins when the last victim has left: however long that takes, no further victims are sought meanwhile.
    """
    kept: dict[str, dict[str, Any]] = {}
    for name, promise in sorted(state.memory.get("promised", {}).items()):
        job = jobs.get(name)
        leaving = [victim for victim in promise["victims"] if victim in jobs and jobs[victim].settling]
        since_s = state.now_s if leaving else promise["since_s"]
        if job is None or not 0.0 <= state.now_s - since_s <= PROMISE_S:
            continue
        if leaving or not (job.seats or job.settling):
            kept[name] = {"victims": leaving, "since_s": since_s}
    return kept
