"""Making room: who gives devices back when a tenant below its claim has a job that finds no place.

First elastic gangs of tenants above their claims shrink, and siblings of the waiting job; then the cheapest
sufficient gangs are preempted. Nobody's tenant is pushed below its claim or loses its last gang to another
tenant; within a tenant a higher priority may take from a lower one. Devices that are given back are free only
once the gang has left them, so the waiting job starts in a later round: until then it is *promised*.

Why rounds come to rest: devices are taken only if the taker then fits, so what is taken is used; only from tenants
above their claims for one that stays within its own, or for a higher priority, or for a sibling's start. So each
taking brings tenants closer to their claims or starts a gang that comes before its victim, and what is lent again
afterwards is only what nobody with a claim can use. Sizes that were measured slower are not grown into (see gain).
A tenant without any device is served at others' cost once, since its last gang is then never taken.
"""

from __future__ import annotations

from fairlead.scheduling.board import Shape
from fairlead.scheduling.draft import Draft
from fairlead.scheduling.gain import ceiling
from fairlead.scheduling.reclaim import Reclaim
from fairlead.scheduling.scale import may_grow
from fairlead.scheduling.start import hold_free
from fairlead.scheduling.state import JobState, Preempt, Resize
from fairlead.scheduling.words import devices, reason, workers

ATTEMPTS = 4
"""Waiting jobs per tenant and round for which victims are sought; the first is nearly always the one."""


def make_room_for_waiting(draft: Draft) -> None:
    """For the first job of each tenant that has a right to devices and finds none, choose who gives them."""
    attempts: dict[str, int] = {}
    tried: set[tuple[str, Shape, int, int]] = set()
    done = {draft.jobs[name].tenant for name in draft.promised if _victims_leaving(draft, name)}
    for job in draft.queue:
        if job.tenant in done or attempts.get(job.tenant, 0) >= ATTEMPTS:
            continue
        kind = (job.tenant, draft.board.shape(job), job.min_workers, job.priority)
        if kind in tried:
            continue
        tried.add(kind)
        attempts[job.tenant] = attempts.get(job.tenant, 0) + 1
        reclaim = _find_room(draft, job)
        if reclaim is not None:
            done.add(job.tenant)
            _carry_out(draft, reclaim, _for_waiting(draft, job))
            if job.id not in draft.board.held:
                hold_free(draft, job)


def make_room_for_growth(draft: Draft) -> None:
    """Elastic gangs above their tenant's claim shrink for those whose tenant is below its own; nobody is preempted."""
    done = {draft.jobs[name].tenant for name in draft.promised}
    for job in draft.jobs.values():
        size = len(draft.board.seats.get(job.id, ()))
        if job.tenant in done or not job.elastic or not size or not may_grow(draft, job, size):
            continue
        wanted = min(draft.headroom(job.tenant), ceiling(job) - size, draft.quota_room(job.tenant))
        if wanted <= 0:
            continue
        reclaim = _find_growth(draft, job, wanted)
        if reclaim is not None:
            done.add(job.tenant)
            claim = devices(draft.claims[job.tenant])
            why = f"job {job.id} of tenant {job.tenant}, which has fewer than the {claim} it is entitled to"
            _carry_out(draft, reclaim, why)


def _victims_leaving(draft: Draft, name: str) -> bool:
    victims = (draft.jobs.get(victim) for victim in draft.promised[name]["victims"])
    return any(victim is not None and victim.settling for victim in victims)


def _find_room(draft: Draft, job: JobState) -> Reclaim | None:
    if draft.board.most(draft.board.shape(job)) < job.min_workers:
        return None
    reclaim = Reclaim(draft, job, job.min_workers)
    if reclaim.hopeless() or not reclaim.make_fit():
        return None
    reclaim.prune()
    return reclaim if reclaim.taken else None


def _find_growth(draft: Draft, job: JobState, wanted: int) -> Reclaim | None:
    """Room for as many more workers as can be found, up to this many."""
    reclaim = Reclaim(draft, job, 1, for_growth=True)
    while reclaim.need <= wanted and reclaim.make_fit():
        reclaim.need += 1
    reclaim.need -= 1
    if reclaim.need == 0:
        return None
    reclaim.prune()
    return reclaim if reclaim.taken else None


def _for_waiting(draft: Draft, job: JobState) -> str:
    if draft.headroom(job.tenant) >= job.min_workers:
        claim = devices(draft.claims[job.tenant])
        return f"waiting job {job.id} of tenant {job.tenant}, which has fewer than the {claim} it is entitled to"
    return f"waiting job {job.id} of tenant {job.tenant}"


def _carry_out(draft: Draft, reclaim: Reclaim, receiver: str) -> None:
    victims = {victim.id: victim for victim, _ in reclaim.taken}
    for name, victim in sorted(victims.items()):
        before, keeps = draft.board.seats[name], reclaim.board.seats[name]
        given = len(before) - len(keeps)
        draft.given[victim.tenant] = draft.given.get(victim.tenant, 0) + given
        facts = {"to": reclaim.job.id, "to_tenant": reclaim.job.tenant, "devices": given}
        if keeps:
            text = f"shrinks from {len(before)} to {workers(len(keeps))}: gives {devices(given)} to {receiver}"
            draft.decide(Resize(name, keeps, reason("make-room", text, **facts)))
        else:
            text = f"back to the queue with its snapshot: gives {devices(given)} to {receiver}"
            draft.decide(Preempt(name, reason("make-room", text, **facts)))
    draft.promised[reclaim.job.id] = {"victims": sorted(victims), "since_s": draft.now_s}
