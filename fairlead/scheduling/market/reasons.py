"""Writes the decisions of a simulated round with reasons: the main argument of each bid, or how far it was outbid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.cluster import same_seats
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.device_worth import STRETCHED, TAIL, OfferWorth
from fairlead.scheduling.market.gang_choice import ChosenGangs
from fairlead.scheduling.market.seats import Seats
from fairlead.scheduling.phrases import devices, duration_text, node_list, workers
from fairlead.scheduling.state import Decision, Hold, JobState, Preempt, Reason, Resize, Start


@dataclass(frozen=True, slots=True)
class BidFigures:
    """The figures behind the bids, as plain numbers by job."""

    bid: list[float]
    stretch: list[float]
    remaining_s: list[float]
    why: list[int]

    @classmethod
    def of(cls, bids: OfferWorth) -> BidFigures:
        return cls(bids.per_device.tolist(), bids.stretch.tolist(), bids.remaining_s.tolist(), bids.why.tolist())

    def facts(self, at: int, **others: float) -> dict[str, float]:
        return {**others, "bid": self.bid[at], "stretch": self.stretch[at], "remaining_s": self.remaining_s[at]}

    def because(self, at: int) -> str:
        if self.why[at] == STRETCHED:
            return f"it would take {self.stretch[at]:.1f} times as long as alone"
        if self.why[at] == TAIL:
            return "it is one of the long jobs that decide when all work is done"
        return f"about {duration_text(self.remaining_s[at])} of work are left"


def explained_decisions(
    jobs: Sequence[JobState], seats: Mapping[str, Seats], bids: OfferWorth, chosen: ChosenGangs, *, waits: bool = True,
    short: Mapping[int, str] | None = None, barred: Mapping[int, Reason] | None = None,
) -> list[Decision]:  # fmt: skip
    """One decision for each job that changes or, with ``waits``, waits.

    ``short`` has words for guarantees that cover a waiting gang only in part, ``barred`` the reasons of jobs that no
    bid would start.
    """
    made: list[Decision] = []
    lowest = float(chosen.price.min()) if len(chosen.price) else 0.0
    figures, possible = BidFigures.of(bids), (bids.utility.max(axis=1, initial=0.0) > 0).tolist()
    names, seated, sizes = (read_column(jobs, name) for name in ("id", "seats", "min_workers"))
    wants = {size: f"waits for {devices(size)}: others bid more; its bid is " for size in set(sizes)}
    for at, (name, has, size) in enumerate(zip(names, seated, sizes, strict=True)):
        wanted = seats.get(name, ())
        if not wanted and not has:
            if waits:
                if not possible[at]:
                    why = _no_such_gang(size)
                elif barred and at in barred:
                    why = _barred(barred[at], figures, at)
                else:
                    why = _outbid(wants[size], figures, at, lowest)
                made.append(Hold(name, why if short is None or at not in short else _besides(why, short[at])))
            continue
        job = jobs[at]
        if wanted and job.seats and not job.broken and (wanted == job.seats or same_seats(wanted, job.seats)):
            continue
        if not wanted:
            held = (barred or {}).get(at)
            why = _barred(held, figures, at) if held else _outbid(wants[size], figures, at, lowest)
            made.append(Preempt(job.id, why))
        elif job.seats:
            made.append(Resize(job.id, wanted, _moves(job, wanted, figures, at)))
        else:
            made.append(Start(job.id, wanted, _starts(wanted, figures, at)))
    return made


def _starts(seats: Seats, figures: BidFigures, at: int) -> Reason:
    text = f"starts with {workers(len(seats))} on {node_list(seats)}: {figures.because(at)}"
    return Reason("starts", text, figures.facts(at, size=len(seats)))


def _moves(job: JobState, seats: Seats, figures: BidFigures, at: int) -> Reason:
    was, now = len(job.seats), len(seats)
    code = "grows" if now > was else "shrinks" if now < was else "moves"
    what = f"moves its {workers(now)} to" if now == was else f"{code} from {was} to {workers(now)} on"
    text = f"{what} {node_list(seats)}: {figures.because(at)}"
    return Reason(code, text, figures.facts(at, size=now, was=was))


def _besides(why: Reason, short: str) -> Reason:
    return Reason(why.code, f"{why.text}; {short}", {**why.facts, "not_guaranteed": short})


def _barred(why: Reason, figures: BidFigures, at: int) -> Reason:
    return Reason(why.code, why.text, {**why.facts, **figures.facts(at)})


def _no_such_gang(size: int) -> Reason:
    text = f"no type of device in service can run a gang of {workers(size)}"
    return Reason("no-such-gang", text, {"size": size})


def _times(ratio: float) -> str:
    """A ratio in words, without an exponent."""
    if ratio < 0.001:
        return "less than a thousandth of"
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times" if ratio < 1e6 else "over a million times"


def _outbid(wants: str, figures: BidFigures, at: int, price: float) -> Reason:
    bid = figures.bid[at]
    text = f"{wants}{_times(bid / price)} the going price" if price > 0 else f"{wants}less than the going price"
    facts = {"price": price, "bid": bid, "stretch": figures.stretch[at], "remaining_s": figures.remaining_s[at]}
    return Reason("outbid", text, facts)
