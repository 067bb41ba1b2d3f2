"""A session's model lent to an engine that cuts it up, and given back whole, or as an empty shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fairlead.training.optimizers import stand_in
from fairlead.training.parallel.model_skeleton import ModelSkeleton
from fairlead.training.parallel.sharded_parameters import Shard, fill_optimizer
from fairlead.training.session import Session
from fairlead.training.snapshots.sharded_files import read_parts

_OWN = ("params", "fused", "foreach")  # of an optimizer's group: what depends on the cut, not on the training


class ModelSwap:
    """What must be remembered of the plain model: its structure, and how its optimizer counts the parameters."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names = session.parameter_names()
        self._skeleton = ModelSkeleton(session.model)
        self._pending = session.pending  # the weights are on disk: what the model has now is nothing
        self._state: dict[str, Any] = session.state()
        self._groups = session.optimizer.state_dict()["param_groups"]
        self._trained = [(name, p.shape, p.dtype) for name, p in session.model.named_parameters() if p.requires_grad]
        self.tensors = frozenset(session.model.state_dict())

    def use(self, model: torch.nn.Module, parts: Sequence[Shard]) -> None:
        """Let the session train what is left of the model on this rank, from where it stood."""
        session, state = self._session, self._state
        own = {part.name: part.local for part in parts}
        known = {name for name, _, _ in self._trained}
        assert {name for name, local in own.items() if local.requires_grad} <= known, "a parameter goes by another name"
        elsewhere = {name: stand_in(shape, dtype) for name, shape, dtype in self._trained if name not in own}
        session.use(model, [(own | elsewhere)[name] for name, _, _ in self._trained], list(elsewhere.values()))
        if self._pending is not None:
            read_parts(self._pending, model, parts, session.optimizer, self.tensors)
            session.pending = None
        else:
            states = {name: state["optimizer"]["state"].get(place, {}) for place, name in enumerate(self._names)}
            fill_optimizer(session.optimizer, parts, states)
        for group, saved in zip(session.optimizer.param_groups, self._groups, strict=True):
            group.update({key: value for key, value in saved.items() if key not in _OWN})
        if session.scheduler is not None:
            session.scheduler.load_state_dict(state["scheduler"])
        self._state = {}  # it holds on to the weights of the plain model

    def whole(self, model: Mapping[str, torch.Tensor], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The state in the form of one process, from all its tensors and the optimizer's parts by parameter."""
        session = self._session
        assert self.tensors <= model.keys(), "a state without all tensors would be taken for a whole one"
        states = {place: dict(parts[name]) for place, name in enumerate(self._names) if parts.get(name)}
        return session.state() | {"model": dict(model), "optimizer": {"state": states, "param_groups": self._now()}}

    def place(self) -> dict[str, Any]:
        """Where the training stands, without its tensors."""
        return self._session.place() | {"groups": self._now()}

    def _now(self) -> list[dict[str, Any]]:
        """The optimizer's groups as the plain model counts them, with the values that they have by now."""
        return [
            saved | {key: value for key, value in group.items() if key not in _OWN}
            for saved, group in zip(self._groups, self._session.optimizer.param_groups, strict=True)
        ]

    def plain(self) -> torch.nn.Module:
        """A plain model with room for its weights."""
        return self._skeleton.rebuild(self._session.device)

    def give_back(self, state: Mapping[str, Any] | None) -> None:
        """The session has its plain model again: in this state, or spoiled."""
        self._session.spoil(self.plain())
        if state is not None:
            self._session.adopt(state)
