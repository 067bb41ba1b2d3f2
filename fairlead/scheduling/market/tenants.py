"""Computes what each tenant may use in this round: its share of the devices, corrected by debts and savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from fairlead.cluster import Resources
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.deadline_agenda import QueueTiers
from fairlead.scheduling.market.fairness_over_time import budgets_by_tier, judge_fairness
from fairlead.scheduling.market.offers import Floats, Ints, Pool
from fairlead.scheduling.market.queue_rules import Rules, charges, queue_demand, rules
from fairlead.scheduling.queues import Tree, divide_capacity, in_service, people_with_jobs
from fairlead.scheduling.state import JobState, TenantState

RECENT_S = 900.0
"""Half-life of the index that is shown as present fairness."""

SEEN_S = 1.0
"""A tenant counts in that index once so many device seconds were due to it."""

SLOW_S, CHANGES = 30.0, 0.05
"""If a change costs ``SLOW_S`` or more, shares hold over hours; else changes cost at most ``CHANGES`` of a turn."""


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's account: device seconds of useful work owed to it (negative: had too much), and what it has now."""

    owed: float = 0.0
    entitled: float = 0.0
    used: float = 0.0
    useful: float = 0.0  # of what it uses, by what those devices are worth to its jobs
    due_s: float = 0.0  # device seconds that were due to it lately ...
    had_s: float = 0.0  # ... and what it had of them
    now_due_s: float = 0.0  # the same of the last minutes
    now_had_s: float = 0.0
    bucket: float = 0.0  # device seconds of its share that it has saved up, at most one turn; negative: overdrawn

    @property
    def ratio(self) -> float:
        """What it had lately of what was due to it."""
        return min(1.0, self.had_s / self.due_s) if self.due_s > 0 else 1.0

    @property
    def now_ratio(self) -> float | None:
        """The same of the last minutes; None where nothing was due to it."""
        return min(1.0, self.now_had_s / self.now_due_s) if self.now_due_s >= SEEN_S else None


