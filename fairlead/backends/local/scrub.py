"""Takes secrets out of what a worker prints and says, before it is written or told to anybody."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar
from urllib.parse import quote

import msgspec

from fairlead.specs import SHORTEST_SECRET

_SHORTEST_PART = 12  # of a line, or of a core in base64: what is shorter is found by chance

M = TypeVar("M", bound=msgspec.Struct)


class Scrubber:
    """Replaces each value by ``***NAME***``, also where it is cut in two, quoted, in base64 or in hex.

    It finds what is printed by accident. A job that wants to tell its own secret can always write it in another way.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            for form in _forms(value):
                forms.setdefault(form, f"***{name}***".encode())
        self._forms = dict(sorted(forms.items(), key=lambda item: -len(item[0])))  # the longest first: parts come last
        self._halves = [half for form, mask in self._forms.items() if (half := _Half.of(form, mask)) is not None]
        self._longest = max(map(len, forms), default=0)
        self._held = b""  # the end of what was fed, if a secret may begin there

    def __bool__(self) -> bool:
        return bool(self._forms)

    def feed(self, data: bytes) -> bytes:
        """What may be written by now; the beginning of a secret waits for its rest."""
        return self._cut(self._held + data) if self._forms else data

    def _cut(self, data: bytes) -> bytes:
        """Replace all that begins before the part that must wait: a secret, or the beginning of a longer one."""
        done: list[bytes] = []
        while True:
            begins = len(data) - self._begun(data)
            ready, self._held = data[:begins], data[begins:]
            for form, mask in self._forms.items():
                ready = ready.replace(form, mask)
                across = (ready + self._held[: len(form) - 1]).find(form, max(0, len(ready) - len(form) + 1))
                if across >= 0:  # it ends where another might begin: that other one begins after it, if at all
                    done += (self._replaced(ready[:across]), mask)
                    data = self._held[across + len(form) - len(ready) :]
                    break
            else:
                return b"".join([*done, ready])

    def finish(self) -> bytes:
        """What was held back and no rest came for; too much of a secret is not told even so."""
        held, self._held = self._held, b""
        if len(held) < SHORTEST_SECRET:
            return held
        return next((mask for form, mask in self._forms.items() if form.startswith(held)), b"***")

    def text(self, text: str) -> str:
        """The text as it may be told: messages are shortened before they get here, in the middle of a secret too."""
        data = self._replaced(text.encode("utf-8", "surrogatepass"))
        for half in self._halves:
            data = half.replaced(data)
        return data.decode("utf-8", "surrogatepass")

    def message(self, message: M) -> M:
        """What a worker says, without secrets in any of its texts; an untouched message is returned as it is."""
        if not self._forms:
            return message
        packed = msgspec.msgpack.encode(message)
        if not any(form in packed for form in self._forms) and not any(half.within(packed) for half in self._halves):
            return message
        plain = self._cleaned(msgspec.to_builtins(message))
        return msgspec.convert(plain, type(message))

    def _cleaned(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._cleaned(key): self._cleaned(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._cleaned(part) for part in value]
        return value

    def _replaced(self, data: bytes) -> bytes:
        for form, mask in self._forms.items():
            if form in data:
                data = data.replace(form, mask)
        return data

    def _begun(self, data: bytes) -> int:
        """How many of the last bytes are the beginning of a secret."""
        tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        most = 0
        for form in self._forms:
            place = tail.find(form[:1], max(0, len(tail) - len(form) + 1))
            while 0 <= place < len(tail) - most:
                if form.startswith(tail[place:]):
                    most = len(tail) - place
                    break
                place = tail.find(form[:1], place + 1)
        return most


@dataclass(frozen=True, slots=True)
class _Half:
    """So much of a secret that it is not to be told, where the rest was cut off."""

    form: bytes
    mask: bytes
    need: int

    @classmethod
    def of(cls, form: bytes, mask: bytes) -> _Half | None:
        need = max(_SHORTEST_PART, (len(form) + 1) // 2)
        while need < len(form) and form[need] & 0xC0 == 0x80:  # not within a letter
            need += 1
        return cls(form, mask, need) if need < len(form) else None

    def within(self, data: bytes) -> bool:
        return self.form[: self.need] in data or self.form[-self.need :] in data

    def replaced(self, data: bytes) -> bytes:
        """Its beginning is gone wherever it stands, its end where the text begins with it."""
        for size in range(len(self.form) - 1, self.need - 1, -1):
            if data.startswith(self.form[-size:]):
                data = self.mask + data[size:]
                break
        at = data.find(self.form[: self.need])
        while at >= 0:
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(self.form, data[at:], strict=False))
            end = at + sum(1 for _ in alike)
            while end > at + self.need and end < len(data) and data[end] & 0xC0 == 0x80:
                end -= 1
            data = data[:at] + self.mask + data[end:]
            at = data.find(self.form[: self.need], at + len(self.mask))
        return data


def _forms(value: str) -> Iterator[bytes]:
    """In what shapes a value may come to be printed."""
    whole = value.strip()
    lines = [line.strip() for line in whole.splitlines()]
    for text in (whole, *(line for line in lines if len(lines) > 1 and len(line) >= _SHORTEST_PART)):
        yield text.encode()
        yield quote(text, safe="").encode()
        yield json.dumps(text)[1:-1].encode()  # as in a document or in Python's own representation
        yield repr(text)[1:-1].encode()
        yield " ".join(text.split()).encode()  # as in an error told in one line
    for data in {value.encode(), whole.encode()}:
        yield from (data.hex().encode(), data.hex().upper().encode())
        yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[bytes]:
    """The value alone, and what is the same wherever it stands in a longer text, such as ``user:password``."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).rstrip(b"=")
        for before in range(3):
            usable = len(data) - (before + len(data)) % 3
            core = encode(b"\0" * before + data[:usable])[(0, 2, 3)[before] :] if usable > 0 else b""
            if len(core) >= _SHORTEST_PART:
                yield core
