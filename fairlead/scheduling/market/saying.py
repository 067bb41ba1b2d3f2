"""A round in words: what each job gets and what spoke for it, and what those who wait would have to be worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.cluster import same_seats
from fairlead.scheduling.market.choice import Chosen
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.seats import Seats
from fairlead.scheduling.market.worth import STRETCHED, TAIL, Book, Worth
from fairlead.scheduling.state import Decision, Hold, JobState, Preempt, Reason, Resize, Start
from fairlead.scheduling.words import devices, on, reason, workers


def said(
    jobs: Sequence[JobState], seats: Mapping[str, Seats], pool: Pool, book: Book, bids: Worth, chosen: Chosen
) -> list[Decision]:
    """One decision for each job that changes or waits; who stays where it is, is left alone."""
    made: list[Decision] = []
    lowest = float(chosen.price.min()) if len(chosen.price) else 0.0
    for at, job in enumerate(jobs):
        wanted = seats.get(job.id, ())
        if wanted and job.seats and not job.broken and same_seats(wanted, job.seats):
            continue
        if not wanted and job.seats:
            made.append(Preempt(job.id, _waits(job, bids, at, lowest, "outbid")))
        elif not wanted:
            code = "outbid" if bids.utility[at].max(initial=0.0) > 0 else "no-such-gang"
            made.append(Hold(job.id, _waits(job, bids, at, lowest, code)))
        elif job.seats:
            made.append(Resize(job.id, wanted, _moves(job, wanted, bids, at)))
        else:
            made.append(Start(job.id, wanted, _starts(job, wanted, bids, at)))
    return made


def _because(bids: Worth, at: int) -> str:
    if bids.why[at] == STRETCHED:
        return f"it would take {bids.stretch[at]:.1f} times as long as alone"
    if bids.why[at] == TAIL:
        return "it is among those that decide when all work is done"
    return f"about {bids.remaining_s[at] / 60:.3g} minutes of work are left"


def _starts(job: JobState, seats: Seats, bids: Worth, at: int) -> Reason:
    text = f"starts with {workers(len(seats))} on {on(seats)}: {_because(bids, at)}"
    return reason("starts", text, size=len(seats), **_facts(bids, at))


def _moves(job: JobState, seats: Seats, bids: Worth, at: int) -> Reason:
    was, now = len(job.seats), len(seats)
    code, verb = ("grows", "grows") if now > was else ("shrinks", "shrinks") if now < was else ("moves", "moves")
    text = f"{verb} from {was} to {now} workers on {on(seats)}: {_because(bids, at)}"
    return reason(code, text, size=now, was=was, **_facts(bids, at))


def _waits(job: JobState, bids: Worth, at: int, price: float, code: str) -> Reason:
    if code == "no-such-gang":
        return reason(code, f"no type of device in service can run a gang of {workers(job.min_workers)}",
                      size=job.min_workers)  # fmt: skip
    bid = bids.per_device[at]
    share = f"{bid / price:.2g} times" if price > 0 else "less than"
    text = f"waits for {devices(job.min_workers)}: others bid more; its bid is {share} the going price"
    return reason(code, text, price=price, **_facts(bids, at))


def _facts(bids: Worth, at: int) -> dict[str, float]:
    return {"bid": float(bids.per_device[at]), "stretch": float(bids.stretch[at]),
            "remaining_s": float(bids.remaining_s[at])}  # fmt: skip
