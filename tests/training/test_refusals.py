"""What cannot be trained is refused in one line that names the field and the fix; what raises is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import cloudpickle
import pytest
import torch

import fairlead
from fairlead import wire
from fairlead.errors import InvalidSpec
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

HEAD = "import torch, fairlead\nfrom torch import nn\nx, y = torch.randn(20, 4), torch.randint(0, 2, (20,))\n"


def raised(gang: Gang) -> wire.Raised:
    gang.start("w0")
    gang.until(lambda: gang.workers["w0"].code is not None, "the worker ended")
    assert gang.workers["w0"].code == 1, gang.story()
    return gang.workers["w0"].last(wire.Raised)


def program(loss: str = "nn.CrossEntropyLoss()", model: str = "nn.Linear(4, 2)", more: str = "") -> str:
    arguments = f"model={model}, data=(x, y), loss={loss}, batch_size=8, epochs=1{more}"
    return HEAD + f"def training(lr: float = 0.1, name: str = ''):\n    return fairlead.Training({arguments})\n"


REFUSED = [
    (program(loss='nn.CrossEntropyLoss(reduction="sum")'), {}, ["loss: is not a mean", 'reduction="mean"']),
    (program(loss='nn.CrossEntropyLoss(reduction="none")'), {}, ["loss: returns a tensor of shape", "not one number"]),
    (program(loss="nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))"), {}, ["loss: is not a mean"]),
    (program(), {"rate": 1}, ["params.rate", "has no parameter rate; it takes lr, name"]),
    (program(), {"lr": "1e-3"}, ["params.lr", "'1e-3' is not of type float"]),
    (program(), {"name": 3}, ["params.name", "is not of type str"]),
    (program().replace("lr: float = 0.1", "lr"), {}, ["params.lr", "has no default"]),
    (program(model="nn.EmbeddingBag(4, 2, sparse=True)"), {}, ["model: layer", "sparse=False"]),
    (program(model="(lambda: 3)"), {}, ["model: the factory made int"]),
    (program(model="nn.Tanh()", loss="lambda o, t: o.mean()"), {}, ["model: has no parameters"]),
    (program(more=", optimizer=lambda p: 3"), {}, ["optimizer: the factory made int"]),
    (program().replace("batch_size=8", "batch_size=21"), {}, ["batch_size: 21 is more than the 20 samples of data"]),
    (program(more=", batch=3"), {}, ["TypeError", "batch", "(train.py:5)"]),
    ("def training(): return 3\n", {}, ["run", "returned int, not a fairlead.Training"]),
    ("def other(): return 3\n", {}, ["run", "no function training in train.py"]),
    ("def training(:\n", {}, ["SyntaxError", "(train.py:1)"]),
    ("import nowhere\n", {}, ["ModuleNotFoundError", "nowhere", "(train.py:1)"]),
    ("def training():\n    raise SystemExit('enough')\n", {}, ["SystemExit: enough (train.py:2)"]),
]


@pytest.mark.parametrize(("code", "params", "expected"), REFUSED)
def test_a_training_that_cannot_work_is_refused_in_one_line(
    make_gang: MakeGang, code: str, params: dict[str, Any], expected: list[str]
) -> None:
    report = raised(make_gang(code, params))
    assert "\n" not in report.error
    for part in expected:
        assert part in report.error
    user_error = any(kind in report.error for kind in ("TypeError", "ModuleNotFoundError", "SystemExit"))
    assert report.permanent is not user_error


@pytest.mark.parametrize("run", ["absent.py:training", "no.such.module:training", "train.py", "absent.cloudpickle:f"])
def test_a_run_that_names_nothing_is_refused(make_gang: MakeGang, run: str) -> None:
    report = raised(make_gang(program(), run=run))
    assert report.permanent and report.error.startswith("run: ")


def test_an_exception_in_user_code_is_reported_with_its_place_and_its_peers_survive(make_gang: MakeGang) -> None:
    code = SMALL.replace(
        "        return x\n",
        "        if self.training and (x[:, 0] > 2.2).any() and torch.is_grad_enabled():\n"
        "            raise ValueError('too\\nlarge')\n        return x\n", 1,
    )  # fmt: skip
    gang = make_gang(code)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.until(lambda: any(w.heard(wire.Raised) for w in gang.workers.values()), "one raised")
    failed = next(w for w in gang.workers.values() if w.heard(wire.Raised))
    peer = next(w for w in gang.workers.values() if w is not failed)
    report = failed.last(wire.Raised)
    rank = gang.members.index(failed.name)
    assert report.error.startswith(f"ValueError: too large (train.py:13), rank {rank}, step ")
    assert not report.permanent
    assert "train.py" in report.trace and "fairlead/training/" not in report.trace
    gang.until(lambda: failed.code == 1, "it ended")
    gang.until(lambda: bool(peer.heard(wire.Broken)), "its peer noticed")
    assert peer.code is None


def test_a_loss_that_raises_is_told_with_its_line_rank_and_step_and_ends_the_generation(make_gang: MakeGang) -> None:
    loss = """class Picky(nn.CrossEntropyLoss):
    def forward(self, outputs, target):
        if torch.is_grad_enabled() and os.environ["PICKY"] == "1" and len(target) == 6:
            raise ArithmeticError("no such thing")
        return super().forward(outputs, target)

