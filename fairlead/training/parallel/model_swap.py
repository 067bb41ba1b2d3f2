"""Swaps a session's plain model for the parts that the engine trains, and puts a plain model back afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fairlead.training.optimizers import placeholder_parameter
from fairlead.training.parallel.model_skeleton import ModelSkeleton
from fairlead.training.parallel.sharded_parameters import Shard, fill_optimizer
from fairlead.training.session import Session
from fairlead.training.snapshots.sharded_files import read_shards

_OWN = ("params", "fused", "foreach")  # keys of an optimizer's group that depend on the split, not on the training


class ModelSwap:
    """Remembers the plain model's structure and how its optimizer counts the parameters."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names = session.parameter_names()
        self._skeleton = ModelSkeleton(session.model)
        self._pending = session.unread_shards  # the weights are in files; those in the model are void
        self._state: dict[str, Any] = session.state()
        self._groups = session.optimizer.state_dict()["param_groups"]
        self._trained = [(name, p.shape, p.dtype) for name, p in session.model.named_parameters() if p.requires_grad]
        self.tensors = frozenset(session.model.state_dict())

    def install(self, model: torch.nn.Module, parts: Sequence[Shard]) -> None:
        """Let the session train this rank's part of the model, from the state it was in."""
        session, state = self._session, self._state
        own = {part.name: part.local for part in parts}
        known = {name for name, _, _ in self._trained}
        assert {name for name, local in own.items() if local.requires_grad} <= known, "a parameter goes by another name"
        elsewhere = {
            name: placeholder_parameter(shape, dtype) for name, shape, dtype in self._trained if name not in own
        }
        session.replace_model(
            model, [(own | elsewhere)[name] for name, _, _ in self._trained], list(elsewhere.values())
        )
        if self._pending is not None:
            read_shards(self._pending, model, parts, session.optimizer, self.tensors)
            session.unread_shards = None
        else:
            states = {name: state["optimizer"]["state"].get(place, {}) for place, name in enumerate(self._names)}
            fill_optimizer(session.optimizer, parts, states)
        for group, saved in zip(session.optimizer.param_groups, self._groups, strict=True):
            group.update({key: value for key, value in saved.items() if key not in _OWN})
        if session.scheduler is not None:
            session.scheduler.load_state_dict(state["scheduler"])
        self._state = {}  # it would keep the weights of the plain model alive

    def full_state(self, model: Mapping[str, torch.Tensor], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The state in the form of one process, from whole tensors and the optimizer's state by parameter name."""
        session = self._session
        assert self.tensors <= model.keys(), "a state without all tensors would be taken for a whole one"
        states = {place: dict(parts[name]) for place, name in enumerate(self._names) if parts.get(name)}
        return session.state() | {"model": dict(model), "optimizer": {"state": states, "param_groups": self._now()}}

    def progress_state(self) -> dict[str, Any]:
        """The progress of the training, without tensors."""
        return self._session.progress_state() | {"groups": self._now()}

    def _now(self) -> list[dict[str, Any]]:
        """The optimizer's groups as the plain model counts them, with their present values."""
        return [
            saved | {key: value for key, value in group.items() if key not in _OWN}
            for saved, group in zip(self._groups, self._session.optimizer.param_groups, strict=True)
        ]

    def plain_model(self) -> torch.nn.Module:
        """A plain model with uninitialised weights."""
        return self._skeleton.rebuild(self._session.device)

    def restore_model(self, state: Mapping[str, Any] | None) -> None:
        """Give the session its plain model back: in this state, or without weights."""
        self._session.discard_weights(self.plain_model())
        if state is not None:
            self._session.load_state(state)
