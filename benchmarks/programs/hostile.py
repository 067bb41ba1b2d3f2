"""A worker that takes its own channel and says whatever comes to its mind; and a training that watches the clock."""

from __future__ import annotations

import gc
import math
import os
import random
import time
import typing
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import fairlead
from fairlead import framing, wire
from fairlead.training.channel import Channel

OUTPUT = Path(os.environ["FAIRLEAD_OUTPUT"])
KINDS = typing.get_args(wire.FromWorker)
DEEP = 100_000


def attack(seed: int, messages: int, hostile: bool = True) -> fairlead.Training:
    """Say so many messages on the worker's own line, in and out of turn, until somebody ends it.

    ``hostile=False``: the same job without its words, which fails as soon.
    """
    if hostile:
        channel = next(each for each in gc.get_objects() if isinstance(each, Channel))
        Attacker(channel, random.Random(seed)).say(messages)
    raise RuntimeError("it has said what it wanted")


class Attacker:
    """Half of what it says it could have meant; the other half lies in values, types, depth, length or bits."""

    def __init__(self, channel: Channel, chance: random.Random) -> None:
        self._channel = channel
        self._chance = chance
        self._said = (OUTPUT / "said").open("w", buffering=1)

    def say(self, messages: int) -> None:
        in_turn = self._chance.random() < 0.7
        if in_turn:  # it meets like an honest one, and talks from then on
            self._channel.send(wire.Ready(640, 10, 64, 100))
            self._channel.take(20.0)
        for _ in range(messages):
            kind = self._chance.choice(KINDS)
            line = self._line(kind, wild=self._chance.random() < 0.5)
            self._channel._stream.sendall(line)
            self._said.write(f"{kind.__name__}\n")
            time.sleep(self._chance.choice((0.0, 0.0, 0.02)))

    def _line(self, kind: type[msgspec.Struct], *, wild: bool) -> bytes:
        message: dict[str, Any] = {"type": kind.__struct_config__.tag}
        for field in msgspec.structs.fields(kind):
            if field.required or self._chance.random() < 0.5:
                message[field.encode_name] = self._value(field.type, wild)
        body = msgspec.msgpack.encode(message)
        way = self._chance.randrange(12) if wild else 12
        if way == 0:  # nested deeper than any decoder goes
            body = body[:1] + b"\xa7unknown" + b"\x91" * DEEP + b"\xc0" + body[1:]
        elif way == 1:  # some bits are others
            spoiled = bytearray(body)
            spoiled[self._chance.randrange(len(spoiled))] ^= 1 << self._chance.randrange(8)
            body = bytes(spoiled)
        elif way == 2:  # another length than it has
            return framing.HEADER.pack(self._chance.choice((0, len(body) - 1, 1 << 31))) + body
        return framing.HEADER.pack(len(body)) + body

    def _value(self, kind: Any, wild: bool) -> Any:
        chance, origin, inner = self._chance, typing.get_origin(kind), typing.get_args(kind)
        if kind is int:
            return chance.choice((-1, 255, 1 << 31, 1 << 53, (1 << 64) - 1)) if wild else chance.randrange(1, 40)
        if kind is float:
            return chance.choice((0.0, -1.0, 1e308, math.inf, math.nan)) if wild else chance.random() + 0.01
        if kind is str:
            return chance.choice(("", "\x1b]0;t\x07", "../../etc", "\0", "x" * 5000)) if wild else "auto"
        if kind is bool:
            return chance.random() < 0.5
        if origin is list:
            return [self._value(inner[0], wild) for _ in range(chance.choice((0, 1, 3)))]
        if origin is dict:
            return {name: self._value(inner[1], wild) for name in ("step", "time_s", "loss")[: chance.randrange(4)]}
        if inner:  # one of several
            return self._value(chance.choice(inner), wild)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {field.encode_name: self._value(field.type, wild) for field in msgspec.structs.fields(kind)}
        nested: Any = 1
        for _ in range(chance.choice((1, 40, 300)) if wild else 1):
            nested = [nested]
        return nested if kind is Any else None


class Net(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 2)
        self.pause_s = pause_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.pause_s)
        scores: torch.Tensor = self.layer(x)
        return scores


def watching(pause_s: float = 0.02) -> fairlead.Training:
    """Trains without end, and writes down the moment of each step."""
    born = os.getpid()
    log = os.open(OUTPUT / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def timed(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=1e-3)

        def stepped(*_: object) -> None:
            if os.getpid() == born:  # a process that only looks at the model is a fork
                os.write(log, f"{time.time():.6f}\n".encode())

        optimizer.register_step_post_hook(stepped)
        return optimizer

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 16, generator=generator)
    return fairlead.Training(
        model=lambda: Net(pause_s), data=(x, (x[:, :4].sum(dim=1) > 0).long()), loss=nn.CrossEntropyLoss(),
        optimizer=timed, batch_size=64, epochs=1_000_000,
    )  # fmt: skip