def training("""
    code = "import os\n" + SMALL.replace("def training(", loss, 1).replace("nn.CrossEntropyLoss(),", "Picky(),")
    gang = make_gang(code)
    for name, picky in (("w0", "0"), ("w1", "1")):
        os.environ["PICKY"] = picky
        gang.start(name)
    del os.environ["PICKY"]
    gang.ready("w0", "w1")
    gang.join("w0", "w1", wait=False)
    gang.until(lambda: gang.workers["w1"].code is not None and gang.said("w0", wire.Broken), "one ended, one noticed")
    error = gang.workers["w1"].last(wire.Raised).error
    assert re.match(r"ArithmeticError: no such thing \(train.py:\d+\), rank 1, step 1", error)


def test_a_loss_that_is_no_number_ends_everybody_and_names_rank_and_step(make_gang: MakeGang) -> None:
    code = SMALL.replace(
        "        return x\n",
        "        if self.training and torch.is_grad_enabled() and (x[:, 0] > 2.2).any(): return x * float('nan')\n"
        "        return x\n", 1,
    )  # fmt: skip
    gang = make_gang(code)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", wait=False)
    gang.until(lambda: all(w.code is not None for w in gang.workers.values()), "both ended")
    said = {w.last(wire.Raised).error for w in gang.workers.values()}
    assert len(said) == 1 and re.match(r"loss: it is nan at step \d+ on rank [01] ", said.pop())
    assert all(w.last(wire.Raised).permanent for w in gang.workers.values())


def test_ranks_that_made_different_models_are_told_which_layer_differs(make_gang: MakeGang) -> None:
    code = program(model="nn.Sequential(nn.Linear(4, 3 + os.getpid() % 2), nn.LazyLinear(2))")
    code = "import os\n" + code.replace("os.getpid() % 2", "int(os.environ['ODD'])")
    gang = make_gang(code)
    for name, odd in (("w0", "0"), ("w1", "1")):
        os.environ["ODD"] = odd
        gang.start(name)
    del os.environ["ODD"]
    gang.ready("w0", "w1")
    gang.join("w0", "w1", wait=False)
    gang.until(lambda: all(w.code is not None for w in gang.workers.values()), "both ended")
    for worker in gang.workers.values():
        error = worker.last(wire.Raised).error
        assert "model: rank 1 differs from rank 0 at step 1: 0.weight of shape (4, 4)" in error


def test_a_function_from_a_notebook_travels_by_cloudpickle(make_gang: MakeGang) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SMALL, namespace)
    gang = make_gang(run="notebook.cloudpickle:training")
    (gang.root / "code" / "notebook.cloudpickle").write_bytes(cloudpickle.dumps(namespace["training"]))
    assert_same_result(train(gang, 1), train(make_gang(SMALL), 1))


GOOD: dict[str, Any] = {
    "model": torch.nn.Linear(4, 2), "data": (torch.zeros(5, 4), torch.zeros(5)), "loss": torch.nn.MSELoss(),
    "batch_size": 2, "epochs": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3), ("data", "Bank"), ("data", 3), ("data", (torch.zeros(5, 4),)), ("data", ([1, 2], [3, 4])),
        ("data", (torch.zeros(5, 4), torch.zeros(4))), ("data", (torch.zeros(0, 4), torch.zeros(0))), ("loss", None),
        ("data", torch.utils.data.TensorDataset(torch.zeros(0))), ("batch_size", 0), ("batch_size", True),
        ("batch_size", 2.5), ("epochs", -1),
        ("optimizer", torch.optim.SGD(GOOD["model"].parameters())), ("optimizer", "adam"),
        ("scheduler", 3), ("seed", "x"), ("clip_grad_norm", 0), ("clip_grad_norm", "x"), ("metrics", [1]),
        ("metrics", {"accuracy": 3}), ("metrics", {"loss": len}), ("metrics", {"accuracy": len}), ("eval_data", "a@1"),
        ("accumulate", 0), ("scheduler_every", "hour"), ("early_stopping", 0), ("keep_best", 3), ("monitor_mode", "up"),
        ("exact", "no"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_where_it_is_written(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as error:
        fairlead.Training(**GOOD | {field: value})
    assert error.value.field and error.value.field.split(".")[0].split("[")[0] == field
    assert error.value.fix


@pytest.mark.parametrize("monitor", ["eval_loss", "accuracy"])
def test_what_is_not_measured_cannot_be_monitored(monitor: str) -> None:
    with pytest.raises(InvalidSpec, match="is not measured") as error:
        fairlead.Training(**GOOD, keep_best=True, monitor=monitor)
    assert error.value.field == "monitor" and "loss" in (error.value.fix or "")


def test_describing_a_training_needs_no_torch() -> None:
    code = "import sys, fairlead; fairlead.Training; print('torch' in sys.modules or 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
