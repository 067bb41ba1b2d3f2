"""One round of the market: the state as arrays, bids, prices, whole gangs, seats, and a reason for everybody."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.scheduling.bid_score import says
from fairlead.scheduling.job_columns import JobColumns, read
from fairlead.scheduling.market import tenant_service
from fairlead.scheduling.market.blocked_jobs import barred
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.deadlines import DeadlineDuties, duties, pressed
from fairlead.scheduling.market.device_worth import BidColumns, OfferWorth, discounted, worth
from fairlead.scheduling.market.energy import sleep_decisions
from fairlead.scheduling.market.estimates import History, all_done, work_left
from fairlead.scheduling.market.gang_choice import ChosenGangs, GangRounding, Problem, choose
from fairlead.scheduling.market.guarantees import uncovered
from fairlead.scheduling.market.limits import confined
from fairlead.scheduling.market.minimum_run import dearer, left_alone, young
from fairlead.scheduling.market.offers import Floats, Offers, Pool, offers
from fairlead.scheduling.market.placement import dealt, reservations, told
from fairlead.scheduling.market.reasons import said
from fairlead.scheduling.market.rotation import rotated, uninterrupted
from fairlead.scheduling.market.row_reductions import largest
from fairlead.scheduling.market.tenants import Shares, shares
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.market.turns import in_whole_gangs
from fairlead.scheduling.state import ClusterState, JobState, Round

DEFAULT_CONFIG = MarketConfig()

FEW = 500
"""With several tenants and no more jobs than this, every size of a gang counts: shares are a few devices each."""

ROUND_S = 60.0
"""How long a decision is taken to stand where the state does not say."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the market gives everybody, and all that spoke for it; jobs row by row in a fixed order."""

    jobs: Sequence[JobState]
    choices: Offers
    book: BidColumns
    bids: OfferWorth
    duty: DeadlineDuties
    chosen: ChosenGangs
    problem: Problem


@dataclass(frozen=True, slots=True)
class Market:
    """The policy where devices that a decision frees can be given away at once: callable, without state of its own."""

    dials: MarketConfig = DEFAULT_CONFIG
    waits: bool = True  # whether all who wait are told why; in a simulation nobody reads it

    def __call__(self, state: ClusterState) -> Round:
        jobs = JobColumns.in_order(state.jobs)
        pool, dials = Pool.of(state.nodes), self.dials.under(state.sharing)
        history = History.of(state.memory).updated(jobs)
        parts = shares(state.tenants, jobs, pool, state.now_s, state.memory, dials)
        sold = sale(state, jobs, pool, history, parts, dials, tenure=True)
        chosen, found = dealt(state, jobs, sold.choices, pool, sold.problem, sold.chosen, sold.book, dials)
        accounts = tenant_service.kept(jobs, sold.book, sold.choices, chosen, found.seats, parts, state.round_s)
        kept = reservations(found, state.now_s)
        nodes, idle = sleep_decisions(state, found.seats, kept)
        memory = history.memory() | accounts | {"wake_s": sold.duty.wake_s} | idle
        short = uncovered(sold.problem, chosen.column, parts.names, pool.types) if self.waits else None
        bars = barred(jobs, found.seats, sold.choices, pool, parts.tree, kept) if self.waits else None
        made = said(jobs, found.seats, sold.bids, chosen, waits=self.waits, short=short, barred=bars)
        decisions = told(made, jobs, found, state.now_s)
        return Round(decisions, parts.by_tenant(), memory, tuple(nodes), kept)


