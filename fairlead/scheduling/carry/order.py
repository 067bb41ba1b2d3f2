"""Who comes first: what the market thinks of them within a tenant, between tenants who holds least per weight."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.state import JobState

TURN_S = 300.0
"""So often the job of a tenant that has waited longest, and for at least as long, comes first, whatever it bids. Short
jobs that keep coming would outbid it for ever; so whoever has k others before it starts after k turns at the latest."""


def waited_s(job: JobState, now_s: float) -> float:
    return max(0.0, now_s - max(job.since_s, job.submitted_s))


def waits(jobs: Sequence[JobState], now_s: float) -> list[float]:
    """The same of many."""
    since_s = [job.since_s if job.since_s > job.submitted_s else job.submitted_s for job in jobs]
    return [now_s - one if now_s > one else 0.0 for one in since_s]


def line_up(draft: Draft) -> Sequence[JobState]:
    """All waiting jobs in the order in which they are looked at.

    Tenants take turns: next is the one that would hold fewest devices for its weight, and for what it is owed, then the
    one that was served least so far. Within a tenant its highest bidder is next: nobody gains on others by priorities.
    """
    waiting = [job for job in draft.jobs.values() if not job.seats and not job.settling and not job.broken]
    queues: dict[str, list[JobState]] = {}
    for job in waiting:
        queues.setdefault(job.tenant, []).append(job)
    for name, queue in queues.items():
        waits_s = waits(queue, draft.now_s)
        draft.waits_s[name] = max(waits_s)
        draft.turns |= _turn_of(draft, name, queue, waits_s)
        queue.clear()
    for job in reversed(_by_rank(draft, waiting)):  # the first job is at the end, where pop is cheap
        queues[job.tenant].append(job)
    for name in draft.parts.tree.people.keys() & queues.keys():
        queues[name] = _people_in_turn(draft, queues[name])
    holding = {name: draft.holding(name) for name in queues}
    tenants, due = {name: draft.tenants[name] for name in queues}, draft.target.due
    served = {name: tenant.attained_device_s / tenant.weight for name, tenant in tenants.items()}

    def turn(name: str) -> tuple[bool, bool, float, float, str]:
        tenant = tenants[name]
        head = queues[name][-1].id
        return (tenant.spent is not None, head not in due, holding[name] / tenant.weight, served[name], name)

    return _in_turns(queues, holding, turn)


def _by_rank(draft: Draft, jobs: Sequence[JobState]) -> list[JobState]:
    """These jobs, which are in the order of their names: who is due, whose turn it is, whom the market would run, who
    bids most, and who came first."""
    target, turns = draft.target, frozenset(draft.turns.values())
    bids, due, sizes, names = target.bid, target.due, target.size, [job.id for job in jobs]
    first = [4 * (name not in due) + 2 * (name not in turns) + (name not in sizes) for name in names]
    order = np.lexsort(([job.submitted_s for job in jobs], [-bids.get(name, 0.0) for name in names], first))
    return [jobs[at] for at in order.tolist()]


def _people_in_turn(draft: Draft, queue: Sequence[JobState]) -> list[JobState]:
    """The same line, with the people of the tenant taking turns: next is who would hold fewest devices."""
    lines: dict[str, list[JobState]] = {}
    for job in queue:
        lines.setdefault(job.person, []).append(job)
    place = {job.id: -at for at, job in enumerate(queue)}
    holding: Counter[str] = Counter()
    for name, seats in draft.board.seats.items():
        if seats and draft.jobs[name].tenant == queue[0].tenant:
            holding[draft.jobs[name].person] += len(seats)

    def turn(person: str) -> tuple[bool, bool, int, int, str]:
        head = lines[person][-1]
        due, its_turn = head.id in draft.target.due, draft.turns.get(head.tenant) == head.id
        return (not due, not its_turn, holding[person], place[head.id], person)

    return _in_turns(lines, holding, turn)[::-1]


def _in_turns(
    lines: Mapping[str, list[JobState]], holding: dict[str, int], turn: Callable[[str], tuple[Any, ...]]
) -> list[JobState]:
    """One line out of many, each taken from its end; whose turn, which ends in its name, is least comes next, and then
    holds so much more."""
    turns = [turn(name) for name in lines]
    heapq.heapify(turns)
    line: list[JobState] = []
    while turns:
        name = turns[0][-1]
        queue = lines[name]
        job = queue.pop()
        line.append(job)
        holding[name] += job.min_workers
        if queue:
            heapq.heapreplace(turns, turn(name))
        else:
            heapq.heappop(turns)
    return line


def _turn_of(draft: Draft, tenant: str, queue: Sequence[JobState], waits_s: Sequence[float]) -> dict[str, str]:
    """The tenant's job whose turn it is, if one has waited that long and the last turn is long enough ago."""
    if draft.now_s - draft.turned_s.get(tenant, -TURN_S) < TURN_S:
        return {}
    possible = [(-waited, job.id) for job, waited in zip(queue, waits_s, strict=True)
                if waited >= TURN_S and job.id in draft.seen]  # fmt: skip
    return {tenant: min(possible)[1]} if possible else {}
