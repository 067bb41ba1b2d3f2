"""The part of the model that one rank serves: the authoritative parameters and the optimizer that updates them."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fairlead.training.optimizers import load_optimizer, make_optimizer, placeholder_parameter
from fairlead.training.session import Session

_ALIGNED = 16
_OWN = ("params", "fused", "foreach")  # keys of an optimizer's group that say how it computes, not what


class Layout:
    """Several tensors in one buffer, as they are sent: first one byte per tensor that says whether it is present."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._like = tensors
        self._starts, end = [], _align(len(tensors))
        for tensor in tensors:
            self._starts.append(end)
            end = _align(end + tensor.numel() * tensor.element_size())
        self.size = end

    def buffer(self) -> torch.Tensor:
        return torch.zeros(self.size, dtype=torch.uint8)

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """The tensors within a buffer of this layout."""
        return [
            buffer[start : start + like.numel() * like.element_size()].view(like.dtype).view(like.shape)
            for start, like in zip(self._starts, self._like, strict=True)
        ]


def _align(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def assign_parameters(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The tensors that each server holds: whole ones, for any optimizer; each goes to the least loaded server."""
    held: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        least = loads.index(min(loads))
        held[least].append(place)
        loads[least] += sizes[place]
    return [sorted(places) for places in held]


class Shard:
    """Takes gradients and returns parameters, one request at a time.

    After as many pieces as make up a batch it takes a step of the optimizer. So there are as many steps as in one
    process, with gradients as large, and learning rates and schedules keep their meaning.
    """

    def __init__(self, session: Session, parameters: Sequence[torch.nn.Parameter], mine: Sequence[int], pieces: int):
        self._session, self._pieces = session, pieces
        own = set(mine)
        # Placeholders without memory for what others serve: the user's function may sort by shape or order.
        everything = [
            torch.nn.Parameter(p.detach().cpu().clone()) if place in own else placeholder_parameter(p.shape, p.dtype)
            for place, p in enumerate(parameters)
        ]
        self._optimizer = make_optimizer(session.training, everything)
        state = session.optimizer.state_dict()
        counted = {id(p): place for place, p in enumerate(p for g in self._optimizer.param_groups for p in g["params"])}
        self._places = [counted[id(everything[place])] for place in mine]  # as the optimizer counts them
        state["state"] = {place: state["state"][place] for place in self._places if place in state["state"]}
        load_optimizer(self._optimizer, state)
        self._masters = [everything[place] for place in mine]
        self._sums: list[torch.Tensor | None] = [None] * len(mine)
        self._arrived = 0
        self._lock = threading.Lock()
        self.layout = Layout(self._masters)

    def push(self, buffer: torch.Tensor) -> None:
        """Add the gradients of a piece; a parameter without a gradient in all pieces of a step is not updated."""
        there = buffer[: len(self._masters)].tolist()
        with self._lock:
            for place, (has, gradient) in enumerate(zip(there, self.layout.views(buffer), strict=True)):
                if has:
                    known = self._sums[place]
                    self._sums[place] = gradient.clone() if known is None else known.add_(gradient)
            self._arrived += 1
            if self._arrived == self._pieces:
                self._apply()

    def _apply(self) -> None:
        for group, source in zip(self._optimizer.param_groups, self._session.optimizer.param_groups, strict=True):
            group.update({key: value for key, value in source.items() if key not in _OWN})  # what a scheduler changed
        for master, total in zip(self._masters, self._sums, strict=True):
            master.grad = total
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._sums, self._arrived = [None] * len(self._masters), 0

    def pull(self, buffer: torch.Tensor) -> None:
        """Write the present parameters into a buffer."""
        with self._lock, torch.no_grad():
            for view, master in zip(self.layout.views(buffer), self._masters, strict=True):
                view.copy_(master)

    def state(self) -> bytes:
        """The optimizer's state of this part, by parameter index."""
        with self._lock:
            state: Mapping[int, Any] = self._optimizer.state_dict()["state"]
            file = io.BytesIO()
            torch.save({place: state[place] for place in self._places if place in state}, file)
        return file.getvalue()
