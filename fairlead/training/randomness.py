"""Dropout that is the same for each sample, however many workers share the batch.

torch draws its masks from one stream, so they would depend on which worker computes what. Here every mask element is a
hash of (seed, step, call, sample, element). The mode works below autograd, where every kind of dropout (also inside
attention and LSTMs) appears as ``bernoulli_`` on a mask of known shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairlead.training.seeds import mix

_aten = torch.ops.aten
_MASKS = (_aten.bernoulli_.float, _aten.native_dropout.default)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples lie in a mask: along this dimension, each with this many rows."""

    dim: int
    repeat: int


@dataclass(frozen=True, slots=True)
class RandomUse:
    """The random numbers that a forward pass draws, as found with two small batches."""

    layouts: tuple[Layout | None, ...] = ()  # of each mask in the order of the calls; None: not per sample
    others: tuple[str, ...] = ()  # random operations that cannot be made independent of the workers
    shapes: tuple[torch.Size, ...] = ()  # of each mask, on the larger of the two batches

    @property
    def exact(self) -> bool:
        return not self.others and None not in self.layouts


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the shape of every mask and the name of every other random operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masks: list[torch.Size] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MASKS:
            self.masks.append(args[0].shape)
        elif torch.Tag.nondeterministic_seeded in func.tags and _dropped(func, args, kwargs or {}) != 0.0:
            self.others.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _dropped(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The dropout of an attention kernel, which torch tags as random even at 0; None: no attention kernel."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
    return None


def compare(few: Recorder, fewer: Recorder, sizes: tuple[int, int]) -> RandomUse:
    """Find the samples' dimension of each mask: the one that follows the size of the batch."""
    layouts = tuple(_layout(a, b, sizes) for a, b in zip(few.masks, fewer.masks, strict=False))
    layouts += (None,) * abs(len(few.masks) - len(fewer.masks))
    return RandomUse(layouts, tuple(sorted(few.others | fewer.others)), tuple(few.masks))


def _layout(few: torch.Size, fewer: torch.Size, sizes: tuple[int, int]) -> Layout | None:
    changed = [dim for dim, (a, b) in enumerate(zip(few, fewer, strict=False)) if a != b]
    if len(few) != len(fewer) or len(changed) != 1:
        return None
    dim = changed[0]
    repeat, rest = divmod(few[dim], sizes[0])
    return None if rest or fewer[dim] != repeat * sizes[1] else Layout(dim, repeat)


class SampleDropout(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces dropout masks by hashed ones during a forward pass.

    ``part`` of ``parts``: where layers are cut over a tensor group, a mask is this rank's part of the whole one.
    """

    def __init__(self, use: RandomUse, part: int = 0, parts: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._use, self._part, self._parts = use, part, parts
        self._call = 0
        self._key = 0
        self._samples = torch.empty(0, dtype=torch.int64)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would double the cost of every operation

    def begin(self, seed: int, step: int, samples: torch.Tensor, call: int = 0) -> None:
        """Set the samples of the next forward pass, and the number of the first mask that it draws."""
        self._key, self._call, self._samples = mix(seed, step, 2), call, samples

    def replay(self) -> AbstractContextManager[None]:
        """The context of a recomputation: draws the same masks again, whatever was drawn since."""
        return self._replayed((self._key, self._call, self._samples))

    @contextmanager
    def _replayed(self, then: tuple[int, int, torch.Tensor]) -> Iterator[None]:
        now = (self._key, self._call, self._samples)
        self._key, self._call, self._samples = then
        try:
            with self:
                yield
        finally:
            self._key, self._call, self._samples = now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.bernoulli_.float:
            return self._bernoulli(func, args, kwargs)
        if func is _aten.native_dropout.default and args[2] is not False:
            return self._native_dropout(func, args, kwargs)
        return func(*args, **kwargs)

    def _bernoulli(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        target = args[0]
        keep = self._mask(target.shape, float(args[1] if len(args) > 1 else kwargs.get("p", 0.5)), target.device)
        return func(*args, **kwargs) if keep is None else target.copy_(keep)

    def _native_dropout(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        source, p = args[0], float(args[1])
        keep = self._mask(source.shape, 1.0 - p, source.device)
        if keep is None:
            return func(*args, **kwargs)
        return source * keep * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), keep

    def _mask(self, shape: torch.Size, keep: float, device: torch.device) -> torch.Tensor | None:
        call, self._call = self._call, self._call + 1
        layout = self._use.layouts[call] if call < len(self._use.layouts) else None
        if layout is None:
            return None
        cut = self._cut(call, shape, layout) if self._parts > 1 else None
        whole = list(shape)
        if cut is not None:
            whole[cut] *= self._parts
        if whole[layout.dim] != layout.repeat * len(self._samples):
            return None
        mask = sample_mask(mix(self._key, call), self._samples, layout, torch.Size(whole), keep).to(device)
        return mask if cut is None else self._own_part(mask, cut, layout)

    def _cut(self, call: int, shape: torch.Size, layout: Layout) -> int | None:
        """The dimension that is cut over the tensor group: its size is a fraction of the uncut model's."""
        expected = list(self._use.shapes[call])
        expected[layout.dim] = layout.repeat * len(self._samples)
        pairs = enumerate(zip(shape, expected, strict=False))
        return next((dim for dim, (own, full) in pairs if own * self._parts == full), None)

    def _own_part(self, mask: torch.Tensor, dim: int, layout: Layout) -> torch.Tensor:
        if dim == layout.dim:  # each sample's rows (its heads) are cut, not the samples
            mask = mask.reshape(*mask.shape[:dim], len(self._samples), layout.repeat, *mask.shape[dim + 1 :])
            return mask.chunk(self._parts, dim + 1)[self._part].flatten(dim, dim + 1)
        return mask.chunk(self._parts, dim)[self._part]


def sample_mask(key: int, samples: torch.Tensor, layout: Layout, shape: torch.Size, keep: float) -> torch.Tensor:
    """The elements to keep, as a boolean tensor. A sample's part depends on nothing but key and sample."""
    others = [size for dim, size in enumerate(shape) if dim != layout.dim]
    elements = layout.repeat * math.prod(others)
    per_sample = _scramble(samples * 0x9E3779B1 + key)
    bits = _finish(per_sample.unsqueeze(1) ^ _per_element(elements, samples.device).unsqueeze(0))
    chosen = bits < int(keep * 0xFFFFFFFF) - 0x80000000 if keep < 1.0 else torch.ones_like(bits, dtype=torch.bool)
    return chosen.reshape(len(samples) * layout.repeat, *others).movedim(0, layout.dim)


@lru_cache(maxsize=64)
def _per_element(elements: int, device: torch.device) -> torch.Tensor:
    return _scramble(torch.arange(elements, device=device) * 0x85EBCA77)


def _scramble(values: torch.Tensor) -> torch.Tensor:
    """Hash int64 numbers to 32 bits."""
    values = (values ^ (values >> 32)) * 0x2545F4914F6CDD1D
    return (values ^ (values >> 29)).mul_(0x2127599BF4325C37).bitwise_right_shift_(32).to(torch.int32)


def _finish(bits: torch.Tensor) -> torch.Tensor:
    """The last mixing rounds on the whole mask, in place and in 32 bits: they make up the cost of dropout."""
    bits *= -0x7A143589
    bits ^= (bits >> 15).bitwise_and_(0x1FFFF)  # torch shifts the sign along: cut it off
    bits *= -0x3D4D51C3
    bits ^= (bits >> 13).bitwise_and_(0x7FFFF)
    bits *= 0x27D4EB2F
    return bits
