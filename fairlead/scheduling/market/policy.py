"""Runs one round of the market: state to arrays, bids, prices, whole gangs, seats, and a reason for every job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.scheduling.bid_score import bid_factors
from fairlead.scheduling.job_columns import JobColumns, read_column
from fairlead.scheduling.market import tenant_service
from fairlead.scheduling.market.blocked_jobs import blocked_reasons
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.deadlines import DeadlineDuties, duties, jobs_with_deadlines
from fairlead.scheduling.market.device_worth import BidColumns, OfferWorth, discount_hopeless, offer_worth
from fairlead.scheduling.market.energy import sleep_decisions
from fairlead.scheduling.market.estimates import History, all_done, work_left
from fairlead.scheduling.market.gang_choice import ChosenGangs, GangRounding, Problem, choose
from fairlead.scheduling.market.guarantees import partly_guaranteed
from fairlead.scheduling.market.limits import confine_offers
from fairlead.scheduling.market.minimum_run import adjusted_utility, mandatory_gangs, recently_started
from fairlead.scheduling.market.offers import Floats, Offers, Pool, offers
from fairlead.scheduling.market.placement import place_gangs, reservations, with_seat_reasons
from fairlead.scheduling.market.reasons import explained_decisions
from fairlead.scheduling.market.rotation import keep_commands_running, rotate_budgets
from fairlead.scheduling.market.row_reductions import largest
from fairlead.scheduling.market.tenants import Shares, compute_shares
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.market.turns import budgets_in_whole_gangs
from fairlead.scheduling.state import ClusterState, JobState, Round

DEFAULT_CONFIG = MarketConfig()

FEW = 500
"""With several tenants and at most so many jobs, every gang size is considered: shares are a few devices each."""

ROUND_S = 60.0
"""How long a decision is expected to stand where the state does not say."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The gangs that the market chose, with the arrays that led to them; one row per job in a fixed order."""

    jobs: Sequence[JobState]
    choices: Offers
    book: BidColumns
    bids: OfferWorth
    duty: DeadlineDuties
    chosen: ChosenGangs
    problem: Problem


@dataclass(frozen=True, slots=True)
class Market:
    """The policy for states in which freed devices can be given away at once. A callable without state of its own."""

    config: MarketConfig = DEFAULT_CONFIG
    waits: bool = True  # whether waiting jobs get reasons; in a simulation nobody reads them

    def __call__(self, state: ClusterState) -> Round:
        jobs = JobColumns.in_order(state.jobs)
        pool, config = Pool.of(state.nodes), self.config.under(state.sharing)
        history = History.of(state.memory).updated(jobs)
        shares = compute_shares(state.tenants, jobs, pool, state.now_s, state.memory, config)
        outcome = run_market(state, jobs, pool, history, shares, config, tenure=True)
        chosen, found = place_gangs(
            state, jobs, outcome.choices, pool, outcome.problem, outcome.chosen, outcome.book, config
        )
        accounts = tenant_service.accounts_after_round(
            jobs, outcome.book, outcome.choices, chosen, found.seats, shares, state.round_s
        )
        kept = reservations(found, state.now_s)
        nodes, idle = sleep_decisions(state, found.seats, kept)
        memory = history.memory() | accounts | {"wake_s": outcome.duty.wake_s} | idle
        short = partly_guaranteed(outcome.problem, chosen.column, shares.names, pool.types) if self.waits else None
        bars = blocked_reasons(jobs, found.seats, outcome.choices, pool, shares.tree, kept) if self.waits else None
        made = explained_decisions(jobs, found.seats, outcome.bids, chosen, waits=self.waits, short=short, barred=bars)
        decisions = with_seat_reasons(made, jobs, found, state.now_s)
        return Round(decisions, shares.by_tenant(), memory, tuple(nodes), kept)


