"""One round of decisions from the state of the cluster: shares, mending, starts, making room, growth, and who waits."""

from __future__ import annotations

from fairlead.scheduling.draft import Draft
from fairlead.scheduling.hold import holds
from fairlead.scheduling.mend import mend
from fairlead.scheduling.preempt import make_room_for_growth, make_room_for_waiting
from fairlead.scheduling.scale import grow_beyond_claims, grow_within_claims, shrink_slower
from fairlead.scheduling.start import start_borrowers, start_first, start_within_claims
from fairlead.scheduling.state import ClusterState, Decision, JobState, Preempt, Reason, Resize, Round, Start
from fairlead.scheduling.words import devices, on, reason, workers


def decide(state: ClusterState) -> Round:
    """Who starts, grows, shrinks, moves, stops or waits now, and why.

    Devices that a decision frees are not given away in the same round: they are free only when their
    workers are gone. So every round can be carried out at once, in any order.
    """
    return written(drafted(state))


def drafted(state: ClusterState) -> Draft:
    """The round before it is put into words, for who wants to ask it questions."""
    draft = Draft.of(state)
    mend(draft)
    start_first(draft)
    start_within_claims(draft)
    make_room_for_waiting(draft)
    shrink_slower(draft)
    grow_within_claims(draft)
    make_room_for_growth(draft)
    start_borrowers(draft)
    grow_beyond_claims(draft)
    return draft


def written(draft: Draft) -> Round:
    """What was decided, with a reason for each change and for each job that waits."""
    changes = [*draft.decisions.values(), *(_grown(draft, draft.jobs[name]) for name in draft.growing)]
    starts = [_started(draft, job) for job in draft.line if job.id in draft.starting]
    changes.sort(key=lambda decision: (not isinstance(decision, Preempt), decision.job))
    decisions: list[Decision] = [*changes, *starts, *holds(draft)]
    promised = {name: promise for name, promise in draft.promised.items() if name not in draft.starting}
    return Round(tuple(decisions), draft.entitled, {"promised": promised} if promised else {})


def _grown(draft: Draft, job: JobState) -> Resize:
    seats = draft.board.seats[job.id]
    spare = devices(len(seats) - len(job.seats))
    text = f"grows from {len(job.seats)} to {len(seats)} workers: {spare} to spare, {_share(draft, job)}"
    return Resize(job.id, seats, reason("spare-devices", text, size=len(seats), was=len(job.seats)))


def _started(draft: Draft, job: JobState) -> Start:
    seats, why = draft.board.seats[job.id], draft.starting[job.id]
    code, because = {
        "promised": ("room-made", "room was made for it"),
        "overdue": ("waited-long", "it waited longest"),
        "entitled": ("entitled", _share(draft, job)),
        "borrowing": ("borrowed", f"nobody entitled to these devices can use them now, {_share(draft, job)}"),
    }[why]
    return Start(job.id, seats, _start_reason(code, seats, because))


def _start_reason(code: str, seats: tuple[str, ...], because: str) -> Reason:
    return reason(code, f"starts with {workers(len(seats))} on {on(seats)}: {because}", size=len(seats))


def _share(draft: Draft, job: JobState) -> str:
    return f"tenant {job.tenant} then uses {draft.used(job.tenant)} and is entitled to {draft.entitled[job.tenant]:.3g}"
