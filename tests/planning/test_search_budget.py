"""A search that looks at no more than it may: the best found so far, said where there was more to look at."""

from __future__ import annotations

from fairlead.planning.curves import speed_curve
from fairlead.planning.plan_candidates import shapes
from fairlead.planning.plan_choice import choose_plan
from fairlead.planning.search import search
from fairlead.planning.search_budget import SHAPES, Budget
from tests.planning import made

MODEL = made.model(8, batch=4096, exact=False)
GROUND = made.hardware(4, link=made.SLOW)


def test_the_best_found_so_far_is_chosen_and_the_reason_says_that_there_were_more() -> None:
    whole, short = choose_plan(MODEL, GROUND), Budget(5)
    found = choose_plan(MODEL, GROUND, budget=short)
    assert short.looked_at == 5
    assert "there are more" in found.reason and "5 likeliest" in found.reason
    assert "there are more" not in whole.reason
    assert found.estimate.adjusted_step_s >= whole.estimate.adjusted_step_s


def test_whole_copies_run_only_where_nothing_could_be_looked_at() -> None:
    assert search(MODEL, GROUND, budget=Budget(0)) == []
    alone = choose_plan(MODEL, GROUND, margin=0.0, budget=Budget(0))
    assert (alone.plan.tensor, alone.plan.pipeline, alone.plan.sharded) == (1, 1, False)
    assert alone.plan.workers_used in (1, 4) and alone.estimate.fits
    some = search(MODEL, GROUND, budget=Budget(1))
    assert len(some) == 1 and some[0].fits


def test_one_more_is_never_looked_at() -> None:
    budget = Budget(2)
    assert [budget.take() for _ in range(4)] == [True, True, False, False]
    assert (budget.looked_at, budget.exhausted) == (2, True)
    enough = Budget(2)
    assert [enough.take() for _ in range(2)] == [True, True]
    assert not enough.exhausted


def test_a_batch_of_any_size_has_few_shapes() -> None:
    for batch in (2**31, 2**31 - 1, 510_510):
        huge = made.model(20, batch=batch, exact=False)
        assert sum(1 for _ in shapes(huge, made.hardware(8, per_node=4))) < SHAPES


def test_a_curve_has_a_point_for_every_size_also_when_its_budget_is_used_up() -> None:
    huge = made.model(20, batch=2**31, exact=False)
    points = speed_curve(huge, {"cpu": made.CPU}, [made.FAST, made.SLOW], range(1, 9), wanted="fsdp")
    assert len(points) == 16
