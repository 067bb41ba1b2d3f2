"""Other ways to synchronise replicas: exact ones give the result of one process, the others only if allowed."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import wire
from fairlead.planning.plan import Plan
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import ATTENTION, BLOCKS, SMALL
from tests.training.test_exactness import assert_same_result, train

DDP = Plan(data=2, sync="allreduce", buckets=True)
INEXACT = SMALL.replace("seed=3)", "seed=3, exact=False)")
SGD = INEXACT.replace("torch.optim.AdamW(p, lr=0.02)", "torch.optim.SGD(p, lr=0.05)").replace("clip_grad_norm=1.0,", "")

WATCHED = INEXACT.replace(
    "    data = torch",
    """
    def watch(module, inputs):
        with open(f"weights-{os.getpid()}", "a") as file:
            print([float(p.detach().sum()).hex() for p in module.parameters()], file=file)
    model.register_forward_pre_hook(watch)
    data = torch""",
    1,
).replace("import time", "import os, time", 1)
"""Writes down the weights of every pass, for each worker by itself."""

COUNTED = (
    SMALL
    + """
plain = torch.distributed.all_reduce
def counted(tensor, *words, **more):
    with open(f"sent-{os.getpid()}", "a") as file:
        print(tensor.numel(), file=file)
    return plain(tensor, *words, **more)
torch.distributed.all_reduce = counted
""".replace("plain = ", "import os\nplain = ", 1)
)
"""Notes every tensor that is sent by torch's own group."""


def run(gang: Gang, plan: Plan, wait: bool = True) -> Gang:
    names = [f"w{number}" for number in range(plan.workers_used)]
    gang.start(*names)
    gang.ready(*names)
    gang.join(*names, plan=plan, wait=wait)
    if wait:
        gang.finish()
    return gang


@pytest.mark.parametrize(
    ("code", "params", "plan"),
    [
        (SMALL, {"layers": "both"}, Plan(data=2, sync="allreduce", buckets=True, shares=(0.8, 0.2))),
        (ATTENTION, {}, DDP),
        (SMALL, {"layers": "both"}, Plan(data=4, sync="hierarchical", group=2)),
        (SMALL, {"layers": "dropout"}, Plan(data=2, sync="allreduce", microbatches=3)),
        (ATTENTION, {}, Plan(data=2, sync="allreduce", buckets=True, microbatches=2, shares=(0.6, 0.4))),
        (BLOCKS, {}, Plan(data=2, sync="allreduce", microbatches=2, recompute=True)),
    ],
    ids=["ddp", "ddp-unused", "hierarchical", "pieces", "ddp-pieces-unused", "recompute"],
)
def test_an_exact_way_gives_the_result_of_one_process(
    make_gang: MakeGang, code: str, params: dict[str, Any], plan: Plan
) -> None:
    assert_same_result(train(make_gang(code, params), 1), run(make_gang(code, params), plan), 1e-9)


def test_ddp_sends_a_batch_once_however_many_pieces_it_is_computed_in(make_gang: MakeGang) -> None:
    gang = run(make_gang(COUNTED, {"layers": "dropout"}), Plan(data=2, sync="allreduce", buckets=True, microbatches=3))
    assert_same_result(train(make_gang(SMALL, {"layers": "dropout"}), 1), gang, 1e-9)
    sent = (gang.root / "code" / f"sent-{gang.workers['w0'].pid}").read_text()
    assert len(sent.splitlines()) == 10  # one bucket a step


def test_survivors_of_ddp_go_on_without_a_snapshot(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL, {"layers": "both", "slow": 0.05})
    run(gang, DDP, wait=False)
    gang.reach(3)
    gang.kill("w1")
    gang.until(lambda: gang.said("w0", wire.Broken), "the survivor said Broken")
    gang.join("w0")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, {"layers": "both"}), 1), gang)


def test_averaging_after_every_step_of_plain_sgd_is_exact(make_gang: MakeGang) -> None:
    plan = Plan(data=2, sync="local-sgd", period=1, shares=(0.7, 0.3))
    params = {"layers": "dropout"}
    assert_same_result(train(make_gang(SGD, params), 1), run(make_gang(SGD, params), plan), 1e-9)


@pytest.mark.parametrize("lost", [True, False], ids=["after-a-loss", "in-order"])
def test_after_local_sgd_replicas_are_alike_again(make_gang: MakeGang, lost: bool) -> None:
    """Between averages weights differ, and the optimizers' moments always do: equally far is not alike."""
    gang = make_gang(WATCHED, {"epochs": 40, "slow": 0.01})
    run(gang, Plan(data=3, sync="local-sgd", period=5), wait=False)
    gang.reach(8)
    if lost:
        gang.kill("w2")
        gang.until(lambda: all(gang.said(name, wire.Broken) for name in ("w0", "w1")), "the survivors said Broken")
    else:
        gang.leave()
    gang.join("w0", "w1", plan=Plan(data=2, sync="allreduce"))
    gang.finish()
    seen = [(gang.root / "code" / f"weights-{gang.workers[name].pid}").read_text() for name in ("w0", "w1")]
    assert seen[0].splitlines()[-1] == seen[1].splitlines()[-1]


@pytest.mark.parametrize(
    ("plan", "near"),
    [
        (Plan(data=2, sync="local-sgd", period=3), 0.3),
        (Plan(data=2, sync="allreduce", compression="bf16"), 0.05),
        (Plan(data=2, sync="allreduce", compression="int8"), 0.05),
    ],
    ids=["local-sgd", "bf16", "int8"],
)
def test_inexact_ways_keep_replicas_alike_and_reach_about_the_same_loss(
    make_gang: MakeGang, plan: Plan, near: float
) -> None:
    """Replicas that drift apart show in nobody's loss: so all ranks' weights are compared, at every step."""
    params = {"layers": "both", "epochs": 12}
    exact = train(make_gang(INEXACT, params), 1)
    other = run(make_gang(WATCHED, params), plan)
    losses = [gang.workers["w0"].last(wire.Finished).metrics["eval_loss"] for gang in (exact, other)]
    first = exact.curve()[1]
    assert losses[1] < 0.8 * first and losses[1] == pytest.approx(losses[0], rel=near)
    assert exact.curve() != other.curve()
    seen = [(other.root / "code" / f"weights-{other.workers[name].pid}").read_text() for name in ("w0", "w1")]
    passes = [text.splitlines() for text in seen]
    alike = [one == other for one, other in zip(*passes, strict=True)]
    assert len(set(passes[0])) > 40, "they move"
    assert all(alike) if plan.sync == "allreduce" else sum(alike) > len(alike) / plan.period - 2


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(data=2, sync="local-sgd", period=4), "changes the maths, which this Training does not allow"),
        (Plan(data=2, sync="allreduce", compression="int8"), "changes the maths"),
        (Plan(data=2, sync="parameter-server", staleness=2), "changes the maths"),
    ],
)
def test_what_is_not_allowed_or_not_there_is_refused_by_all(make_gang: MakeGang, plan: Plan, words: str) -> None:
    gang = run(make_gang(SMALL), plan, wait=False)
    gang.until(lambda: all(worker.code is not None for worker in gang.workers.values()), "both ended")
    assert all(words in worker.last(wire.Raised).error for worker in gang.workers.values())
