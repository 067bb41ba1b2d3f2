"""Frames messages on a stream: MessagePack with a length prefix."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

HEADER = struct.Struct(">I")
LIMIT_BYTES = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """Encode the message with its length prefix."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


class Frames:
    """Splits a byte stream into encoded messages."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """All messages completed by this data; raises ``ValueError`` when one is too long."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise ValueError(f"a message of {length} bytes exceeds the limit of {self._limit_bytes}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return messages


class Decoder:
    """Decodes messages of one kind; every invalid message raises ``ValueError``."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)

    def decode(self, packed: bytes) -> Any:
        """Decode one message; raises ``ValueError`` also for deep nesting, for which msgspec raises another error."""
        try:
            return self._decoder.decode(packed)
        except RecursionError:
            raise ValueError("a message that is nested too deeply") from None


class Unpacker:
    """Decodes a byte stream into messages of one kind."""

    def __init__(self, kind: Any, limit_bytes: int = LIMIT_BYTES) -> None:
        self._frames = Frames(limit_bytes)
        self._decoder = Decoder(kind)

    def __len__(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._frames)

    def feed(self, data: bytes) -> list[Any]:
        """All messages completed by this data; raises ``ValueError`` for an invalid one."""
        return [self._decoder.decode(message) for message in self._frames.feed(data)]
