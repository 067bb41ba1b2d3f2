"""Making room: who gives devices back when a job that has a right to them finds no place.

First elastic gangs of tenants above their claims shrink, and siblings of the waiting job; then the cheapest
sufficient gangs are preempted. Nobody's tenant is pushed below its claim or loses its last gang to another
tenant; within a tenant a higher priority may take from a lower one, and among equals the market says whose turn it is
once a gang has run for a while. Devices that are given back are free only once the gang has left them, so the waiting
job starts in a later round: until then it is *promised*.

Why this does not thrash: devices are taken only if the taker then fits, so what is taken is used; only from tenants
above their claims for one that stays within its own, or for a higher priority, or for a sibling's start, or from a
gang that had its time. So within that time each taking brings tenants closer to their claims or starts a gang that
comes before its victim, and what is lent again afterwards is only what nobody with a claim can use. Sizes that were
measured slower are not grown into (see gain). A tenant without any device is served at others' cost once, since its
last gang is then never taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.scheduling.carry.board import Shape
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import ceiling, larger
from fairlead.scheduling.carry.order import waited_s
from fairlead.scheduling.carry.reclaim import Reclaim
from fairlead.scheduling.carry.scale import may_grow
from fairlead.scheduling.carry.start import hold_free, kinds_for
from fairlead.scheduling.mentions import Named
from fairlead.scheduling.state import JobState, Preempt, Resize
from fairlead.scheduling.words import devices, reason, workers

ATTEMPTS = 4
"""Waiting jobs per tenant and round for which victims are sought; the first is nearly always the one."""


def make_room_for_waiting(draft: Draft) -> None:
    """For the first job of each tenant that has a right to devices and finds none, choose who gives them."""
    attempts: dict[str, int] = {}
    tried: set[tuple[str, Shape, int, int, bool]] = set()
    done = {draft.jobs[name].tenant for name in draft.promised if victims_leaving(draft, name)}
    for job in draft.queue:
        if job.tenant in done or attempts.get(job.tenant, 0) >= ATTEMPTS:
            continue
        kind = (job.tenant, draft.board.shape(job), job.min_workers, job.priority, job.id in draft.target.size)
        if kind in tried:
            continue
        tried.add(kind)
        attempts[job.tenant] = attempts.get(job.tenant, 0) + 1
        reclaim = _find_room(draft, job)
        if reclaim is not None:
            done.add(job.tenant)
            carry_out(draft, reclaim, _for_waiting(draft, job, reclaim))
            if job.id not in draft.board.held:
                hold_free(draft, job)


def make_room_for_growth(draft: Draft) -> None:
    """Elastic gangs shrink for those whose tenant is below its claim, or whom the market wants larger; siblings that it
    would not run, or not there, stop for them."""
    done = {draft.jobs[name].tenant for name in draft.promised if victims_leaving(draft, name)}
    attempts: dict[str, int] = {}
    steady = draft.steady()
    steady.sort(key=lambda job: (job.id not in draft.target.due, -draft.target.bid.get(job.id, 0.0), job.id))
    if not any(job.elastic for job in steady):
        return
    for job in steady:
        size = len(draft.board.seats[job.id])
        if job.tenant in done or attempts.get(job.tenant, 0) >= ATTEMPTS:
            continue
        if not job.elastic or job.id in draft.decisions or not may_grow(draft, job, size):
            continue
        wanted = min(max(draft.headroom(job.tenant), draft.target.size.get(job.id, 0) - size), ceiling(job) - size,
                     draft.quota_room(job.tenant))  # fmt: skip
        if wanted <= 0:
            continue
        attempts[job.tenant] = attempts.get(job.tenant, 0) + 1
        reclaim = _find_growth(draft, job, wanted)
        if reclaim is not None:
            below = f", which has fewer than {draft.said(job.tenant)}" if draft.headroom(job.tenant) > 0 else ""
            carry_out(draft, reclaim, f"{Named(job.id, job.tenant)}{below}")


def victims_leaving(draft: Draft, name: str) -> bool:
    """Whether somebody is still on its way out for this job."""
    victims = (draft.jobs.get(victim) for victim in draft.promised[name]["victims"])
    return any(victim is not None and (victim.settling or victim.id in draft.moving) for victim in victims)


def _kinds(draft: Draft, job: JobState) -> Iterator[str]:
    """The types of device it could have, the one that the market would give it first."""
    shape = draft.board.shape(job)
    for kind in kinds_for(draft, job):
        if draft.board.most(shape.on(kind)) >= job.min_workers:
            yield kind


def _find_room(draft: Draft, job: JobState) -> Reclaim | None:
    for kind in _kinds(draft, job):
        reclaim = Reclaim(draft, job, job.min_workers, kind)
        if reclaim.hopeless() or not reclaim.make_fit():
            continue
        reclaim.prune()
        if reclaim.taken:
            return reclaim
    return None


def _find_growth(draft: Draft, job: JobState, wanted: int) -> Reclaim | None:
    """Room for as many more workers as can be found, up to this many."""
    kind = draft.board.kind(draft.board.seats[job.id])
    if kind is None:
        return None
    size = len(draft.board.seats[job.id])
    reclaim, found = Reclaim(draft, job, 0, kind, for_growth=True), 0
    while (more := larger(job, size + found)) is not None and more - size <= wanted:
        reclaim.need = more - size
        if not reclaim.make_fit():
            break
        found = reclaim.need
    reclaim.need = found
    if not found:
        return None
    reclaim.prune()
    return reclaim if reclaim.taken else None


def _for_waiting(draft: Draft, job: JobState, reclaim: Reclaim) -> str:
    waiting = f"waiting {Named(job.id, job.tenant)}"
    if reclaim.insists:
        return f"{waiting}, to which devices of type {reclaim.kind} are guaranteed"
    if reclaim.covered:
        return f"{waiting}, to which {devices(reclaim.covered)} of it are guaranteed"
    if draft.headroom(job.tenant) >= job.min_workers:
        return f"{waiting}, which has fewer than {draft.said(job.tenant)}"
    if job.id in draft.target.due:
        return f"{waiting}, whose promise would be broken otherwise"
    return waiting


def carry_out(draft: Draft, reclaim: Reclaim, receiver: str) -> None:
    """Decide what the victims of this attempt do, and promise the job what they leave."""
    victims = {victim.id: victim for victim, _ in reclaim.taken}
    for name, victim in sorted(victims.items()):
        before, keeps = draft.board.seats[name], reclaim.board.seats[name]
        given = len(before) - len(keeps)
        draft.given[victim.tenant] = draft.given.get(victim.tenant, 0) + given
        facts = {"to": Named(reclaim.job.id, reclaim.job.tenant), "devices": given}
        why = f"gives {devices(given)} to {receiver}{_turn(draft, victim, reclaim.job)}"
        if keeps:
            text = f"shrinks from {len(before)} to {workers(len(keeps))}: {why}"
            draft.decide(Resize(name, keeps, reason("make-room", text, **facts)))
        else:
            text = f"back to the queue with its snapshot: {why}"
            draft.decide(Preempt(name, reason("make-room", text, **facts)))
    draft.promised[reclaim.job.id] = {"victims": sorted(victims), "since_s": draft.now_s}


def _turn(draft: Draft, victim: JobState, job: JobState) -> str:
    """Why it comes before its victim, where neither claims nor due dates say so."""
    if victim.tenant != job.tenant or job.id in draft.target.due:
        return ""
    if victim.priority < job.priority:
        return f", whose priority is {job.priority} (its own: {victim.priority})"
    if job.seats or draft.board.seats.get(job.id):
        return ""
    if draft.turns.get(job.tenant) == job.id:
        return f", whose turn it is: it has waited longest ({waited_s(job, draft.now_s) / 60:.0f} minutes)"
    return f", whose turn it is: it would take {draft.target.stretch.get(job.id, 1.0):.1f} times as long as alone"