def run_market(
    state: ClusterState, jobs: Sequence[JobState], pool: Pool, history: History, shares: Shares, config: MarketConfig,
    due: Collection[str] = (), *, ahead: Collection[str] = (), tenure: bool = False,
) -> Outcome:  # fmt: skip
    """Chooses a gang for each of these jobs from the devices of this pool; jobs ``due`` get at least their smallest.

    Jobs ``ahead`` outbid all others, within budgets. With ``tenure`` a gang that has hardly run keeps its size.
    """
    choices = confine_offers(jobs, offers(jobs, pool, fine=len(shares.names) > 1 and len(jobs) <= FEW), pool)
    book = bid_columns(state, jobs, choices, history, shares, config)
    bids = offer_worth(book, choices, pool, config)
    duty = duties(book, choices, pool, config, shares.tiers(), shares.saved(config))
    if due:
        smallest = np.where(choices.speed > 0, choices.size, np.iinfo(np.int64).max).argmin(axis=1)
        must = np.array([job.id in due for job in jobs]) & (duty.column < 0) & (choices.speed > 0).any(axis=1)
        duty = replace(duty, column=np.where(must, smallest, duty.column))
    bids = discount_hopeless(bids, duty.hopeless, config)
    problem = replace(_problem(book, choices, pool, bids, shares, duty), rules=shares.rules(jobs, pool))
    if config.fresh_s > 0:
        first_in_line = np.array([job.id in ahead for job in jobs], dtype=bool)
        problem = replace(problem, utility=adjusted_utility(jobs, problem, choices, book, config, first_in_line))
    if shares.quick(config):
        over = np.array(read_column(jobs, "starts_over"), dtype=bool)
        problem = keep_commands_running(problem, choices, book, over, shares)
    several = len(shares.names) > 1 and (state.at_once or np.count_nonzero(shares.claim) > 1)
    if several and shares.tree.flat:  # a tenant whose jobs are alone on a live cluster shares with no one
        if shares.quick(config) and problem.rules is None:
            problem = rotate_budgets(problem, shares, pool.devices, choices, jobs_with_deadlines(duty, book))
        else:
            problem = replace(problem, budget=budgets_in_whole_gangs(problem, shares, pool.devices, config))
    if tenure:
        problem = replace(
            problem, mandatory=mandatory_gangs(problem, choices, recently_started(jobs, book, config), book, config)
        )
    chosen = choose(problem, GangRounding if problem.rules is None else TreeRounding)
    return Outcome(jobs, choices, book, bids, duty, chosen, problem)


def bid_columns(
    state: ClusterState,
    jobs: Sequence[JobState],
    choices: Offers,
    history: History,
    shares: Shares,
    config: MarketConfig,
) -> BidColumns:
    """The fields of the jobs that bids depend on, as arrays."""
    _, _, speed = choices.at(choices.reference) if jobs else (None, None, np.zeros(0))
    running = choices.present >= 0
    ran_s = np.where(
        running, np.maximum(0.0, state.now_s - np.array(read_column(jobs, "since_s"), dtype=np.float64)), 0.0
    )
    return BidColumns(
        now_s=state.now_s,
        round_s=state.round_s or ROUND_S,
        submitted_s=np.array(read_column(jobs, "submitted_s"), dtype=np.float64),
        weight=np.array(read_column(jobs, "weight"), dtype=np.float64),
        left=work_left(jobs, speed, history, config),
        done=all_done(jobs),
        restart_s=np.array(read_column(jobs, "restart_cost_s"), dtype=np.float64),
        lost_s=np.where(np.array(read_column(jobs, "starts_over"), dtype=bool), ran_s, 0.0),
        ran_s=ran_s,
        running=running,
        deadline_s=np.array([np.inf if due_s is None else due_s for due_s in read_column(jobs, "finish_by_s")]),
        declared=np.array([left is not None for left in read_column(jobs, "work_left")], dtype=bool),
        factor=bid_factors(jobs, state.nodes, config),
        group=shares.groups(jobs),
    )


def _problem(
    book: BidColumns, choices: Offers, pool: Pool, bids: OfferWorth, shares: Shares, duty: DeadlineDuties
) -> Problem:
    share = np.zeros(choices.jobs) if len(shares.names) == 1 else budget_fit(choices, book)
    return Problem(
        bids.utility,
        choices.kind,
        choices.size,
        pool.capacity,
        book.group,
        shares.budget,
        shares.ceiling,
        share,
        duty.column,
    )


def budget_fit(choices: Offers, book: BidColumns) -> Floats:
    """The part of a gang that must fit its tenant's budget: all of an elastic gang, a part of a rigid one."""
    elastic = largest(np.where(choices.speed > 0, choices.size, 0)) > choices.least
    return np.where(elastic, 1.0, np.where(book.running, 0.25, 0.5))
