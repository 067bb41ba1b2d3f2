"""Plain first come, first served on a live cluster: nobody overtakes, nothing that runs is stopped or grows. Pure."""

from __future__ import annotations

from collections import Counter

from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Preempt, Reason, Resize, Round, Start

_REASON = Reason("fifo", "first come, first served")


def fifo(state: ClusterState) -> Round:
    """The head of the line starts with as many workers as it asks for at most and there is room for; all others wait
    for it. A gang that lost workers gets others on free devices, before anybody starts."""
    free: Counter[str] = Counter({node.name: node.devices for node in state.nodes if node.schedulable})
    for job in state.jobs:
        for seat in job.seats:
            free[seat] -= 1
    line = sorted(state.jobs, key=lambda job: (job.submitted_s, job.id))
    decisions = [_mended(job, free) for job in line if job.broken and not job.frozen]
    stuck = False
    for job in line:
        if job.seats or job.broken or job.frozen:
            continue
        seats = () if stuck else _free_seats(free, job.max_workers)
        if len(seats) < max(1, job.min_workers):
            stuck = True
            decisions.append(Hold(job.id, _REASON))
        else:
            free.subtract(seats)
            decisions.append(Start(job.id, seats, _REASON))
    return Round(tuple(decisions), {tenant.name: 0.0 for tenant in state.tenants}, dict(state.memory))


def _mended(job: JobState, free: Counter[str]) -> Decision:
    more = _free_seats(free, max(0, job.min_workers - len(job.seats)))
    seats = (*job.seats, *more)
    if len(seats) < max(1, job.min_workers):
        return Preempt(job.id, _REASON)
    free.subtract(more)
    return Resize(job.id, tuple(sorted(seats)), _REASON)


def _free_seats(free: Counter[str], most: int) -> tuple[str, ...]:
    there = sorted(seat for seat, count in free.items() for _ in range(max(0, count)))
    return tuple(there[:most])