def sale(
    state: ClusterState, jobs: Sequence[JobState], pool: Pool, history: History, parts: Shares, dials: MarketConfig,
    due: Collection[str] = (), *, ahead: Collection[str] = (), tenure: bool = False,
) -> Outcome:  # fmt: skip
    """Which gang each of these jobs gets of the devices in this pool; those ``due`` get their smallest in any case.

    Jobs ``ahead`` outbid all others, within budgets. With ``tenure`` a gang that has hardly run keeps what it has.
    """
    choices = confined(jobs, offers(jobs, pool, fine=len(parts.names) > 1 and len(jobs) <= FEW), pool)
    book = booked(state, jobs, choices, history, parts, dials)
    bids = worth(book, choices, pool, dials)
    duty = duties(book, choices, pool, dials, parts.tiers(), parts.saved(dials))
    if due:
        smallest = np.where(choices.speed > 0, choices.size, np.iinfo(np.int64).max).argmin(axis=1)
        must = np.array([job.id in due for job in jobs]) & (duty.column < 0) & (choices.speed > 0).any(axis=1)
        duty = replace(duty, column=np.where(must, smallest, duty.column))
    bids = discounted(bids, duty.hopeless, dials)
    problem = replace(_problem(book, choices, pool, bids, parts, duty), rules=parts.rules(jobs, pool))
    if dials.fresh_s > 0:
        first_in_line = np.array([job.id in ahead for job in jobs], dtype=bool)
        problem = replace(problem, utility=dearer(jobs, problem, choices, book, dials, first_in_line))
    if parts.quick(dials):
        over = np.array(read(jobs, "starts_over"), dtype=bool)
        problem = uninterrupted(problem, choices, book, over, parts)
    several = len(parts.names) > 1 and (state.at_once or np.count_nonzero(parts.claim) > 1)
    if several and parts.tree.flat:  # whose jobs are alone on a live cluster need not share anything
        if parts.quick(dials) and problem.rules is None:
            problem = rotated(problem, parts, pool.devices, choices, pressed(duty, book))
        else:
            problem = replace(problem, budget=in_whole_gangs(problem, parts, pool.devices, dials))
    if tenure:
        problem = replace(problem, first=left_alone(problem, choices, young(jobs, book, dials), book, dials))
    chosen = choose(problem, GangRounding if problem.rules is None else TreeRounding)
    return Outcome(jobs, choices, book, bids, duty, chosen, problem)


def booked(
    state: ClusterState, jobs: Sequence[JobState], choices: Offers, history: History, parts: Shares, dials: MarketConfig
) -> BidColumns:
    """What the jobs say of themselves, as arrays."""
    _, _, speed = choices.at(choices.reference) if jobs else (None, None, np.zeros(0))
    running = choices.present >= 0
    ran_s = np.where(running, np.maximum(0.0, state.now_s - np.array(read(jobs, "since_s"), dtype=np.float64)), 0.0)
    return BidColumns(
        now_s=state.now_s,
        round_s=state.round_s or ROUND_S,
        submitted_s=np.array(read(jobs, "submitted_s"), dtype=np.float64),
        weight=np.array(read(jobs, "weight"), dtype=np.float64),
        left=work_left(jobs, speed, history, dials),
        done=all_done(jobs),
        restart_s=np.array(read(jobs, "restart_cost_s"), dtype=np.float64),
        lost_s=np.where(np.array(read(jobs, "starts_over"), dtype=bool), ran_s, 0.0),
        ran_s=ran_s,
        running=running,
        deadline_s=np.array([np.inf if due_s is None else due_s for due_s in read(jobs, "finish_by_s")]),
        declared=np.array([left is not None for left in read(jobs, "work_left")], dtype=bool),
        say=says(jobs, state.nodes, dials),
        group=parts.groups(jobs),
    )


def _problem(
    book: BidColumns, choices: Offers, pool: Pool, bids: OfferWorth, parts: Shares, duty: DeadlineDuties
) -> Problem:
    share = np.zeros(choices.jobs) if len(parts.names) == 1 else rounding(choices, book)
    return Problem(
        bids.utility,
        choices.kind,
        choices.size,
        pool.capacity,
        book.group,
        parts.budget,
        parts.ceiling,
        share,
        duty.column,
    )


def rounding(choices: Offers, book: BidColumns) -> Floats:
    """The part of a gang that has to fit its tenant's budget: of one that cannot be smaller, some; of others, all."""
    elastic = largest(np.where(choices.speed > 0, choices.size, 0)) > choices.least
    return np.where(elastic, 1.0, np.where(book.running, 0.25, 0.5))
