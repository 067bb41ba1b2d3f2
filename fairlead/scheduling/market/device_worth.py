"""Computes bids: what a device is worth to each job, by remaining time, stretch and the end of all work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.energy import busy_watts
from fairlead.scheduling.market.offers import Bools, Floats, Ints, Offers, Pool
from fairlead.scheduling.market.row_reductions import largest

SHORT, STRETCHED, TAIL = 0, 1, 2
"""The main argument of a bid."""

TINY = 1e-100
"""Stands for the speed of a job that cannot run, so that divisions stay finite."""

NOTICED = 1.5
"""A bid raised by this factor through waiting is explained by the waiting."""


@dataclass(frozen=True, slots=True)
class BidColumns:
    """The jobs' fields as columns of numbers, in a fixed order."""

    now_s: float
    round_s: float
    submitted_s: Floats
    weight: Floats
    left: Floats  # units of work
    done: Floats
    restart_s: Floats
    lost_s: Floats  # work lost when it is stopped: all its gang has done, for a job that starts over
    ran_s: Floats  # how long its present gang has run, 0 without one
    running: Bools
    deadline_s: Floats  # infinite without one
    group: Ints  # the tenant, by number
    declared: Bools  # whether the work left was declared, not estimated
    factor: Floats  # of its bid, by priority, purpose and resources; 1 without any

    @property
    def costs_s(self) -> Floats:
        """Seconds of each worker that are lost when the gang is stopped, or changed."""
        return self.restart_s + self.lost_s


@dataclass(frozen=True, slots=True)
class OfferWorth:
    """Utility of each offer and the values behind it."""

    utility: Floats
    per_device: Floats
    remaining_s: Floats  # on the reference gang
    stretch: Floats
    why: Ints


def offer_worth(book: BidColumns, offers: Offers, pool: Pool, config: MarketConfig) -> OfferWorth:
    """Bids for all offers: worth of a device × devices of the reference gang × relative gain of the offer."""
    _, size, speed = offers.at(offers.reference)
    speed = np.maximum(speed, TINY)
    remaining_s, best = book.left / speed, offers.best_on(len(pool.types))
    stretch = _stretch(book, offers, pool)
    bid = book.weight / (np.maximum(remaining_s, book.round_s) ** config.shortness * np.maximum(size, 1))
    bid = bid * np.where(book.running, config.stay, 1.0)
    patient = _raised(stretch, config)
    bid = bid * patient
    why = np.where(patient > NOTICED, STRETCHED, SHORT)
    longest = _tail(book, offers, best, pool) / config.tail
    going = _going(bid, np.maximum(size, 1), pool.devices)
    at_least = np.where(book.declared & (longest > 1.0), going * config.tail_bid * longest**config.tail_power, 0.0)
    why = np.where(at_least > bid, TAIL, why)
    late = _worst_off(stretch * book.factor, config)
    rescue = np.where(book.declared & (late > 1.0), going * config.late_bid * late**2, 0.0)
    why = np.where(rescue > np.maximum(bid, at_least), STRETCHED, why)
    bid = np.maximum(np.maximum(bid, at_least), rescue) * book.factor
    utility = (bid * size)[:, None] * _adds(offers, best, speed, config)
    if len(pool.types) > 1 and config.energy > 0:
        utility *= _frugal(offers, best, pool, config)
    return OfferWorth(_sticky(utility, book, offers, config), bid, remaining_s, stretch, why)


def discount_hopeless(bids: OfferWorth, hopeless: Bools, config: MarketConfig) -> OfferWorth:
    """Lowers the bids of jobs whose deadlines are out of reach, in favour of those that can be kept."""
    if not hopeless.any():
        return bids
    factor = np.where(hopeless, config.hopeless, 1.0)
    return replace(bids, utility=bids.utility * factor[:, None], per_device=bids.per_device * factor)


def _raised(stretch: Floats, config: MarketConfig) -> Floats:
    capped = np.minimum(stretch, config.stretch_limit)
    return np.asarray(capped**config.patience * (stretch / capped), dtype=np.float64)


def _worst_off(stretch: Floats, config: MarketConfig) -> Floats:
    """Stretch relative to the threshold of the worst-off jobs; a job that is hardly late never exceeds it."""
    limit = _quantile(stretch, 1.0 - config.worst_off) if len(stretch) else 1.0
    return stretch / max(limit, NOTICED)


