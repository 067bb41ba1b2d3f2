"""Messages on a stream: MessagePack, each with its length in front."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

HEADER = struct.Struct(">I")
LIMIT_BYTES = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """The message with its length in front, ready for a stream."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages that are still packed."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """All messages complete so far; raises ``ValueError`` when one is too long."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise ValueError(f"a message of {length} bytes is over the limit of {self._limit_bytes}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return messages


class Decoder:
    """Takes packed messages of one kind apart; whatever is wrong with one of them is a ``ValueError``."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)

    def decode(self, packed: bytes) -> Any:
        """The message; raises ``ValueError``: in msgspec only nesting is another error, also in unknown fields."""
        try:
            return self._decoder.decode(packed)
        except RecursionError:
            raise ValueError("a message that is nested too deep") from None


class Unpacker:
    """Turns a stream of bytes back into messages of one kind, however it was cut."""

    def __init__(self, kind: Any, limit_bytes: int = LIMIT_BYTES) -> None:
        self._frames = Frames(limit_bytes)
        self._decoder = Decoder(kind)

    def __len__(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._frames)

    def feed(self, data: bytes) -> list[Any]:
        """All messages complete so far; raises ``ValueError`` when the other side talks nonsense."""
        return [self._decoder.decode(message) for message in self._frames.feed(data)]
