"""The Training: what a user hands over to be trained, checked field by field when it is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from fairlead.data.dataset_refs import DatasetRef, check_dataset_ref
from fairlead.errors import InvalidSpec
from fairlead.planning.plan_choice import PLAN_FAMILIES

RESERVED_METRICS = frozenset({"step", "epoch", "time_s", "loss", "eval_loss"})
"""Names that rows of the history already use."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """A model, its data and how to fit it. The result does not depend on how many workers the job gets.

    ``data`` is a tuple of tensors or arrays ``(input, ..., target)``, a ``torch.utils.data.Dataset`` of such tuples, or
    the name of a data set: ``"bank"``, ``fairlead.data.dataset("bank", target="y")``. The model is called with the
    inputs and the loss with ``(outputs, target)``. ``batch_size`` is the global one.
    The loss must be a mean over the samples. A metric is a function of all ``(outputs, targets)`` of ``eval_data``.
    ``scheduler`` is a factory of the optimizer; it steps once per epoch unless ``scheduler_every`` says ``"step"``.
    ``monitor`` is the figure by which ``early_stopping`` and ``keep_best`` judge an epoch.

    Or only ``loop``: a function of a context (rank, world, shard, report, snapshot) that trains by itself.
    """

    model: Any = None
    data: Any = None
    batch_size: int = 0
    epochs: int = 0
    loss: Callable[..., Any] | None = None  # None: the model has a training_step, as a LightningModule has
    optimizer: Callable[[Any], Any] | None = None  # None: AdamW with its defaults
    eval_data: Any = None
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    seed: int = 0
    scheduler: Callable[[Any], Any] | None = None
    clip_grad_norm: float | None = None
    accumulate: int = 1  # passes in which a worker computes its part of the batch
    scheduler_every: str = "epoch"
    early_stopping: int | None = None  # epochs without improvement
    keep_best: bool = False
    monitor: str = "eval_loss"
    monitor_mode: str = "min"
    sharded_snapshots: bool | None = None  # None: where no worker holds the whole state and it is large
    precision: str = "auto"  # "float32": as written; "bf16": matrix products in bf16; "auto": bf16 where it is faster
    exact: bool = True  # False: allow plans that change the maths
    loop: Callable[[Any], Any] | None = None  # a custom training loop, in place of all but batch_size and seed
    plan: str = "auto"  # "auto": the planner chooses; or a family of plans

    def __post_init__(self) -> None:
        if self.loop is not None:
            self._check_loop()
            return
        _require(
            callable(self.model),
            "model",
            self.model,
            "is not a model",
            "pass an nn.Module or a function of no arguments that makes one",
        )
        _check_data("data", self.data)
        own_step = hasattr(self.model, "training_step") or not hasattr(self.model, "parameters")
        _require(
            callable(self.loss) or (self.loss is None and own_step),
            "loss",
            self.loss,
            "cannot be called",
            "pass a function of (outputs, targets), such as nn.CrossEntropyLoss()",
        )
        _check_count("batch_size", self.batch_size)
        _check_count("epochs", self.epochs)
        _check_factory("optimizer", self.optimizer, "lambda params: torch.optim.AdamW(params, lr=1e-3)")
        _check_factory("scheduler", self.scheduler, "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)")
        if self.eval_data is not None:
            _check_data("eval_data", self.eval_data)
        _require(_is_int(self.seed), "seed", self.seed, "is not a whole number", "pass an int, such as 0")
        clip = self.clip_grad_norm
        good_clip = clip is None or (isinstance(clip, int | float) and not isinstance(clip, bool) and clip > 0)
        _require(good_clip, "clip_grad_norm", clip, "is not a number above 0", "pass the largest norm, such as 1.0")
        self._check_metrics()
        _check_count("accumulate", self.accumulate)
        _check_choice("scheduler_every", self.scheduler_every, ("epoch", "step"))
        _check_choice("precision", self.precision, ("auto", "float32", "bf16"))
        _check_choice("monitor_mode", self.monitor_mode, ("min", "max"))
        _check_choice("plan", self.plan, PLAN_FAMILIES)
        if self.early_stopping is not None:
            _check_count("early_stopping", self.early_stopping)
        for name in ("keep_best", "exact"):
            value = getattr(self, name)
            _require(isinstance(value, bool), name, value, "is neither True nor False", f"pass {name}=True")
        sharded = self.sharded_snapshots
        good = sharded is None or isinstance(sharded, bool)
        _require(good, "sharded_snapshots", sharded, "is neither True, False nor None", "leave it out")
        if self.compares_epochs:
            self._check_monitor()

    def _check_loop(self) -> None:
        """Refuse fields that a custom loop would ignore."""
        good = callable(self.loop)
        _require(good, "loop", self.loop, "cannot be called", "pass a function of one argument, the context")
        for each in fields(self):
            default = {} if each.default is MISSING else each.default
            value = getattr(self, each.name)
            if each.name not in ("loop", "batch_size", "seed", "plan") and value is not default and value != default:
                fix = f"use it within the loop, or drop {each.name}"
                raise InvalidSpec("is not used with a custom loop", field=each.name, fix=fix)
        if self.batch_size:
            _check_count("batch_size", self.batch_size)
        _require(_is_int(self.seed), "seed", self.seed, "is not a whole number", "pass an int, such as 0")

    @property
    def compares_epochs(self) -> bool:
        """Whether epochs are compared with each other."""
        return self.early_stopping is not None or self.keep_best

    def _check_monitor(self) -> None:
        known = {"loss"} if self.eval_data is None else {"loss", "eval_loss", *self.metrics}
        if self.monitor not in known:
            raise InvalidSpec(
                f"{self.monitor!r} is not measured in this training", field="monitor", value=self.monitor,
                fix=f"pass one of {', '.join(sorted(known))}, or add eval_data and metrics",
            )  # fmt: skip

    def _check_metrics(self) -> None:
        good = isinstance(self.metrics, Mapping)
        _require(good, "metrics", self.metrics, "is not a mapping", 'pass {"accuracy": function, ...}')
        for name, metric in self.metrics.items():
            _require(
                callable(metric), f"metrics.{name}", metric, "cannot be called", "pass a function of (outputs, targets)"
            )
            free = isinstance(name, str) and name not in RESERVED_METRICS
            _require(free, f"metrics.{name}", name, "is a name that Fairlead uses itself", "choose another name")
        if self.metrics and self.eval_data is None:
            raise InvalidSpec(
                "metrics are computed on eval_data, which is missing",
                field="metrics",
                fix="add eval_data=(x_test, y_test) or drop metrics",
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(good: bool, name: str, value: Any, message: str, fix: str) -> None:
    if good:
        return
    plain = isinstance(value, str | int | float | bool | None)
    shown = repr(value) if plain else type(value).__name__
    raise InvalidSpec(f"{shown} {message}", field=name, value=value if plain else None, fix=fix)


def _check_count(name: str, value: Any) -> None:
    _require(_is_int(value) and value >= 1, name, value, "is not a whole number above 0", f"pass {name}=1 or more")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    _require(value in choices, name, value, "is none of the choices", f"pass {' or '.join(map(repr, choices))}")


def _check_factory(name: str, value: Any, example: str) -> None:
    """Refuse a ready-made optimizer: it belongs to one copy of the model, while every worker has its own."""
    good = value is None or (callable(value) and (isinstance(value, type) or not hasattr(value, "state_dict")))
    _require(good, name, value, "is not a function that makes one", f"pass {name}={example}")


def _check_data(name: str, data: Any) -> None:
    if isinstance(data, str):
        check_dataset_ref(data, name)
    if isinstance(data, str | DatasetRef):
        return  # only the job's worker knows whether the data set exists
    columns = data if isinstance(data, tuple | list) else None
    if columns is None:
        sized = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)
        _require(
            sized,
            name,
            data,
            "is not data",
            "pass a tuple (input, target) of tensors or arrays, or a Dataset with a length",
        )
        _require(len(data) > 0, name, data, "is empty", "pass at least one sample")
        return
    _require(
        len(columns) >= 2, name, data, "has no target", "pass (input, target): tensors or arrays of the same length"
    )
    for index, column in enumerate(columns):
        array = bool(getattr(column, "shape", None))
        _require(
            array, f"{name}[{index}]", column, "is not a tensor or array", "convert it, for instance with numpy.asarray"
        )
    lengths = {int(column.shape[0]) for column in columns}
    if len(lengths) != 1:
        raise InvalidSpec(
            f"columns have different lengths {sorted(lengths)}", field=name, fix="pass columns with one row per sample"
        )
    _require(lengths != {0}, name, data, "is empty", "pass at least one sample")
