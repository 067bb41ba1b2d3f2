"""What a stranger may send on a line: messages of every kind with values that lie, and bytes that are no message."""

from __future__ import annotations

import math
import random
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead import framing

_DEEP = 100_000
_RAW = {  # packed by hand: what no honest library makes
    "deep list": b"\x91" * _DEEP + b"\xc0",
    "deep map": b"\x81\xa1a" * _DEEP + b"\xc0",
    "endless list": b"\xdd\xff\xff\xff\xff",
    "endless map": b"\xdf\xff\xff\xff\xff",
    "endless text": b"\xdb\xff\xff\xff\xff",
    "no text": b"\xa2\xff\xfe",
    "moment": b"\xd6\xff\x00\x00\x00\x00",
    "extension": b"\xd5\x05ab",
    "number as a name": b"\x81\x01\x01",
    "unused byte": b"\xc1",
}
_PLACE = "\0here goes what is packed by hand\0"
_PACKED_PLACE = msgspec.msgpack.encode(_PLACE)


def lines(union: Any, seed: int, count: int) -> Iterator[bytes]:
    """So many pieces of what somebody says: mostly whole messages of the union, in no order."""
    chance = random.Random(seed)
    kinds = typing.get_args(union)
    for _ in range(count):
        yield _line(kinds, chance)


def _line(kinds: tuple[type[msgspec.Struct], ...], chance: random.Random) -> bytes:
    body = _body(chance.choice(kinds), chance)
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randrange(1, 200))
        case 1:  # another length than it has
            wrong = chance.choice((0, 1, len(body) - 1, len(body) + 3, 1 << 31, (1 << 32) - 1))
            return framing.HEADER.pack(max(0, wrong)) + body
        case 2:  # some bits are others
            spoiled = bytearray(framing.HEADER.pack(len(body)) + body)
            for _ in range(chance.randrange(1, 4)):
                spoiled[chance.randrange(4, len(spoiled))] ^= 1 << chance.randrange(8)
            return bytes(spoiled)
        case _:
            return framing.HEADER.pack(len(body)) + body


def _body(kind: type[msgspec.Struct], chance: random.Random) -> bytes:
    message: dict[str, Any] = {"type": kind.__struct_config__.tag}
    for field in msgspec.structs.fields(kind):
        if field.required or chance.random() < 0.5:
            message[field.encode_name] = value(field.type, chance)
    if chance.random() < 0.1:
        message["type"] = chance.choice(("", "nobody", 7, None, ["hello"]))
    if chance.random() < 0.1:
        message["unknown"] = _PLACE
    elif chance.random() < 0.1:
        message[chance.choice(list(message))] = _PLACE
    packed = msgspec.msgpack.encode(message)
    return packed.replace(_PACKED_PLACE, chance.choice(list(_RAW.values())))


def value(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """Mostly of this type, and seldom what an honest program would say."""
    if chance.random() < 0.03:
        return chance.choice((None, True, -1, "", [], {}, 1 << 63, 1.5, [[[[]]]], {"a": {"a": {}}}))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        return chance.choice((0, 1, -1, 7, 255, 1 << 31, 1 << 53, -(1 << 63), (1 << 64) - 1))
    if kind is float:
        return chance.choice((0.0, 1.0, -1.0, 1e-308, 1e308, math.inf, -math.inf, math.nan))
    if kind is str:
        return chance.choice(("", "x", "0" * 32, "\x1b]0;t\x07", "../../etc/passwd", "\0", "é" * 500, "x" * 5000))
    if kind is bytes:
        return chance.randbytes(chance.choice((0, 1, 100, 5000)))
    if kind is bool:
        return chance.random() < 0.5
    if origin is list:
        return [value(inner[0], chance, depth + 1) for _ in range(chance.choice((0, 1, 3)))]
    if origin is dict:
        return {str(value(str, chance)): value(inner[1], chance, depth + 1) for _ in range(chance.choice((0, 1, 3)))}
    if inner:  # one of several
        return value(chance.choice(inner), chance, depth)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.encode_name: value(field.type, chance, depth + 1) for field in msgspec.structs.fields(kind)}
    if kind is Any:
        nested: Any = "x"
        for _ in range(chance.choice((0, 1, 5, 70, 300))):
            nested = {"a": nested} if chance.random() < 0.5 else [nested]
        return nested
    return None
