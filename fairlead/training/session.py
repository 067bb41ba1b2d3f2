"""One worker's copy of a training: model, optimizer, scheduler, data and history, and its state as bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from fairlead.errors import InvalidSpec
from fairlead.planning.memory import LARGE_BYTES
from fairlead.training.data import check_batch, open_samples
from fairlead.training.definition import Training
from fairlead.training.early_stopping import EarlyStopping
from fairlead.training.history import History
from fairlead.training.lightning import configured, steps_itself
from fairlead.training.model_probe import PROBE_SAMPLES, Findings, check_loss, examine, gains_by_channels_last, trained
from fairlead.training.optimizers import forget_parameters, load_optimizer, make_optimizer, quicken
from fairlead.training.precision import computing
from fairlead.training.run_schedule import Course, course_from
from fairlead.training.samples import Resident, Samples
from fairlead.training.seeds import mix, seed_everything
from fairlead.training.snapshots.flat_state import FlatState, opened


class Session:
    """Everything that lives on from one generation to the next in a worker's memory."""

    def __init__(self, training: Training, seed: int) -> None:
        self.training = training
        self.seed = mix(training.seed, seed)
        self.device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        self.samples: Samples = open_samples("data", training.data, self.device)
        self.eval_samples = (
            None if training.eval_data is None else open_samples("eval_data", training.eval_data, self.device)
        )
        check_batch(training.batch_size, len(self.samples))
        self.model = self._model()
        self._check_loss_parameters()
        self.findings = self._probe()
        self._scheduler_every = training.scheduler_every
        self.optimizer, self.scheduler = self._optimizer()
        self.steps_per_epoch = -(-len(self.samples) // training.batch_size)
        self.total_steps = self.steps_per_epoch * training.epochs
        self.history = History(self.steps_per_epoch)
        self.judgement = EarlyStopping(training)
        self.course = Course()
        self.replay: Course | None = None  # of a rerun: what it follows
        self.step = 0
        self.speed = 0.0  # samples per second of this worker's computing, as last measured; 0: not yet
        self.spoiled = False  # whether the weights are those of nothing
        self.pending: Path | None = None  # where weights and optimizer lie in parts, if they are yet to be read
        self.dtype: torch.dtype | None = None  # that products are computed in, if not the model's own
        self.live = False  # whether this state is part of a run, not merely a fresh copy
        self.adrift = False  # whether others at the same point may hold other weights or moments, as in local SGD
        buffers = dict(self.model.named_buffers())
        self._changing = [buffers[name] for name in self.findings.changing]
        self._saved = [buffer.clone() for buffer in self._changing]
        self._within_step = False

    def _model(self) -> torch.nn.Module:
        model = self.training.model
        if not isinstance(model, torch.nn.Module):
            seed_everything(self.seed)
            model = model()
        if not isinstance(model, torch.nn.Module):
            raise InvalidSpec(
                f"the factory made {type(model).__name__}, not an nn.Module", field="model", fix="return the model"
            )
        if self.training.loss is None and not steps_itself(model):
            raise InvalidSpec(
                "is missing, and the model has no training_step of its own", field="loss",
                fix="pass a function of (outputs, targets), such as nn.CrossEntropyLoss()",
            )  # fmt: skip
        return model.to(self.device)

    def _check_loss_parameters(self) -> None:
        loss, own = self.training.loss, {id(parameter) for parameter in self.model.parameters()}
        for name, parameter in loss.named_parameters() if isinstance(loss, torch.nn.Module) else ():
            if parameter.requires_grad and id(parameter) not in own:
                raise InvalidSpec(
                    f"its parameter {name} would not be trained: only those of the model are", field="loss",
                    fix="make it a part of the model, or call requires_grad_(False)",
                )  # fmt: skip

    def _optimizer(self) -> tuple[torch.optim.Optimizer, Any]:
        parameters = trained(self.model)
        make = self.training.scheduler
        if self.training.optimizer is None and self.training.loss is None:
            own = configured(self.model)
            quicken(own.optimizer)
            if make is None:
                self._scheduler_every = own.every
                return own.optimizer, own.scheduler
            return own.optimizer, make(own.optimizer)
        optimizer = make_optimizer(self.training, parameters)
        return optimizer, None if make is None else make(optimizer)

    def _probe(self) -> Findings:
        index = torch.arange(min(PROBE_SAMPLES, len(self.samples)), device=self.device)
        batch = self.samples.take(index, 0)
        seed_everything(self.seed)
        findings = examine(self.model, self.training.loss, batch)  # first: it gives lazy layers their shapes
        check_loss(self.model, self.training.loss, batch)
        if isinstance(self.samples, Resident) and self.samples.images and gains_by_channels_last(self.model):
            self._turn_images(index)
        return findings

    def _turn_images(self, index: torch.Tensor) -> None:
        """Keep images with their channels innermost, unless the model insists on the other layout (``view``)."""
        assert isinstance(self.samples, Resident)
        turned = self.samples.with_channels_last()
        try:
            examine(self.model, self.training.loss, turned.take(index, 0))
        except RuntimeError:
            return
        self.samples = turned

    def description(self) -> list[str]:
        """What must be alike on all ranks, a line each."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        tensors = [f"{name} of shape {tuple(t.shape)} and {t.dtype}" for name, t in named]
        return [*tensors, f"{len(self.samples)} samples", f"{self.total_steps} steps", f"seed {self.seed}"]

    # ------------------------------------------------------------ where it stands

    @property
    def at_epoch_end(self) -> bool:
        return self.step > 0 and self.step % self.steps_per_epoch == 0

    @property
    def epoch_is_open(self) -> bool:
        """Whether an epoch has ended that is yet to be evaluated and judged."""
        looks = self.eval_samples is not None or self.training.judges or self._follows_plateau
        return looks and self.at_epoch_end and not self.history.marked(self.step)

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps or self.judgement.enough

    @property
    def _follows_plateau(self) -> bool:
        return isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    @property
    def point(self) -> int:
        """How far it is, as a number to compare: steps, and within a step whether its epoch is closed."""
        return 2 * self.step + self.history.marked(self.step)

    def computing(self) -> AbstractContextManager[object]:
        """Put around a forward pass of training."""
        return computing(self.dtype, self.device)

    # ------------------------------------------------------------ half steps

    @property
    def changing(self) -> Sequence[torch.Tensor]:
        """The buffers that a forward pass changes."""
        return self._changing

    def remember_buffers(self) -> None:
        """Before a forward pass: what it changes can be undone until the step is done."""
        self._within_step = True
        if self._changing:
            torch._foreach_copy_(self._saved, self._changing)

    def complete_step(self, time_s: float, loss: float) -> None:
        """The step is done: from here on this is the state that counts."""
        self._within_step = False
        self.history.add(time_s, loss)
        self.step += 1
        due = self._scheduler_every == "step" or self.at_epoch_end
        if self.scheduler is not None and due and not self._follows_plateau:
            self.scheduler.step()

    def close_epoch(self, metrics: dict[str, float]) -> bool:
        """An epoch has been evaluated: keep its figures and follow them. True if its model is the one to keep."""
        self.history.mark(self.step, metrics)
        figures = {"loss": self.history.epoch_loss(self.step)} | metrics
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(figures.get(self.training.monitor, figures["loss"]))
        best = self.training.judges and self.judgement.judge(self.step, figures)
        return best and self.training.keep_best

    def undo_half_step(self) -> None:
        """After a lost peer: be exactly in the state after the last whole step."""
        if self._changing and self._within_step:
            torch._foreach_copy_(self._changing, self._saved)
        self._within_step = False
        self.optimizer.zero_grad(set_to_none=True)

    # ------------------------------------------------------------ state as bytes

    @property
    def in_parts(self) -> bool:
        """Whether a model that is spread is handed over in parts, because the whole state is large."""
        told = self.training.sharded_snapshots
        size = 3 * sum(p.numel() * p.element_size() for p in self.model.parameters())
        return size > LARGE_BYTES if told is None else told

    def place(self) -> dict[str, Any]:
        """Where this training stands, without its tensors."""
        return {
            "step": self.step,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "history": self.history.state(),
            "judgement": self.judgement.state(),
            "course": self.course.plain(),
            "course_whole": self.course.whole,
        }

    def state(self) -> dict[str, Any]:
        """All that makes up where this training stands, in the form of one process; or where its parts lie."""
        optimizer = self.optimizer.state_dict()
        if self.pending is not None:
            return self.place() | {"parts": str(self.pending), "groups": optimizer["param_groups"]}
        model = self.model.state_dict()
        return self.place() | {"model": model, "optimizer": optimizer, "transient": self._transient(model)}

    def _transient(self, model: Container[str]) -> dict[str, torch.Tensor]:
        """Buffers that every pass changes and that the model leaves out of its own state (``persistent=False``)."""
        buffers = dict(self.model.named_buffers())
        return {name: buffers[name] for name in self.findings.changing if name in buffers and name not in model}

    def fetch(self, *, weights_only: bool = False) -> None:
        """Be whole: read what lies in parts."""
        if self.pending is None:
            return
        from fairlead.training.snapshots.sharded_files import read_parts, whole_shards

        parts = whole_shards(self.model)
        names = self.model.state_dict().keys()
        read_parts(self.pending, self.model, parts, None if weights_only else self.optimizer, names)
        self.pending = None

    def whole(self) -> dict[str, Any]:
        """The state, with what lay in parts read."""
        self.fetch()
        return self.state()

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self.whole(), buffer)
        return buffer.getvalue()

    def load(self, data: bytes | FlatState) -> None:
        """Take over a state. Only plain data is unpickled (weights_only): a snapshot is never code."""
        try:
            state = opened(data, self.device)
        except pickle.UnpicklingError as error:
            raise InvalidSpec(
                f"the state holds more than tensors and plain values ({str(error).splitlines()[0]})", field="optimizer",
                fix="keep only tensors, numbers, strings, lists and dicts in the state of optimizer and scheduler",
            ) from None  # fmt: skip
        self.adopt(state)

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Be where this state is."""
        if "parts" in state:
            self.pending = Path(state["parts"])
            for group, saved in zip(self.optimizer.param_groups, state["groups"], strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
        else:
            self.pending = None
            self.model.load_state_dict(state["model"])
            for name, buffer in self._transient(state["model"]).items():
                buffer.copy_(state.get("transient", {}).get(name, buffer))
            load_optimizer(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.history.load(state["history"])
        if "judgement" in state:  # not in snapshots of the first version
            self.judgement.load(state["judgement"])
        if "course" in state:
            self.course = course_from(state["course"], whole=bool(state["course_whole"]))
        self.step = int(state["step"])
        self.live, self.spoiled, self.adrift = True, False, False

    # ------------------------------------------------------------ for plans that cut the model up

    def parameter_names(self) -> list[str]:
        """The parameters in the order in which the optimizer counts them."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def use(
        self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter],
        elsewhere: Sequence[torch.nn.Parameter] = (),
    ) -> None:  # fmt: skip
        """Train this model from now on; optimizer and scheduler are made anew for it.

        ``parameters`` are those of the whole model, in its order: the user's function may go by their places. Those
        ``elsewhere`` only stand for what other workers train.
        """
        self.model = model
        self.optimizer = make_optimizer(self.training, parameters)
        forget_parameters(self.optimizer, elsewhere)
        self.scheduler = None if self.training.scheduler is None else self.training.scheduler(self.optimizer)
        buffers = dict(model.named_buffers())
        self._changing = [buffers[name] for name in self.findings.changing if name in buffers]
        self._saved = [buffer.clone() for buffer in self._changing]

    def spoil(self, model: torch.nn.Module) -> None:
        """The weights are lost with a peer: be an empty shell that only a snapshot can fill."""
        self.use(model, [p for p in model.parameters() if p.requires_grad])
        self.live, self.spoiled = False, True
