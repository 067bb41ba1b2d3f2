"""Engines rank by rank in one process: replicas, averages and servers against the training of one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fairlead
from fairlead import wire
from fairlead.errors import TrainingFailed
from fairlead.planning.plan import Plan
from fairlead.training.control_messages import must_follow_join, read_messages
from fairlead.training.evaluation import evaluate
from fairlead.training.group import Group, PeerLost
from fairlead.training.parallel import batch_balance as balance
from fairlead.training.parallel.engines import make_engine
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.mesh import Mesh
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.parallel.sharded_parameters import clip_gradient_norm, make_shards
from fairlead.training.randomness import Layout, RandomUse, Recorder, SampleDropout, compare, sample_mask
from fairlead.training.seeds import mix
from fairlead.training.session import Session
from fairlead.training.step_flags import RankFlags, exchange_flags
from tests.training.ranks import together

X = torch.randn(12, 3, dtype=torch.float64)
Y = torch.randint(0, 2, (12,))


def training(**more: Any) -> fairlead.Training:
    common: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
        "loss": nn.CrossEntropyLoss(), "data": (X, Y), "batch_size": 6, "epochs": 2, "seed": 3,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    }  # fmt: skip
    return fairlead.Training(**(common | more))


def trained(place: Path, sessions: list[Session], plan: Plan | None, steps: int = 4, end: bool = True) -> list[Any]:
    """The engines of all ranks after some steps, with what each heard."""
    order = torch.arange(12).reshape(2, 6)

    def work(group: Group) -> Any:
        session = sessions[group.rank]
        engine: Any = make_engine(session, group, plan)
        heard = []
        for step in range(steps):
            heard.append(engine.step(step, order[step % 2], RankFlags()))
            session.complete_step(float(step), heard[-1].loss)
        if end:
            engine.end()
        return SimpleNamespace(engine=engine, heard=heard)

    return together(place, len(sessions), work)


def weights(session: Session) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in session.model.state_dict().values()]


def near(one: Session, other: Session, tolerance: float = 1e-9) -> bool:
    pairs = zip(weights(one), weights(other), strict=True)
    return all(torch.allclose(a.double(), b.double(), tolerance, tolerance) for a, b in pairs)


@pytest.mark.parametrize(
    "more",
    [
        {}, {"clip_grad_norm": 0.1}, {"accumulate": 2}, {"accumulate": 4},
        {"model": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()},
        {"model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()},
    ],
    ids=["plain", "clipped", "pieces", "smaller pieces", "batch norm", "dropout"],
)  # fmt: skip
@pytest.mark.parametrize("size", [2, 3])
def test_replicas_come_to_what_one_process_comes_to(tmp_path: Path, more: dict[str, Any], size: int) -> None:
    alone = Session(training(**more), 0)
    (expected,) = trained(tmp_path, [alone], None)
    sessions = [Session(training(**more), 0) for _ in range(size)]
    shares = (0.75, 0.25) if size == 2 else (0.7, 0.2, 0.1)
    found = trained(tmp_path, sessions, Plan(data=size, sync="allreduce", shares=shares))
    assert all(near(each, alone) for each in sessions)
    for one, other in zip(expected.heard, found[0].heard, strict=True):
        assert other.loss == pytest.approx(one.loss) and len(other.losses) == size
    assert all("forward" not in vars(module) for each in sessions for module in each.model.modules())


def test_a_server_without_staleness_comes_to_what_one_process_comes_to(tmp_path: Path) -> None:
    alone = Session(training(exact=False), 0)
    trained(tmp_path, [alone], None)
    sessions = [Session(training(exact=False), 0) for _ in range(2)]
    trained(tmp_path, sessions, Plan(data=2, sync="parameter-server"))
    assert all(near(each, alone) for each in sessions)
    for each in sessions:
        own = each.optimizer.state_dict()["state"]
        for place, state in alone.optimizer.state_dict()["state"].items():
            assert torch.allclose(own[place]["momentum_buffer"], state["momentum_buffer"])


def test_workers_that_average_differ_within_a_period_and_agree_at_its_end(tmp_path: Path) -> None:
    period = 3
    for steps in range(1, 5):
        sessions = [Session(training(exact=False, epochs=5, batch_size=6), 0) for _ in range(2)]
        for each in sessions:
            each.steps_per_epoch = 100
        found = trained(tmp_path, sessions, Plan(data=2, sync="local-sgd", period=period, shares=(0.5, 0.5)), steps)
        assert all(each.diverged for each in sessions)
        alike = steps % period == 0
        assert near(sessions[0], sessions[1]) is alike, steps
        for step, (one, other) in enumerate(zip(found[0].heard, found[1].heard, strict=True), start=1):
            both = step % period == 0
            assert len(one.losses) == (2 if both else 1) and (one == other) is both


def test_an_average_counts_everybody_by_the_samples_that_it_saw(tmp_path: Path) -> None:
    """One step, then the mean: the same as the step of one process on the mean of both gradients, by samples."""
    plain = {"exact": False, "optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}
    alone = Session(training(**plain), 0)
    trained(tmp_path, [alone], None, 2)
    sessions = [Session(training(**plain), 0) for _ in range(2)]
    trained(tmp_path, sessions, Plan(data=2, sync="local-sgd", period=1, shares=(2 / 3, 1 / 3)), 2)
    assert all(near(each, alone) for each in sessions)


def test_an_epoch_ends_with_an_average_whatever_the_period(tmp_path: Path) -> None:
    for steps in range(1, 5):
        sessions = [Session(training(exact=False), 0) for _ in range(2)]
        for each in sessions:
            each.steps_per_epoch = 3
        trained(tmp_path, sessions, Plan(data=2, sync="local-sgd", period=50), steps)
        assert near(*sessions) is (steps == 3)


def test_averages_include_what_batch_norm_has_seen_and_leave_out_who_has_too_few(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()

    sessions = [Session(training(exact=False, model=model), 0) for _ in range(2)]
    first = weights(sessions[0])
    trained(tmp_path, sessions, Plan(data=2, sync="local-sgd", period=1, shares=(5 / 6, 1 / 6)), 1)
    assert torch.equal(sessions[0].model[1].running_mean, sessions[1].model[1].running_mean)
    assert int(sessions[1].model[1].num_batches_tracked) == 0, "a batch of one shows no spread"
    assert not torch.equal(first[0], weights(sessions[1])[0])


def test_a_loss_that_is_no_number_is_refused_before_anything_moves(tmp_path: Path) -> None:
    def bad(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, target) * (float("nan") if torch.is_grad_enabled() else 1.0)

    session = Session(training(loss=bad), 0)
    before = weights(session)
    with pytest.raises(TrainingFailed, match="at step 1 on rank 0"):
        trained(tmp_path, [session], None, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(session), strict=True))


@pytest.mark.parametrize(
    ("speeds", "warned", "shares"),
    [((10.0, 30.0), False, (0.25, 0.75)), ((10.0, 0.0), False, (0.5, 0.5)), ((10.0, 30.0), True, (0.5, 0.5))],
)
def test_first_shares_are_those_that_all_have_measured(
    tmp_path: Path, speeds: tuple[float, ...], warned: bool, shares: tuple[float, ...]
) -> None:
    class Drawing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.rand_like(x))

    more = {"model": lambda: Drawing(3, 2).double()} if warned else {}
    sessions = [Session(training(**more), 0) for _ in speeds]
    for each, speed in zip(sessions, speeds, strict=True):
        each.speed = speed
    found = together(tmp_path, 2, lambda group: Replicas(sessions[group.rank], group).balance.shares)
    assert found == [pytest.approx(shares)] * 2


# ---------------------------------------------------------------- gradients


def test_gradients_and_words_are_everybodys_and_one_that_nobody_has_stays_away(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        first = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))]
        half = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        fixed = nn.Parameter(torch.zeros(1), requires_grad=False)
        flat = FlatGradients([*first, half, fixed], group)
        for turn in (1.0, 2.0):
            first[0].grad = torch.full((2, 2), turn + group.rank)
            first[1].grad = torch.ones(3) * turn if group.rank == 1 else None
            first[2].grad = None
            half.grad = torch.full((2,), turn, dtype=torch.bfloat16)
            heard = flat.exchange(RankFlags(loss=0.5 + group.rank, compute_s=turn, leaving=group.rank == 1))
            assert heard.losses == (0.5, 1.5) and heard.compute_s == (turn, turn) and heard.leaving == 1
            assert first[0].grad.tolist() == [[2 * turn + 1] * 2] * 2 and first[1].grad.tolist() == [turn] * 3
            assert first[2].grad is None and fixed.grad is None and half.grad.tolist() == [2 * turn] * 2

    together(tmp_path, 2, work)


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_smaller_gradients_never_round_the_words(tmp_path: Path, compression: Any) -> None:
    def work(group: Group) -> None:
        weight = nn.Parameter(torch.zeros(4))
        flat = FlatGradients([weight], group, compression)
        weight.grad = torch.tensor([1.0, -2.0, 3.0, 0.0])
        heard = flat.exchange(RankFlags(loss=1.00390625 + group.rank * 2**-20))
        assert heard.losses == (1.00390625, 1.00390625 + 2**-20)
        assert torch.allclose(weight.grad, torch.tensor([2.0, -4.0, 6.0, 0.0]), atol=0.05)

    together(tmp_path, 2, work)


def test_only_half_precision_parameters_have_words_of_full_precision_all_the_same(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        weight = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        weight.grad = torch.ones(2, dtype=torch.bfloat16)
        heard = FlatGradients([weight], group).exchange(RankFlags(loss=1.0 + 2**-20))
        assert heard.losses == (1.0 + 2**-20,) * 2 and weight.grad.tolist() == [2.0, 2.0]

    together(tmp_path, 2, work)


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_a_gradient_is_clipped_by_the_norm_of_the_whole(tmp_path: Path, most: float) -> None:
    gradient = torch.tensor([3.0, 4.0])
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([weight], most)

    def work(group: Group) -> None:
        """A stage of its own for each rank: what no other holds counts in full."""
        mesh: Any = SimpleNamespace(group=group, plan=Plan(pipeline=2, microbatches=1, schedule="gpipe", cuts=("1",)))
        own = nn.Parameter(torch.zeros(1))
        (part,) = make_shards([("w", own)])
        part.local.grad = gradient[group.rank : group.rank + 1].clone()
        clip_gradient_norm([part], mesh, most)
        assert weight.grad is not None and torch.allclose(part.local.grad, weight.grad[group.rank : group.rank + 1])
        copies: Any = SimpleNamespace(group=group, plan=Plan(data=2, sync="allreduce"))
        part.local.grad = gradient[:1].clone()  # the same on both ranks: it counts once
        clip_gradient_norm([part], copies, most)
        assert part.local.grad.item() == pytest.approx(3.0 * min(1.0, most / 3.0), rel=1e-5)

    together(tmp_path, 2, work)


def test_words_are_said_by_themselves_too(tmp_path: Path) -> None:
    heard = together(
        tmp_path, 2, lambda group: exchange_flags(group, RankFlags(loss=float(group.rank), leaving=group.rank == 0))
    )
    assert heard[0] == heard[1] and heard[0].losses == (0.0, 1.0) and heard[0].leaving == 1


def test_seats_are_numbered_by_stage_then_replica_then_part() -> None:
    plan = Plan(
        pipeline=2, data=3, tensor=2, microbatches=6, schedule="1f1b", cuts=("1",), splits=(("0", "row"),),
        sync="allreduce",
    )  # fmt: skip
    mesh = object.__new__(Mesh)
    mesh.plan = plan
    mesh.group = SimpleNamespace(size=12, shares=(1.0,) * 12)  # type: ignore[assignment]
    balance = mesh.balance(60)
    seats = [(seat.stage, seat.replica) for seat in balance._seats]
    assert seats == [(stage, replica) for stage in range(2) for replica in range(3) for _ in range(2)]
    assert balance.shares == pytest.approx((1 / 3,) * 3)
    assert [balance.share(rank) for rank in range(12)] == pytest.approx([1 / 3] * 12)


# ---------------------------------------------------------------- figures of an evaluation


@pytest.mark.parametrize("rows", [7, 1])
@pytest.mark.parametrize("metrics", [True, False])
def test_figures_are_those_of_all_rows_whoever_holds_them(tmp_path: Path, rows: int, metrics: bool) -> None:
    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] * torch.arange(len(targets))).std(correction=0) + targets.sum()

    more: dict[str, Any] = {"eval_data": (X[:rows], Y[:rows]), "metrics": {"spread": spread} if metrics else {}}
    sessions = [Session(training(**more, batch_size=2), 0) for _ in range(3)]
    asked: list[int] = []

    def work(group: Group) -> Any:
        engine = Replicas(sessions[group.rank], group)
        own = engine.outputs(lambda: asked.append(group.rank))
        assert sessions[group.rank].model.training
        found = evaluate(sessions[group.rank], group, own)
        engine.end()
        return found

    found = together(tmp_path, 3, work)
    model = sessions[0].model.eval()
    with torch.no_grad():
        outputs = model(X[:rows])
    expected = {"eval_loss": float(nn.functional.cross_entropy(outputs, Y[:rows]))}
    expected |= {"spread": float(spread(outputs, Y[:rows]))} if metrics else {}
    assert found == [pytest.approx(expected)] * 3
    assert len(asked) == sum(-(-len(part) // 2) for part in ([range(2), range(3), range(2)] if rows == 7 else [[0]]))
    alone = together(tmp_path, 1, work)
    assert alone == [pytest.approx(expected)]


# ---------------------------------------------------------------- masks of dropout


LAYOUT = Layout(0, 1)


def drawn(use: RandomUse, p: float = 0.5, part: int = 0, parts: int = 1, shape: tuple[int, ...] = (4, 6)) -> Any:
    mode = SampleDropout(use, part, parts)
    mode.begin(3, 7, torch.tensor([5, 6, 9, 2]))
    x = torch.ones(shape, dtype=torch.float64)
    with mode:
        return [nn.functional.dropout(x, p) for _ in range(2)]


def test_masks_follow_the_seed_the_step_and_the_sample_and_each_call_has_its_own() -> None:
    use = RandomUse((LAYOUT, LAYOUT), (), (torch.Size((5, 6)),) * 2)
    one, two = drawn(use)
    assert not torch.equal(one, two) and set(one.unique().tolist()) <= {0.0, 2.0}
    for call, found in enumerate((one, two)):
        mask = sample_mask(mix(mix(3, 7, 2), call), torch.tensor([5, 6, 9, 2]), LAYOUT, torch.Size((4, 6)), 0.5)
        assert torch.equal(found != 0, mask)
    assert not drawn(use, p=1.0)[0].any() and torch.equal(drawn(use, p=0.0)[0], torch.ones(4, 6).double())
    mode = SampleDropout(use)
    mode.begin(3, 7, torch.tensor([5, 6, 9, 2]), call=1)
    with mode:
        assert torch.equal(nn.functional.dropout(torch.ones(4, 6).double(), 0.5), two), "what stages before it drew"


@pytest.mark.parametrize(("dim", "size"), [(1, 6), (0, 6)])
def test_a_rank_that_holds_a_part_of_a_layer_draws_its_part_of_the_mask(dim: int, size: int) -> None:
    layout = Layout(0, 2) if dim == 0 else LAYOUT
    full = torch.Size((4 * layout.repeat, size))
    use = RandomUse((layout,) * 2, (), (torch.Size((5 * layout.repeat, size)),) * 2)
    whole, _ = drawn(use, shape=tuple(full))
    own = list(full)
    own[dim] //= 2
    halves = [drawn(use, part=at, parts=2, shape=tuple(own))[0] for at in (0, 1)]
    if dim == 1:
        assert torch.equal(torch.cat(halves, 1), whole)
    else:
        assert torch.equal(torch.stack(halves, 1).reshape(full), whole), "heads of a sample are shared, not samples"
    uncut, _ = drawn(use, part=1, parts=2, shape=tuple(full))
    assert torch.equal(uncut, whole), "a layer that is not cut draws the whole mask on every rank"


def test_what_was_drawn_is_drawn_again_when_it_is_computed_again() -> None:
    use = RandomUse((LAYOUT,) * 4, (), (torch.Size((5, 6)),) * 4)
    mode, x = SampleDropout(use), torch.ones(4, 6).double()
    mode.begin(3, 7, torch.tensor([5, 6, 9, 2]))
    with mode:
        nn.functional.dropout(x, 0.5)
        again = mode.replay()
        second = nn.functional.dropout(x, 0.5)
        third = nn.functional.dropout(x, 0.5)
    mode.begin(4, 8, torch.tensor([1, 1, 1, 1]), call=2)
    with again:
        assert torch.equal(nn.functional.dropout(x, 0.5), second)
        assert torch.equal(nn.functional.dropout(x, 0.5), third)
    with mode:
        after = nn.functional.dropout(x, 0.5)
    other = SampleDropout(use)
    other.begin(4, 8, torch.tensor([1, 1, 1, 1]), call=2)
    with other:
        assert torch.equal(after, nn.functional.dropout(x, 0.5)), "and what follows goes on where it was"


def test_masks_that_do_not_follow_the_samples_are_torchs_own() -> None:
    for use in (RandomUse(), RandomUse((None, None), (), (torch.Size((5, 6)),) * 2)):
        torch.manual_seed(1)
        found, _ = drawn(use)
        torch.manual_seed(1)
        assert torch.equal(found, nn.functional.dropout(torch.ones(4, 6).double(), 0.5))
    odd = RandomUse((LAYOUT,) * 2, (), (torch.Size((5, 6)),) * 2)
    torch.manual_seed(1)
    found, _ = drawn(odd, shape=(3, 6))
    torch.manual_seed(1)
    assert torch.equal(found, nn.functional.dropout(torch.ones(3, 6).double(), 0.5)), "of another number of samples"


def recorded(masks: list[tuple[int, ...]], others: tuple[str, ...] = ()) -> Recorder:
    recorder = Recorder()
    recorder.masks = [torch.Size(shape) for shape in masks]
    recorder.others = set(others)
    return recorder


@pytest.mark.parametrize(
    ("few", "fewer", "layout"),
    [
        ((5, 7), (3, 7), Layout(0, 1)), ((7, 10), (7, 6), Layout(1, 2)), ((5, 7), (5, 7), None),
        ((5, 10), (3, 6), None), ((5, 7), (3, 7, 1), None), ((6, 7), (3, 7), None), ((10, 7), (4, 7), None),
    ],
)  # fmt: skip
def test_samples_lie_along_the_dimension_that_follows_their_number(few: Any, fewer: Any, layout: Any) -> None:
    found = compare(recorded([few], ("rand",)), recorded([fewer], ("normal",)), (5, 3))
    assert found.layouts == (layout,) and found.others == ("normal", "rand") and found.shapes == (torch.Size(few),)
    exact = compare(recorded([few]), recorded([fewer]), (5, 3))
    assert exact.exact is (layout is not None) and not found.exact


def test_a_mask_that_only_one_batch_draws_is_nobodys() -> None:
    assert compare(recorded([(5, 2)] * 2), recorded([(3, 2)]), (5, 3)).layouts == (LAYOUT, None)
    assert compare(recorded([(5, 2)]), recorded([(3, 2)] * 3), (5, 3)).layouts == (LAYOUT, None, None)


@pytest.mark.parametrize(("dropout", "random"), [(0.0, False), (0.3, True)])
def test_attention_counts_as_random_only_if_it_drops_out(dropout: float, random: bool) -> None:
    q = torch.randn(1, 2, 4, 8)
    for draw in (
        lambda: nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout),
        lambda: (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, dropout)
            if not random
            else torch.rand(1)
        ),
    ):
        with Recorder() as recorder:
            draw()
        assert bool(recorder.others or recorder.masks) is random


# ---------------------------------------------------------------- what is said between two steps


class Said:
    """A line on which messages wait."""

    def __init__(self, *messages: Any) -> None:
        self.waiting = list(messages)

    def pending(self) -> bool:
        return bool(self.waiting)

    def take(self, timeout_s: float | None = None) -> Any:
        return self.waiting.pop(0)

    def put_back(self, message: Any) -> None:
        self.waiting.insert(0, message)

    def send(self, message: Any) -> None:
        raise AssertionError("nothing is said")


def join(generation: int, breaks: int = 0) -> wire.Join:
    return wire.Join(generation, {"w0": 0}, breaks=breaks)


def leave(generation: int) -> wire.Leave:
    return wire.Leave(generation, False, [])


@pytest.mark.parametrize(
    ("generation", "breaks", "resumed", "away"),
    [
        (4, 0, False, True), (3, 0, False, False), (2, 9, False, False), (4, 0, True, False), (4, 3, True, True),
        (4, 2, True, False), (5, 4, True, True), (3, 3, True, False),
    ],
)  # fmt: skip
def test_a_later_call_takes_a_rank_away_unless_it_resumed_and_nobody_is_lost(
    generation: int, breaks: int, resumed: bool, away: bool
) -> None:
    assert must_follow_join(join(generation, breaks), 3, resumed=resumed) is away
    line, group = Said(join(generation, breaks)), SimpleNamespace(generation=3, resumed=int(resumed))
    if away:
        with pytest.raises(PeerLost, match=f"generation {generation} was called"):
            read_messages(line, group)  # type: ignore[arg-type]
        assert len(line.waiting) == 1, "whoever follows it finds it there"
    else:
        assert read_messages(line, group) is None and not line.waiting  # type: ignore[arg-type]


def test_the_call_to_leave_counts_for_its_own_generation_and_all_that_waits_is_heard() -> None:
    group: Any = SimpleNamespace(generation=3, resumed=0)
    mine = leave(3)
    line = Said(leave(2), mine, join(3), leave(4))
    assert read_messages(line, group) is mine and not line.waiting
    assert read_messages(Said(leave(2), leave(4)), group) is None and read_messages(Said(), group) is None
    quits = Said(mine, wire.Quit(), join(9))
    with pytest.raises(PeerLost, match="told to quit"):
        read_messages(quits, group)
    assert isinstance(quits.waiting[0], wire.Quit) and len(quits.waiting) == 2


def test_a_call_that_is_refused_is_told_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = SimpleNamespace(generation=3, resumed=1)
    read_messages(Said(join(4)), group)
    assert "generation 4: call refused, because generation 3 was resumed" in capsys.readouterr().out
    read_messages(Said(join(3), join(2)), group)
    assert "refused" not in capsys.readouterr().out


def test_shares_are_weighed_among_several_and_only_by_full_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "MIN_STEPS", 1)
    monkeypatch.setattr(balance, "MIN_SECONDS", 0.0)
    alone = Session(training(), 0)
    (found,) = trained(tmp_path, [alone], None)
    assert alone.speed == 0.0 and found.engine.balance.last is None
    sessions = [Session(training(), 0) for _ in range(2)]
    found, _ = trained(tmp_path, sessions, None, 1)
    assert found.engine.balance.last is not None and all(each.speed > 0 for each in sessions)
    short = [Session(training(batch_size=7), 0) for _ in range(2)]
    found, _ = trained(tmp_path, short, None, 2)
    assert found.engine.balance.last is None, "six samples are less than a batch"
