"""A training that is preempted, killed and spread anew goes on exactly: what differs at the end is rounding alone."""

from __future__ import annotations

import pytest

from fairlead import wire
from fairlead.planning.plan import SINGLE, Plan
from fairlead.training.snapshots.snapshotter import MIN_INTERVAL_S
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

STEPS = {"layers": "both", "epochs": 32}  # 5 steps an epoch
FLOAT32 = SMALL.replace("nn.Linear(8, 3)).double()", "nn.Linear(8, 3))").replace("torch.float64", "torch.float32")
KINKED = FLOAT32.replace("nn.Tanh()", "nn.ReLU()")
"""As people write it: in float32, with a function that turns rounding into other gradients."""


def preempted(gang: Gang) -> None:
    """All of its workers write a snapshot and end."""
    gang.leave(snapshot=True)
    gang.finish()


def began(gang: Gang, *names: str, shares: list[float] | None = None, plan: Plan | None = None) -> None:
    """A generation of these workers, of which those that are not there yet are started."""
    fresh = [name for name in names if name not in gang.workers]
    gang.start(*fresh)
    gang.ready(*fresh)
    gang.join(*names, shares=shares, plan=plan)


def killed(gang: Gang, lost: str) -> None:
    """In the midst of a step, and the others say so."""
    gang.kill(lost)
    rest = [name for name in gang.members if name != lost]
    gang.until(lambda: all(gang.said(name, wire.Broken) for name in rest), "the survivors said Broken")


@pytest.mark.parametrize(
    ("program", "layers", "tolerance"), [(SMALL, "plain", 1e-9), (SMALL, "both", 1e-9), (FLOAT32, "both", 1e-4)]
)
def test_three_two_one_and_two_workers_with_kills_and_preemptions_give_the_curve_of_one(
    make_gang: MakeGang, program: str, layers: str, tolerance: float
) -> None:
    """Step by step: in float64 what is lost anywhere on the way would show in the fourth digit, not in the tenth."""
    params = STEPS | {"layers": layers}
    gang = make_gang(program, params | {"slow": 0.01})
    began(gang, "a", "b", "c", shares=[0.5, 0.2, 0.3])
    gang.reach(12)
    killed(gang, "a")
    gang.join("c", "b")
    gang.reach(36)
    preempted(gang)
    began(gang, "d", "e")
    gang.reach(50)
    gang.leave()
    gang.join("e")  # one works, the other rests and knows less and less
    gang.reach(65)
    gang.leave()
    gang.join("d", "e", shares=[0.7, 0.3])
    gang.reach(80)
    preempted(gang)
    began(gang, "f", "g")
    gang.reach(94)
    killed(gang, "g")
    began(gang, "h", "f")
    gang.finish()
    assert_same_result(train(make_gang(program, params), 1), gang, tolerance)


EVEN = [[0, 2, "replicas", [0.5, 0.5]]]
"""Shares that follow no clock: sums of floating-point numbers depend on how they are parted."""


@pytest.mark.parametrize("layers", ["plain", "both"])
def test_in_the_same_parts_the_result_is_the_same_bit_by_bit_whatever_happened(
    make_gang: MakeGang, layers: str
) -> None:
    """In float32 with a kink: one lost digit of weights, moments, statistics or data order would be seen."""
    params = STEPS | {"layers": layers}
    calm, gang = make_gang(KINKED, params), make_gang(KINKED, params | {"slow": 0.01})
    calm.course = gang.course = EVEN
    began(gang, "a", "b")
    gang.reach(12)
    killed(gang, "a")
    began(gang, "c", "b")  # the newcomer has the first rank
    gang.reach(36)
    preempted(gang)
    began(gang, "d", "e")
    gang.reach(60)
    killed(gang, "e")
    began(gang, "d", "f")
    gang.reach(84)
    preempted(gang)
    began(gang, "g", "h")
    gang.finish()
    began(calm, "a", "b")
    calm.finish()
    assert_same_result(calm, gang, 0.0)


def test_one_worker_that_is_killed_and_preempted_gives_the_same_bit_by_bit(make_gang: MakeGang) -> None:
    calm, gang = make_gang(KINKED, STEPS), make_gang(KINKED, STEPS | {"slow": 0.02})
    began(gang, "a")
    gang.until(lambda: bool(gang.workers["a"].heard(wire.Snapshot)), "a snapshot was written")
    gang.kill("a")
    gang.until(lambda: gang.workers["a"].code is not None, "it is gone")
    began(gang, "b")
    assert gang.workers["b"].last(wire.Joined).step > 0
    gang.reach(gang.workers["b"].last(wire.Joined).step + 20)
    preempted(gang)
    began(gang, "c")
    gang.finish()
    assert_same_result(train(calm, 1), gang, 0.0)


# ---------------------------------------------------------------- step by step, under the same sequence of plans

