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
from fairlead.training.lightning import configure_optimizers, has_training_step
from fairlead.training.model_probe import (
    PROBE_SAMPLES,
    Findings,
    check_loss,
    prefers_channels_last,
    probe_model,
    trainable_parameters,
)
from fairlead.training.optimizers import drop_parameters, load_optimizer, make_optimizer, use_fused_kernel
from fairlead.training.precision import autocast
from fairlead.training.run_schedule import RunSchedule, schedule_from
from fairlead.training.samples import Resident, Samples
from fairlead.training.seeds import mix, seed_everything
from fairlead.training.snapshots.flat_state import FlatState, read_state


class Session:
    """All that a worker keeps in memory from one generation to the next."""

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
        self.early_stopping = EarlyStopping(training)
        self.run_schedule = RunSchedule()
        self.replayed_schedule: RunSchedule | None = None  # of a rerun: the schedule that it repeats
        self.step = 0
        self.speed = 0.0  # samples per second that this worker computes, as last measured; 0: not measured yet
        self.weights_lost = False  # the weights went with a lost peer: only a snapshot can fill the model
        self.unread_shards: Path | None = None  # files with weights and optimizer, until they are read
        self.dtype: torch.dtype | None = None  # of matrix products, where it is not the model's own
        self.live = False  # the state is as new as any rank's; False: a fresh or outdated copy
        self.diverged = False  # ranks at the same step may hold other weights or moments, as in local SGD
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
        if self.training.loss is None and not has_training_step(model):
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
        parameters = trainable_parameters(self.model)
        make = self.training.scheduler
        if self.training.optimizer is None and self.training.loss is None:
            own = configure_optimizers(self.model)
            use_fused_kernel(own.optimizer)
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
        findings = probe_model(self.model, self.training.loss, batch)  # first: it gives lazy layers their shapes
        check_loss(self.model, self.training.loss, batch)
        if isinstance(self.samples, Resident) and self.samples.images and prefers_channels_last(self.model):
            self._turn_images(index)
        return findings

    def _turn_images(self, index: torch.Tensor) -> None:
        """Store images with their channels innermost, unless the model needs the other layout (``view``)."""
        assert isinstance(self.samples, Resident)
        turned = self.samples.with_channels_last()
        try:
            probe_model(self.model, self.training.loss, turned.take(index, 0))
        except RuntimeError:
            return
        self.samples = turned

    def description(self) -> list[str]:
        """What must be the same on all ranks, one line each."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        tensors = [f"{name} of shape {tuple(t.shape)} and {t.dtype}" for name, t in named]
        return [*tensors, f"{len(self.samples)} samples", f"{self.total_steps} steps", f"seed {self.seed}"]

    # ------------------------------------------------------------ progress

    @property
    def at_epoch_end(self) -> bool:
        return self.step > 0 and self.step % self.steps_per_epoch == 0

    @property
    def evaluation_due(self) -> bool:
        """Whether an epoch has ended that has not been evaluated yet."""
        looks = self.eval_samples is not None or self.training.compares_epochs or self._follows_plateau
        return looks and self.at_epoch_end and not self.history.has_metrics(self.step)

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps or self.early_stopping.should_stop

    @property
    def _follows_plateau(self) -> bool:
        return isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    @property
    def position(self) -> int:
        """Progress as one number to compare: twice the step, plus one once its epoch is evaluated."""
        return 2 * self.step + self.history.has_metrics(self.step)

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a training's forward pass."""
        return autocast(self.dtype, self.device)

    # ------------------------------------------------------------ steps

    @property
    def changing(self) -> Sequence[torch.Tensor]:
        """The buffers that a forward pass changes."""
        return self._changing

    def save_buffers(self) -> None:
        """Before a forward pass: save the buffers that it changes, so that a partial step can be rolled back."""
        self._within_step = True
        if self._changing:
            torch._foreach_copy_(self._saved, self._changing)

    def complete_step(self, time_s: float, loss: float) -> None:
        """Record a step that all ranks have taken: from now on this is the state that counts."""
        self._within_step = False
        self.history.add(time_s, loss)
        self.step += 1
        due = self._scheduler_every == "step" or self.at_epoch_end
        if self.scheduler is not None and due and not self._follows_plateau:
            self.scheduler.step()

    def close_epoch(self, metrics: dict[str, float]) -> bool:
        """Record the metrics of an epoch and adjust to them. True if this epoch's model is to be kept as the best."""
        self.history.record_metrics(self.step, metrics)
        figures = {"loss": self.history.epoch_loss(self.step)} | metrics
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(figures.get(self.training.monitor, figures["loss"]))
        best = self.training.compares_epochs and self.early_stopping.judge(self.step, figures)
        return best and self.training.keep_best

    def roll_back_step(self) -> None:
        """After a lost peer: return to the state after the last complete step."""
        if self._changing and self._within_step:
            torch._foreach_copy_(self._changing, self._saved)
        self._within_step = False
        self.optimizer.zero_grad(set_to_none=True)

    # ------------------------------------------------------------ state as bytes

    @property
    def snapshots_sharded(self) -> bool:
        """Whether a split model's state goes into one file per rank, because the whole is large."""
        asked = self.training.sharded_snapshots
        size = 3 * sum(p.numel() * p.element_size() for p in self.model.parameters())
        return size > LARGE_BYTES if asked is None else asked

    def progress_state(self) -> dict[str, Any]:
        """The progress of the training, without tensors."""
        return {
            "step": self.step,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "history": self.history.state(),
            "judgement": self.early_stopping.state(),
            "course": self.run_schedule.to_plain(),
            "course_whole": self.run_schedule.complete,
        }

    def state(self) -> dict[str, Any]:
        """The whole state in the form of one process, or a reference to the files that hold its shards."""
        optimizer = self.optimizer.state_dict()
        if self.unread_shards is not None:
            return self.progress_state() | {"parts": str(self.unread_shards), "groups": optimizer["param_groups"]}
        model = self.model.state_dict()
        return self.progress_state() | {"model": model, "optimizer": optimizer, "transient": self._transient(model)}

    def _transient(self, model: Container[str]) -> dict[str, torch.Tensor]:
        """Buffers that every pass changes and that ``state_dict`` leaves out (``persistent=False``)."""
        buffers = dict(self.model.named_buffers())
        return {name: buffers[name] for name in self.findings.changing if name in buffers and name not in model}

    def load_shards(self, *, weights_only: bool = False) -> None:
        """Read weights and optimizer from the files that hold them, if they were not read yet."""
        if self.unread_shards is None:
            return
        from fairlead.training.snapshots.sharded_files import read_shards, whole_shards

        parts = whole_shards(self.model)
        names = self.model.state_dict().keys()
        read_shards(self.unread_shards, self.model, parts, None if weights_only else self.optimizer, names)
        self.unread_shards = None

    def full_state(self) -> dict[str, Any]:
        """The state with all tensors; reads shards first."""
        self.load_shards()
        return self.state()

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self.full_state(), buffer)
        return buffer.getvalue()

    def load(self, data: bytes | FlatState) -> None:
        """Load a state from bytes. Only plain data is unpickled (weights_only): a snapshot is never code."""
        try:
            state = read_state(data, self.device)
        except pickle.UnpicklingError as error:
            raise InvalidSpec(
                f"the state holds more than tensors and plain values ({str(error).splitlines()[0]})", field="optimizer",
                fix="keep only tensors, numbers, strings, lists and dicts in the state of optimizer and scheduler",
            ) from None  # fmt: skip
        self.load_state(state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from this state."""
        if "parts" in state:
            self.unread_shards = Path(state["parts"])
            for group, saved in zip(self.optimizer.param_groups, state["groups"], strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
        else:
            self.unread_shards = None
            self.model.load_state_dict(state["model"])
            for name, buffer in self._transient(state["model"]).items():
                buffer.copy_(state.get("transient", {}).get(name, buffer))
            load_optimizer(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.history.load(state["history"])
        if "judgement" in state:  # not in snapshots of the first version
            self.early_stopping.load(state["judgement"])
        if "course" in state:
            self.run_schedule = schedule_from(state["course"], complete=bool(state["course_whole"]))
        self.step = int(state["step"])
        self.live, self.weights_lost, self.diverged = True, False, False

    # ------------------------------------------------------------ for plans that split the model

    def parameter_names(self) -> list[str]:
        """The names of the parameters in the optimizer's order."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def replace_model(
        self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter],
        elsewhere: Sequence[torch.nn.Parameter] = (),
    ) -> None:  # fmt: skip
        """Train this model from now on, with a new optimizer and scheduler.

        ``parameters`` are those of the whole model in its order, since the user's factory may depend on positions.
        ``elsewhere`` are placeholders for parameters that other workers train.
        """
        self.model = model
        self.optimizer = make_optimizer(self.training, parameters)
        drop_parameters(self.optimizer, elsewhere)
        self.scheduler = None if self.training.scheduler is None else self.training.scheduler(self.optimizer)
        buffers = dict(model.named_buffers())
        self._changing = [buffers[name] for name in self.findings.changing if name in buffers]
        self._saved = [buffer.clone() for buffer in self._changing]

    def discard_weights(self, model: torch.nn.Module) -> None:
        """The weights are lost with a peer: keep an empty model that only a snapshot can fill."""
        self.replace_model(model, [p for p in model.parameters() if p.requires_grad])
        self.live, self.weights_lost = False, True