@dataclass(frozen=True, slots=True)
class Shares:
    """By queue in the order of names: its share, its budget and its hard limit.

    A queue is a tenant, a person of it, or the own work of a tenant with teams; its amounts include queues below it.
    """

    names: tuple[str, ...]
    entitled: Mapping[str, float]
    budget: Floats
    ceiling: Floats
    accounts: Mapping[str, Account]
    now_s: float
    tree: Tree
    fairness: Mapping[str, Any]  # the fairness index and its correction
    claim: Floats  # the share, by queue index
    has: Floats  # devices in use, by queue index
    whole: Resources  # all resources, to charge jobs that take more than their devices' part
    repays: Floats  # devices that repay debts in time; negative: that are given back
    turn_s: float = inf  # length of a turn; infinite without turns

    def groups(self, jobs: Sequence[JobState]) -> Ints:
        """The queue index of each job."""
        number = {name: at for at, name in enumerate(self.names)}
        return np.array([number[leaf] for leaf in self.tree.leaves(jobs)], dtype=np.int64)

    def rules(self, jobs: Sequence[JobState], pool: Pool) -> Rules | None:
        return rules(self.tree, _types(pool), charges(jobs, self.whole), len(jobs))

    def quick(self, config: MarketConfig) -> bool:
        """Whether changes are so cheap that shares hold over minutes: queues then take turns by their buckets."""
        return self.turn_s < config.turn_s

    def behind(self, config: MarketConfig) -> Floats:
        """By queue, the devices that would even it out within one turn; negative: it is ahead."""
        if self.quick(config):
            return np.array([self.accounts[name].bucket / self.turn_s for name in self.names])
        return np.array([self.accounts[name].owed / config.turn_s for name in self.names])

    def saved(self, config: MarketConfig) -> Floats | None:
        """By queue, the device seconds in its bucket; None where turns are too long to promise anything on them."""
        return np.array([self.accounts[name].bucket for name in self.names]) if self.quick(config) else None

    def used(self, jobs: Sequence[JobState], workers: Mapping[str, float]) -> dict[str, float]:
        """Charged devices of each queue if these jobs have so many workers."""
        return _used(self.tree, jobs, workers, self.whole)

    def by_tenant(self) -> dict[str, float]:
        """What tenants may claim, including tenants below them."""
        return {name: amount for name, amount in self.entitled.items() if name in self.tree.tenants}

    def tiers(self) -> QueueTiers | None:
        """Claims and parents of all queues by index; None with a single queue."""
        if len(self.names) == 1:
            return None
        return QueueTiers(np.array([self.entitled[name] for name in self.names]), _above(self.tree))

    def memory(self, used: Mapping[str, float], useful: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The memory for the next round: accounts with what was given out now and the useful part of it."""
        had = used if useful is None else useful
        kept = {
            name: replace(self.accounts[name], entitled=self.entitled[name], used=float(used.get(name, 0)),
                          useful=float(had.get(name, 0)))
            for name in self.names
        }  # fmt: skip
        return {"accounts": kept, "at_s": self.now_s, "fairness": self.fairness}


def compute_shares(
    tenants: Sequence[TenantState], jobs: Sequence[JobState], pool: Pool, now_s: float, memory: Mapping[str, Any],
    config: MarketConfig, sitting: Sequence[JobState] | None = None,
) -> Shares:  # fmt: skip
    """Weighted max-min shares of the devices, corrected by debts, so that whole gangs even out over time.

    ``sitting`` are the present gangs; without it the last round's decisions count as carried out.
    """
    tree = Tree.of(tenants, people_with_jobs(jobs))
    names = tuple(tree.queues)
    whole = in_service(pool.nodes) if any(read_column(jobs, "demand")) else {}
    leaves = tree.leaves(jobs)
    demand = queue_demand(jobs, leaves, _types(pool), charges(jobs, whole))
    entitled = divide_capacity(tree, demand, pool.devices)
    turn_s = turn_length_s(jobs, config)
    accounts = _aged(memory, names, now_s, config)
    depth = {name: gang * turn_s for name, gang in _gangs(tree, jobs, leaves).items()}
    asks = tree.summed(demand.charged)
    caps = {name: depth[name] if asks[name] > entitled[name] + 1e-6 else 0.0 for name in names}
    runs_on = _with_commands(tree, jobs, leaves)
    floors = {name: -inf if name in runs_on else -depth[name] for name in names}
    accounts = fill_buckets(accounts, memory, tree, floors, caps, now_s)
    corrects = bool(memory.get("fairness", {}).get("corrects", False))
    fairness = judge_fairness({name: accounts[name] for name in tree.below.get(None, ())}, config, corrects=corrects)
    repays = np.array([accounts[name].owed / fairness["within_s"] for name in names])
    asked = np.array([entitled[name] for name in names]) + repays
    if turn_s < config.turn_s:  # fractions of a device even out by the buckets
        asked += np.array([accounts[name].bucket / turn_s for name in names])
    budget = np.maximum(0.0, asked)
    used = {name: account.used for name, account in accounts.items()}
    if sitting is not None:
        used = _used(tree, sitting, {job.id: len(job.seats) for job in sitting}, whole)
    claim, has = (np.array([amounts[name] for name in names]) for amounts in (entitled, used))
    if not tree.flat:
        budget = budgets_by_tier(budget, claim, has, _above(tree), pool.devices, config.gives)
    queues = tree.queues.values()
    ceiling = np.array([np.inf if queue.quota is None else float(queue.quota or 0) for queue in queues])
    spent = {tree.own(queue.name) for queue in queues if queue.spent is not None}
    ceiling = np.where([name in spent for name in names], 0.0, ceiling)
    if len(names) == 1:
        budget = np.array([pool.devices])
    return Shares(names, entitled, budget, ceiling, accounts, now_s, tree, fairness, claim, has, whole, repays, turn_s)


def _used(tree: Tree, jobs: Sequence[JobState], workers: Mapping[str, float], whole: Resources) -> dict[str, float]:
    """Charged devices by queue, including queues below it."""
    charged = charges(jobs, whole)
    sums: dict[str, float] = {}
    for at, (job, leaf) in enumerate(zip(jobs, tree.leaves(jobs), strict=True)):
        has = workers.get(job.id, 0)
        sums[leaf] = sums.get(leaf, 0.0) + (has if charged is None else has * float(charged[at]))
    return tree.summed(sums)


def _above(tree: Tree) -> Ints:
    """The index of each queue's parent, -1 at the top."""
    number = {name: at for at, name in enumerate(tree.queues)}
    parents = [tree.above[name] for name in tree.queues]
    return np.array([-1 if parent is None else number[parent] for parent in parents], dtype=np.int64)


def _types(pool: Pool) -> dict[str, float]:
    return dict(zip(pool.types, pool.capacity.tolist(), strict=True))


def _aged(memory: Mapping[str, Any], names: Sequence[str], now_s: float, config: MarketConfig) -> dict[str, Account]:
    """The accounts now: debts fade, and what the last round gave or denied is added."""
    before: Mapping[str, Account] = memory.get("accounts", {})
    seconds = max(0.0, now_s - float(memory.get("at_s", now_s)))
    fading, passing = 0.5 ** (seconds / config.forget_s), 0.5 ** (seconds / RECENT_S)
    found = {}
    for name in names:
        account = before.get(name, Account())
        found[name] = Account(
            owed=account.owed * fading + (account.entitled - account.useful) * seconds,
            used=account.used,
            due_s=account.due_s * fading + account.entitled * seconds,
            had_s=account.had_s * fading + min(account.useful, account.entitled) * seconds,
            now_due_s=account.now_due_s * passing + account.entitled * seconds,
            now_had_s=account.now_had_s * passing + min(account.useful, account.entitled) * seconds,
            bucket=account.bucket,
        )
    return found


def turn_length_s(jobs: Sequence[JobState], config: MarketConfig) -> float:
    """Length of a turn: half an hour where changes cost half a minute, less than a minute where they cost a second or
    two, and in between long enough that changes cost little of it.

    The cost of a change is the median restart cost of the running gangs, as only those were measured.
    """
    costs: Sequence[float] = read_column(jobs, "restart_cost_s")
    running = [cost for cost, seats in zip(costs, read_column(jobs, "seats"), strict=True) if seats] or costs
    if not running:
        return config.turn_s
    cost_s = sorted(running)[len(running) // 2]
    return config.turn_s if cost_s >= SLOW_S else min(config.turn_s, max(config.quick_turn_s, cost_s / CHANGES))


def fill_buckets(
    accounts: Mapping[str, Account], memory: Mapping[str, Any], tree: Tree, floors: Mapping[str, float],
    caps: Mapping[str, float], now_s: float,
) -> dict[str, Account]:  # fmt: skip
    """The accounts with their buckets as of now, each between its floor and its cap.

    A bucket fills at what was due since the last round and empties by what was used. Devices that no sibling used, as
    they were idle or gangs came up, are due to none of them. A bucket below its floor stays there until it refills.
    """
    before: Mapping[str, Account] = memory.get("accounts", {})
    seconds = max(0.0, now_s - float(memory.get("at_s", now_s)))
    found = dict(accounts)
    for below in tree.below.values():
        past = [before.get(name, Account()) for name in below]
        due, used = sum(one.entitled for one in past), sum(one.used for one in past)
        had = min(1.0, used / due) if due > 0 else 1.0
        for name, one in zip(below, past, strict=True):
            bucket = one.bucket + (one.entitled * had - one.used) * seconds
            bucket = min(caps[name], max(bucket, min(floors[name], one.bucket)))
            found[name] = replace(found[name], bucket=bucket)
    return found


def _gangs(tree: Tree, jobs: Sequence[JobState], leaves: Sequence[str]) -> dict[str, float]:
    """By queue, the largest minimum gang of the jobs in it and below it; 1 without jobs."""
    found = dict.fromkeys(tree.queues, 1.0)
    for leaf, least in zip(leaves, read_column(jobs, "min_workers"), strict=True):
        if least > found[leaf]:
            for name in tree.path(leaf):
                found[name] = max(found[name], float(least))
    return found


def _with_commands(tree: Tree, jobs: Sequence[JobState], leaves: Sequence[str]) -> set[str]:
    """The queues with a running command in them or below them."""
    found: set[str] = set()
    columns = (read_column(jobs, name) for name in ("starts_over", "seats"))
    for leaf, over, seats in zip(leaves, *columns, strict=True):
        if over and seats:
            found.update(tree.path(leaf))
    return found
