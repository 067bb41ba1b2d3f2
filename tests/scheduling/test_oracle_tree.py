"""The same as in test_oracle.py where queues stand above and below each other, with the limits of all above them.

Every queue divides what it has, and whoever has something by the tier below keeps it or gets something better: so each
tier is held to the best that is possible under those before it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.scheduling.market.gang_choice import Problem, choose
from fairlead.scheduling.market.guarantees import devices_held
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.queue_rules import Rules
from fairlead.scheduling.market.tree_rounding import TreeRounding
from tests.scheduling.problems import problem_of, tree_of
from tests.scheduling.test_oracle import REACHED, optimum

EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "0"))
seeds = st.integers(0, 2**32 - 1)


def rules_of(problem: Problem) -> Rules:
    assert problem.rules is not None
    return problem.rules


def tree(seed: int, kind: str, jobs: int = 12) -> Problem:
    rng = np.random.default_rng(seed)
    return tree_of(rng, limits=kind != "plain", guarantees=kind == "guarantees", heavy=kind == "heavy", jobs=jobs)


kinds = st.sampled_from(["plain", "limits", "heavy", "guarantees"])


@settings(max_examples=EXAMPLES or 100, deadline=None)
@given(seeds, st.booleans())
def test_one_tenant_whose_workers_count_for_more_or_that_has_limits_reaches_98_percent(seed: int, most: bool) -> None:
    """One queue, at the desk of trees, as a guarantee, a limit by type or a hungry job brings it there."""
    rng = np.random.default_rng(seed)
    problem = problem_of(rng)
    types, one = len(problem.capacity), np.zeros(1, dtype=np.int64)
    limit = np.where(rng.random((1, types)) < 0.5, rng.integers(1, 9, (1, types)), np.inf)
    rules = Rules(one[:, None], one - 1, one, limit if most else np.full((1, types), np.inf), np.zeros((1, types)),
                  rng.choice([1.0, 1.5, 3.0], problem.jobs))  # fmt: skip
    problem = replace(problem, budget=np.array([problem.capacity.sum()]), rules=rules)
    assert choose(problem, TreeRounding).utility >= REACHED * optimum(problem)


def holding(problem: Problem, floor: Ints) -> Problem:
    """The same, where who holds by this floor what is guaranteed on its path gets it or more of that type."""
    rules, utility = rules_of(problem), problem.utility.copy()
    for job in np.nonzero(floor >= 0)[0].tolist():
        kind, size = problem.kind[job, floor[job]], problem.size[job, floor[job]]
        path = [queue for queue in rules.paths[problem.group[job]].tolist() if queue < len(rules.paths)]
        if rules.guaranteed[path, kind].any():
            utility[job, (problem.kind[job] != kind) | (problem.size[job] < size)] = 0.0
    return replace(problem, utility=utility)


@settings(max_examples=EXAMPLES or 100, deadline=None)
@given(seeds, kinds)
def test_what_is_lent_in_a_tree_reaches_98_percent_given_what_everybody_was_entitled_to(seed: int, kind: str) -> None:
    problem = tree(seed, kind)
    chosen = choose(problem, TreeRounding)
    assert chosen.utility >= REACHED * optimum(holding(problem, chosen.entitled), chosen.entitled)


def below(problem: Problem, queue: int, column: Ints) -> tuple[Ints, Problem, float]:
    """The jobs below a queue, with what they have by these columns; and that as it is charged for."""
    rules = rules_of(problem)
    jobs = np.nonzero((rules.paths[problem.group] == queue).any(axis=1))[0]
    others = column.copy()
    others[jobs] = -1
    taken, part = devices_held(problem, others), problem.part(jobs, column)
    limits = replace(rules, most=rules.most - taken, charge=rules.charge[jobs])
    part = replace(part, group=problem.group[jobs], ceiling=problem.ceiling - taken.sum(axis=1), rules=limits)
    got = jobs[column[jobs] >= 0]
    return jobs, part, float(rules.charge[got] @ problem.size[got, column[got]])


@settings(max_examples=EXAMPLES or 60, deadline=None)
@given(seeds, st.sampled_from(["plain", "limits", "heavy"]))
def test_each_queue_makes_98_percent_of_the_most_of_what_it_has_given_what_those_below_are_entitled_to(
    seed: int, kind: str
) -> None:
    problem = tree(seed, kind)
    depth, floor = rules_of(problem).depth, np.full(problem.jobs, -1)
    tiers = choose(problem, TreeRounding).tiers
    for level, column in zip(reversed(range(len(tiers))), tiers, strict=True):
        for queue in np.nonzero(depth == level)[0].tolist():
            jobs, part, purse = below(problem, queue, column)
            assert part.worth(column[jobs]) >= REACHED * optimum(part, floor[jobs], purse)
        floor = column


def room(problem: Problem, column: Ints) -> tuple[Floats, Floats]:
    """What is left by queue, and by queue and type, of all limits on its path and of what there is."""
    rules, taken = rules_of(problem), devices_held(problem, column)
    queues = len(rules.paths)
    whole = np.append(problem.ceiling - taken.sum(axis=1), np.inf)
    typed = np.vstack((rules.most - taken, np.full(len(problem.capacity), np.inf)))
    got = np.nonzero(column >= 0)[0]
    free = problem.capacity - np.bincount(
        problem.kind[got, column[got]], problem.size[got, column[got]], len(problem.capacity)
    )
    found = [
        (whole[rules.paths[queue]].min(), np.minimum(typed[rules.paths[queue]].min(axis=0), free))
        for queue in range(queues)
    ]
    return np.array([one for one, _ in found]), np.array([many for _, many in found])


@settings(max_examples=EXAMPLES or 100, deadline=None)
@given(seeds, kinds)
def test_a_choice_in_a_tree_keeps_within_all_limits_and_nobody_waits_for_whom_a_gang_is_free(
    seed: int, kind: str
) -> None:
    problem = tree(seed, kind, 20)
    column = choose(problem, TreeRounding).column
    whole, typed = room(problem, column)
    assert (whole >= 0).all() and (typed >= 0).all()
    fits = (problem.utility > 0) & (problem.size <= whole[problem.group][:, None])
    fits &= problem.size <= np.take_along_axis(typed[problem.group], problem.kind, axis=1)
    assert not (fits.any(axis=1) & (column < 0)).any()


@settings(max_examples=EXAMPLES or 100, deadline=None)
@given(seeds)
def test_no_gang_waits_while_all_of_it_is_guaranteed_and_lent_to_others(seed: int) -> None:
    problem = tree_of(np.random.default_rng(seed), limits=False, guarantees=True, jobs=20)
    deepest = ~np.isin(np.arange(len(problem.budget)), rules_of(problem).above)
    rules = replace(rules_of(problem), guaranteed=rules_of(problem).guaranteed * deepest[:, None])
    problem = replace(problem, rules=rules)
    column = choose(problem, TreeRounding).column
    left = np.vstack((rules.guaranteed - devices_held(problem, column), np.zeros(len(problem.capacity))))
    for job in np.nonzero(column < 0)[0].tolist():
        guaranteed = left[rules.paths[problem.group[job]]].max(axis=0)
        assert not ((problem.utility[job] > 0) & (problem.size[job] <= guaranteed[problem.kind[job]])).any()
