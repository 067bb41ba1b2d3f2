"""A state as raw tensors, copied as they lie in memory, and a small head with everything else.

The head is the state in torch's own format, with a mark in place of each tensor, and is read as plain data only: a
snapshot is never code.
"""

from __future__ import annotations

import copy
import io
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

KIND = "state"
"""The kind of a grid block that holds a state."""


@dataclass(frozen=True, slots=True)
class FlatState:
    """A state in two parts: a head, and its tensors."""

    head: bytes
    mark: str  # unique to this state, so that no value in it can be mistaken for a mark
    tensors: tuple[torch.Tensor, ...]

    @property
    def lengths(self) -> list[int]:
        """Bytes of the parts: the head, then each tensor."""
        return [len(self.head), *(tensor.numel() * tensor.element_size() for tensor in self.tensors)]

    @property
    def meta(self) -> dict[str, Any]:
        """What is needed to rebuild the state from its parts."""
        facts = [[str(each.dtype), list(each.shape), _strides(each)] for each in self.tensors]
        return {"mark": self.mark, "tensors": facts}

    def write(self, room: memoryview, parts: Sequence[tuple[int, int]]) -> None:
        """Copy each part to its place (offset and bytes) in ``room``. A training step waits for this copy only."""
        begin, length = parts[0]
        room[begin : begin + length] = self.head
        with torch.no_grad():
            for tensor, (offset, _) in zip(self.tensors, parts[1:], strict=True):
                if tensor.numel():
                    flat = torch.frombuffer(room, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
                    _shaped(flat, tensor.shape, _strides(tensor)).copy_(tensor)

    def state(self, device: torch.device) -> dict[str, Any]:
        """The state; raises pickle.UnpicklingError when it holds more than plain data."""
        found = torch.load(io.BytesIO(self.head), map_location=device, weights_only=True)
        placed = [tensor.to(device) for tensor in self.tensors]

        def put_back(value: Any) -> Any:
            return placed[value[1]] if type(value) is tuple and len(value) == 2 and value[0] == self.mark else value

        state: dict[str, Any] = _map_values(found, put_back)
        return state


def flatten_state(state: Mapping[str, Any]) -> FlatState:
    """The flat form of a state; shares its tensors, which must be copied before they change."""
    mark, tensors = secrets.token_hex(8), list[torch.Tensor]()
    places: dict[tuple[Any, ...], int] = {}  # of tensors that were found already: shared weights are stored once

    def take_out(value: Any) -> Any:
        if not _is_extractable(value):
            return value
        key: tuple[Any, ...] = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())
        if not value.numel():
            key = (id(value),)  # it has no memory
        if key not in places:
            places[key] = len(tensors)
            tensors.append(value)
        return mark, places[key]

    buffer = io.BytesIO()
    torch.save(_map_values(state, take_out), buffer)
    return FlatState(buffer.getvalue(), mark, tuple(tensors))


def flat_state_from_parts(meta: Mapping[str, Any], parts: Sequence[memoryview]) -> FlatState:
    """The flat state from copies of its parts, which may lie in read-only memory."""
    tensors = []
    for (kind, shape, strides), part in zip(meta["tensors"], parts[1:], strict=True):
        dtype: torch.dtype = getattr(torch, kind.removeprefix("torch."))
        own = torch.empty(len(part) // dtype.itemsize, dtype=dtype)
        if len(part):
            np.copyto(own.view(torch.uint8).numpy(), np.frombuffer(part, np.uint8))
        tensors.append(_shaped(own, shape, strides))
    return FlatState(bytes(parts[0]), meta["mark"], tuple(tensors))


def read_state(data: bytes | FlatState, device: torch.device) -> dict[str, Any]:
    """A state from either form; raises pickle.UnpicklingError when it holds more than plain data."""
    if isinstance(data, FlatState):
        return data.state(device)
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return state


def _is_extractable(value: Any) -> bool:
    """Whether it is a plain tensor; tensors of other kinds stay in the head."""
    return (
        type(value) is torch.Tensor and value.layout is torch.strided and not value.requires_grad
        and not value.is_quantized and value.device.type != "meta"
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )  # fmt: skip


def _map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same maps and lists with changed values."""
    if type(value) is dict:
        return {key: _map_values(each, change) for key, each in value.items()}
    if type(value) is OrderedDict:
        found = copy.copy(value)  # with torch's metadata: the versions of the modules
        found.update((key, _map_values(each, change)) for key, each in value.items())
        return found
    changed = change(value)
    if changed is value and type(value) in (list, tuple):
        return type(value)(_map_values(each, change) for each in value)
    return changed


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides of a dense channels-last tensor, which are preserved; empty for any other."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=last):
        return []
    return list(tensor.stride())


def _shaped(flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    return flat.as_strided(list(shape), list(strides)) if strides else flat.view(list(shape))
