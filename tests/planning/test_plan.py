"""The Plan is one value: it travels as plain values, names itself, and never contradicts itself."""

from __future__ import annotations

import json

import pytest

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import SINGLE, Plan, ddp_plan, plan_from

PLANS = {
    "single": SINGLE,
    "ddp": ddp_plan(4),
    "dp4": Plan(data=4, sync="allreduce"),
    "dp2·uneven": Plan(data=2, sync="allreduce", shares=(2 / 3, 1 / 3)),
    "fsdp2·tp2": Plan(data=2, tensor=2, sync="allreduce", sharded=True, splits=(("a", "column"), ("b", "row"))),
    "pp2·m8·1f1b": Plan(pipeline=2, microbatches=8, schedule="1f1b", cuts=("layers.3",), members=(1, 0)),
    "dp2·pp2·m4·interleaved·v2": Plan(
        data=2, pipeline=2, microbatches=4, schedule="interleaved", chunks=2, cuts=("1", "2", "3"), sync="allreduce"
    ),
    "dp4·ring2": Plan(data=4, sync="hierarchical", group=2),
    "dp4·local8": Plan(data=4, sync="local-sgd", period=8),
    "dp4·ps2·bf16": Plan(data=4, sync="parameter-server", staleness=2, compression="bf16"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_names_itself_and_comes_back_from_json(name: str) -> None:
    plan = PLANS[name]
    assert plan.id == name
    assert plan_from(json.loads(json.dumps(plan.to_plain()))) == plan


def test_only_plans_that_keep_the_maths_are_exact() -> None:
    assert {name for name, plan in PLANS.items() if not plan.exact} == {"dp4·local8", "dp4·ps2·bf16"}


def test_every_worker_has_one_place() -> None:
    plan = Plan(
        data=2, tensor=2, pipeline=2, microbatches=2, schedule="gpipe", cuts=("1",), sync="allreduce",
        splits=(("a", "column"),),
    )  # fmt: skip
    places = [plan.worker(stage, replica, part) for stage in range(2) for replica in range(2) for part in range(2)]
    assert places == list(range(plan.workers_used))
    assert PLANS["pp2·m8·1f1b"].worker(0, 0, 0) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"data": 0},
        {"data": 2},
        {"pipeline": 2},
        {"pipeline": 2, "schedule": "1f1b", "microbatches": 1, "cuts": ["a"]},
        {"pipeline": 2, "schedule": "1f1b", "microbatches": 4, "cuts": []},
        {"sharded": True},
        {"data": 2, "sync": "allreduce", "shares": [0.5, 0.6]},
        {"data": 2, "sync": "allreduce", "members": [0, 0]},
        {"data": 4, "sync": "hierarchical", "group": 3},
        {"tensor": 2},
        {"data": 2, "sync": "gossip"},
        {"colour": "green"},
    ],
)
def test_what_contradicts_itself_is_no_plan(values: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec):
        plan_from(values)