def _quantile(values: Floats, part: float) -> float:
    """As ``np.quantile``, which loads masked arrays when it is called first: a third of a small round."""
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    below, above, between = float(ordered[low]), float(ordered[high]), place - low
    return above - (above - below) * (1 - between) if between >= 0.5 else below + (above - below) * between


def _adds(offers: Offers, best: Floats, reference_speed: Floats, config: MarketConfig) -> Floats:
    """Gain of an offer relative to the reference gang: sharper between types, flatter between sizes.

    The best efficiency on the same type separates the effect of the type from that of the size.
    """
    ratio = offers.speed / reference_speed[:, None]
    of_types = best / np.maximum(largest(offers.efficient), TINY)[:, None]
    cell = offers.kind + (np.arange(offers.jobs) * of_types.shape[1])[:, None]
    by_type = of_types.take(cell)
    by_size = np.divide(ratio, by_type, out=np.zeros_like(ratio), where=by_type > 0)
    return np.asarray((of_types**config.comparison).take(cell) * by_size**config.breadth, dtype=np.float64)


def _frugal(offers: Offers, best: Floats, pool: Pool, config: MarketConfig) -> Floats:
    """A little less for a type on which the same work takes more energy: watts over speed, against the most frugal."""
    drawn = np.where(best > 0, busy_watts(pool.nodes, pool.types) / np.maximum(best, TINY), np.inf)
    least = np.min(drawn, axis=1, keepdims=True)
    saves = np.divide(least, drawn, out=np.zeros_like(drawn), where=np.isfinite(drawn)) ** config.energy
    return np.asarray(np.take_along_axis(saves, offers.kind, axis=1), dtype=np.float64)


def _stretch(book: BidColumns, offers: Offers, pool: Pool) -> Floats:
    """Expected time in the system over the time alone on an equal share's gang, if it ran from now on."""
    share = max(1.0, pool.devices / max(offers.jobs, 1))
    allowed = np.where(offers.size <= share, offers.speed, 0.0)
    smallest = np.where(offers.size == offers.least[:, None], offers.speed, 0.0)
    speed = np.maximum(np.maximum(largest(allowed), largest(smallest)), TINY)
    alone_s = np.maximum((book.left + book.done) / speed, 1.0)
    expected_s = book.now_s - book.submitted_s + book.left / speed
    return np.asarray(np.maximum(expected_s / alone_s, 1.0), dtype=np.float64)


def _tail(book: BidColumns, offers: Offers, best: Floats, pool: Pool) -> Floats:
    """Each job's shortest remaining time over the time that all work would take on all devices."""
    fastest = np.maximum(offers.fastest, TINY)
    mean = np.zeros(offers.jobs)
    for kind, devices in enumerate(pool.capacity.tolist()):
        mean += best[:, kind] * devices
    possible = mean > 0  # a job that cannot run does not count
    all_s = float((book.left[possible] / mean[possible]).sum())
    return np.asarray(book.left / fastest / max(all_s, 1e-9), dtype=np.float64)


def _going(bid: Floats, size: Ints, devices: float) -> float:
    """The bid of the last job that would still get devices."""
    if not len(bid):
        return 0.0
    order = np.argsort(-bid, kind="stable")
    last = min(int(np.searchsorted(np.cumsum(size[order]), devices)), len(bid) - 1)
    return float(bid[order[last]])


def _sticky(utility: Floats, book: BidColumns, offers: Offers, config: MarketConfig) -> Floats:
    """Accounts for the cost of a change over the time that a gang is expected to stand: a running job's other gangs are
    worth less, its present one more, so that the gang that is cheapest to stop is stopped."""
    stands_s = np.maximum(np.minimum(config.horizon_s, book.left / np.maximum(offers.fastest, TINY)), 1.0)
    keeps = np.clip(1.0 - book.costs_s / stands_s, 0.05, 1.0)
    has = offers.present >= 0
    found = utility * np.where(has, keeps, 1.0)[:, None]
    rows = np.nonzero(has)[0]
    dear = np.maximum(1.0, (1.0 + book.costs_s / stands_s) / config.stay)  # beyond what ``stay`` counts already
    found[rows, offers.present[rows]] = utility[rows, offers.present[rows]] * dear[rows]
    return found