GATED = '''
import os
import time
from pathlib import Path
import torch
from torch import nn
import fairlead

def held(step):
    """Passes no step that a test holds up; a schedule knows the step of the whole training."""
    gate = Path(f"hold-{step}")
    if gate.exists():
        Path(f"held-{step}-{os.getpid()}").touch()
        while gate.exists():
            time.sleep(0.005)
    return 0.99**step

class Noisy(torch.utils.data.Dataset):
    """Images that are drawn anew each time they are looked at."""
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, at): return self.x[at].view(1, 2, 3) + 0.1 * torch.randn(1, 2, 3), self.y[at]

class Read(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.register_buffer("unsaved", torch.zeros(8), persistent=False)
    def forward(self, tokens):
        return self.head(torch.relu(self.lstm(self.embed(tokens))[0][:, -1]))

def training(kind: str, epochs: int = 16, samples: int = 50, batch_size: int = 12):
    torch.manual_seed(7)
    x = torch.randn(samples, 6)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    more, data = {}, (x, y)
    if kind == "network":
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
        optimizer = lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1)
        more = {"clip_grad_norm": 1.0, "keep_best": True, "monitor": "eval_loss", "eval_data": (x[:20], y[:20])}
    elif kind == "images":
        model = nn.Sequential(
            nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(12, 3))
        optimizer = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
        data = Noisy(x, y)
    else:
        model, data = Read(), (torch.randint(0, 11, (samples, 5)), y)
        optimizer = lambda p: torch.optim.AdamW([{"params": list(p)[:3], "lr": 0.01}, {"params": list(p)[3:]}], lr=0.03)
        more = {"accumulate": 2}
    return fairlead.Training(model=model, data=data, loss=nn.CrossEntropyLoss(), batch_size=batch_size, epochs=epochs,
        optimizer=optimizer, scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, held), scheduler_every="step",
        seed=3, **more)
'''

DP3, DP2 = (Plan(data=size, sync="allreduce") for size in (3, 2))
SEQUENCE = [[0, 3, DP3.id, [0.5, 0.2, 0.3]], [12, 2, DP2.id, [0.6, 0.4]], [25, 1, SINGLE.id, [1.0]],
            [38, 2, DP2.id, [0.7, 0.3]]]  # fmt: skip
"""From which step on the training is spread how: each run changes its plan at exactly these steps."""


class Gates:
    """Holds a gang up at a step of its choice, so that what happens to it happens there."""

    def __init__(self, gang: Gang) -> None:
        self.gang, self.folder = gang, gang.root / "code"

    def at(self, step: int) -> None:
        """Until all workers of the gang have made this step and wait."""
        self.gang.until(lambda: self.waiting(step) == len(self.gang.members), f"all are held at step {step}")

    def waiting(self, step: int) -> int:
        return len(list(self.folder.glob(f"held-{step}-*")))

    def shut(self, *steps: int) -> None:
        for step in steps:
            (self.folder / f"hold-{step}").touch()

    def open(self, step: int) -> None:
        for path in [self.folder / f"hold-{step}", *self.folder.glob(f"held-{step}-*")]:
            path.unlink()

    def leave(self, step: int, *, snapshot: bool = False) -> None:
        """All hear of it before the step after the gate, with which they leave."""
        self.at(step - 1)
        gang = self.gang
        gang.tell(wire.Leave(gang.generation, snapshot), *gang.members)
        gang.listen_for(0.5)
        self.open(step - 1)
        gang.until(lambda: all(gang.said(name, wire.Left) for name in gang.members), "everybody left")
        assert gang.workers[gang.members[0]].last(wire.Left).step == step

    def kill(self, step: int, *lost: str) -> None:
        """After this step; who is not killed notices in the midst of the next one."""
        self.at(step)
        gang = self.gang
        for name in lost:
            gang.kill(name)
        gang.until(lambda: all(gang.workers[name].code is not None for name in lost), "they are dead")
        self.open(step)
        rest = [name for name in gang.members if name not in lost]
        gang.until(lambda: all(gang.said(name, wire.Broken) for name in rest), "the survivors said Broken")


def gated(make_gang: MakeGang, kind: str) -> tuple[Gang, Gates]:
    gang = make_gang(GATED, {"kind": kind})
    gang.course = SEQUENCE
    gates = Gates(gang)
    gates.shut(11, 24, 37)
    return gang, gates


def calm(make_gang: MakeGang, kind: str) -> Gang:
    """The same plans at the same steps, by workers that all live from the first step to the last."""
    gang, gates = gated(make_gang, kind)
    began(gang, "a", "b", "c", plan=DP3)
    gates.leave(12)
    gang.join("a", "b", plan=DP2)
    gates.leave(25)
    gang.join("a", plan=SINGLE)
    gates.leave(38)
    gang.join("a", "b", plan=DP2)
    gang.finish()
    return gang


@pytest.mark.parametrize("kind", ["network", "images", "texts"])
def test_under_the_same_sequence_of_plans_every_step_is_the_same_bit_by_bit(make_gang: MakeGang, kind: str) -> None:
    """Two preemptions, a lost worker and the loss of all: what comes out is what came out where nothing happened."""
    gang, gates = gated(make_gang, kind)
    gates.open(11)
    gates.shut(12, 45, 52, 65)
    began(gang, "a", "b", "c", plan=DP3)
    gates.kill(12, "a")
    gang.join("c", "b", plan=DP2)
    gates.leave(25, snapshot=True)
    gang.finish()
    began(gang, "d", plan=SINGLE)
    gang.start("e")
    gang.ready("e")
    gates.leave(38)
    gang.join("e", "d", plan=DP2)
    gates.at(45)
    gang.listen_for(MIN_INTERVAL_S + 0.1)
    gates.open(45)
    gang.until(lambda: any(s.step > 38 for s in gang.workers["e"].heard(wire.Snapshot)), "a snapshot is there")
    gates.kill(52, "d", "e")
    began(gang, "f", "g", plan=DP2)
    gates.leave(66, snapshot=True)
    gang.finish()
    began(gang, "h", "i", plan=DP2)
    gang.finish()
    assert_same_result(calm(make_gang, kind), gang, 0.0)
