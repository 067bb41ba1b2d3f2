"""Stage cuts are the best there are: compared with trying every cut and every order of devices."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.planning import stages
from fairlead.planning.stages import Partition, StageCost, balanced_cuts, best_partition, with_stage

TIMES = st.lists(st.integers(1, 20), min_size=2, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    times=TIMES, speeds=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
    sends=st.lists(st.integers(0, 9), min_size=6, max_size=6), many=st.integers(1, 8), room=st.integers(3, 40),
)  # fmt: skip
def test_no_other_cut_and_no_other_order_is_better(
    times: list[int], speeds: list[int], sends: list[int], many: int, room: int
) -> None:
    layers, depth = len(times), min(len(speeds), len(times))
    speeds = speeds[:depth]
    kinds = sorted(set(speeds))

    def price(speed: int, before: int | None, start: int, stop: int, stage: int) -> StageCost | None:
        if sum(times[start:stop]) * (depth - stage) > room * depth:  # earlier stages keep more in flight
            return None
        once = sum(times[start:stop]) / speed
        far = 0.0 if before is None else sends[start - 1] * (2.0 if before != speed else 1.0)
        return StageCost(max(once, far), once + far, sum(times[start:stop]) * 0.5)

    def objective(partition: Partition) -> float:
        return (many - 1) * partition.busy_s + partition.pass_s + partition.tail_s

    found = best_partition(
        range(1, layers), layers, [speeds.count(kind) for kind in kinds],
        lambda kind, before, start, stop, stage: price(
            kinds[kind], None if before is None else kinds[before], start, stop, stage
        ),
        objective,
    )  # fmt: skip
    best = None
    for order in set(permutations(speeds)):
        for cuts in combinations(range(1, layers), depth - 1):
            edges, whole = (0, *cuts, layers), Partition((), (), 0.0, 0.0, 0.0)
            for stage, speed in enumerate(order):
                cost = price(speed, order[stage - 1] if stage else None, edges[stage], edges[stage + 1], stage)
                if cost is None:
                    break
                whole = with_stage(whole, edges[stage], speed, cost)
            else:
                best = objective(whole) if best is None else min(best, objective(whole))
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert abs(objective(found) - best) < 1e-9
        edges, rebuilt = (0, *found.cuts, layers), Partition((), (), 0.0, 0.0, 0.0)
        for stage, kind in enumerate(found.kinds):
            before = kinds[found.kinds[stage - 1]] if stage else None
            cost = price(kinds[kind], before, edges[stage], edges[stage + 1], stage)
            assert cost is not None
            rebuilt = with_stage(rebuilt, edges[stage], kind, cost)
        assert rebuilt == found, "the cuts are those of the figures"


def test_the_partial_solutions_that_are_kept_are_the_best_that_no_other_dominates() -> None:
    dominated, quick, short = (Partition((1,), (0, 0), *times) for times in ((2, 2, 2), (1, 3, 2), (3, 1, 2)))
    best = Partition((2,), (0, 0), 2.0, 2.0, 1.0)

    def total_s(partition: Partition) -> float:
        return partition.busy_s + partition.pass_s + partition.tail_s

    assert best.dominates(dominated) and best.dominates(best) and not best.dominates(quick)
    assert stages._pareto_front([dominated, short, best, quick], total_s) == [best, short, quick]
    many = [Partition((at,), (0,), float(at), float(100 - at), 0.0) for at in range(100)]
    assert stages._pareto_front(many, lambda p: p.busy_s) == many[: stages.MOST_PARTIAL]


@pytest.mark.parametrize(
    ("times", "count", "cuts"),
    [([1, 1, 1, 1], 2, [2]), ([3, 1, 1, 1], 2, [1]), ([9, 1, 1, 1], 3, [1, 2]), ([1, 1, 1, 9], 3, [2, 3]),
     ([1, 1, 2], 2, [2]), ([2, 3, 2], 2, [2]), ([1, 1], 1, [])],
)  # fmt: skip
def test_a_balanced_cut_lies_nearest_to_equal_parts(times: list[int], count: int, cuts: list[int]) -> None:
    assert balanced_cuts([0, *accumulate(times)], count) == cuts


@given(times=TIMES, count=st.integers(1, 6))
def test_a_balanced_cut_leaves_no_stage_empty(times: list[int], count: int) -> None:
    count = min(count, len(times))
    sums = [0.0]
    for time in times:
        sums.append(sums[-1] + time)
    edges = [0, *balanced_cuts(sums, count), len(times)]
    assert all(left < right for left, right in pairwise(edges)) and len(edges) == count + 1
