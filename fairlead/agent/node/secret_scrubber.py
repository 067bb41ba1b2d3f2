"""Removes secrets from a worker's output and messages before they are logged or forwarded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar
from urllib.parse import quote

import msgspec

from fairlead.agent.node.multi_match import MultiMatch, lookup_prefix
from fairlead.specs import SHORTEST_SECRET

_SHORTEST_PART = 12  # of a line or base64 core; shorter ones would match by chance
_MOST_LOOKED_AT = 1 << 30  # bytes to search in one message over all forms: about one second
_MOST_TRIES = 1000  # for self-repeating values, which no real secret is

M = TypeVar("M", bound=msgspec.Struct)


class TooCostly(ValueError):
    """A message contains so many possible secrets that searching it would take too long."""


class Scrubber:
    """Replaces each value by ``***NAME***``, also when split between chunks, quoted, in base64 or in hex.

    It catches accidents: a job that wants to reveal its own secret can always encode it in another way.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            for form in _forms(value):
                forms.setdefault(form, f"***{name}***".encode())
        # Longest first, so that a whole value is replaced before its parts.
        self._forms = dict(sorted(forms.items(), key=lambda item: -len(item[0])))
        self._places = {form: place for place, form in enumerate(self._forms)}
        self._whole = MultiMatch(self._forms)
        self._halves = {
            form: half for form, mask in self._forms.items() if (half := _Partial.of(form, mask)) is not None
        }
        self._parts: dict[bytes, list[_Partial]] = {}  # by the prefix or suffix that must occur
        for half in self._halves.values():
            for part in {half.form[: half.need], half.form[-half.need :]}:
                self._parts.setdefault(part, []).append(half)
        self._half = MultiMatch(self._parts)
        self._begun_short = {form[:size] for form in self._forms for size in range(1, len(lookup_prefix(form)))}
        self._longest = max(map(len, forms), default=0)
        self._held = b""  # end of the input in which a secret may begin

    def __bool__(self) -> bool:
        return bool(self._forms)

    def feed(self, data: bytes) -> bytes:
        """The output that is safe to write; a possible begin of a secret is held back."""
        return self._replace_complete(self._held + data) if self._forms else data

    def _replace_complete(self, data: bytes) -> bytes:
        """Replace all secrets that begin before the part that must be held back."""
        done: list[bytes] = []
        while True:
            begins = len(data) - self._pending_bytes(data)
            ready, self._held = data[:begins], data[begins:]
            for form, mask in self._possible_forms(data):
                ready = ready.replace(form, mask)
                near = ready[max(0, len(ready) - len(form) + 1) :]
                across = (near + self._held[: len(form) - 1]).find(form)
                if across >= 0:  # a secret that reaches into the held part
                    across += len(ready) - len(near)
                    done += (self._replace_forms(ready[:across]), mask)
                    data = self._held[across + len(form) - len(ready) :]
                    break
            else:
                return b"".join([*done, ready])

    def finish(self) -> bytes:
        """The held back rest at the end of the input, masked if it is long enough to reveal a secret."""
        held, self._held = self._held, b""
        if len(held) < SHORTEST_SECRET:
            return held
        return next((mask for form, mask in self._forms.items() if form.startswith(held)), b"***")

    def text(self, text: str) -> str:
        """The text without secrets, including secrets that were truncated when the message was shortened."""
        data = text.encode("utf-8", "surrogatepass")
        return self._clean(text, self._possible_forms(data), self._possible_partials(data))

    def message(self, message: M) -> M:
        """The message without secrets in any text; the same object when it has none. Raises TooCostly."""
        if not self._forms:
            return message
        packed = msgspec.msgpack.encode(message)
        forms, halves = self._possible_forms(packed), self._possible_partials(packed)
        if (len(forms) + len(halves)) * len(packed) > _MOST_LOOKED_AT:
            raise TooCostly(f"a message of {len(packed)} bytes with too many possible secrets")
        forms = [(form, mask) for form, mask in forms if form in packed]
        halves = [half for half in halves if half.within(packed)]
        if not forms and not halves:
            return message
        return msgspec.convert(self._clean_value(msgspec.to_builtins(message), forms, halves), type(message))

    def _clean_value(self, value: object, forms: list[tuple[bytes, bytes]], halves: list[_Partial]) -> object:
        if isinstance(value, str):
            return self._clean(value, forms, halves)
        if isinstance(value, dict):
            return {
                self._clean_value(key, forms, halves): self._clean_value(part, forms, halves)
                for key, part in value.items()
            }
        if isinstance(value, list):
            return [self._clean_value(part, forms, halves) for part in value]
        return value

    def _clean(self, text: str, forms: list[tuple[bytes, bytes]], halves: list[_Partial]) -> str:
        data = text.encode("utf-8", "surrogatepass")
        for form, mask in forms:
            data = data.replace(form, mask)
        for half in halves:
            data = half.replaced(data)
        return data.decode("utf-8", "surrogatepass")

    def _replace_forms(self, data: bytes) -> bytes:
        for form, mask in self._possible_forms(data):
            data = data.replace(form, mask)
        return data

    def _possible_forms(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The forms that may occur in the data, longest first."""
        return [
            (form, self._forms[form]) for form in sorted(self._whole.candidates(data), key=self._places.__getitem__)
        ]

    def _possible_partials(self, data: bytes) -> list[_Partial]:
        found = {half.form for part in self._half.candidates(data) for half in self._parts[part]}
        return [self._halves[form] for form in sorted(found, key=self._places.__getitem__)]

    def _pending_bytes(self, data: bytes) -> int:
        """How many of the last bytes may be the begin of a secret."""
        tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        most = max((size for size in range(1, min(8, len(tail) + 1)) if tail[-size:] in self._begun_short), default=0)
        for form in self._whole.candidates(tail):
            first = lookup_prefix(form)
            place = tail.find(first, max(0, len(tail) - len(form) + 1))
            while 0 <= place < len(tail) - most:
                if form.startswith(tail[place:]):
                    most = len(tail) - place
                    break
                place = tail.find(first, place + 1)
        return most


@dataclass(frozen=True, slots=True)
class _Partial:
    """A truncated secret: at least ``need`` bytes of its begin or end, which already reveal too much."""

    form: bytes
    mask: bytes
    need: int

    @classmethod
    def of(cls, form: bytes, mask: bytes) -> _Partial | None:
        need = max(_SHORTEST_PART, (len(form) + 1) // 2)
        while need < len(form) and form[need] & 0xC0 == 0x80:  # not inside a UTF-8 character
            need += 1
        return cls(form, mask, need) if need < len(form) else None

    def within(self, data: bytes) -> bool:
        return self.form[: self.need] in data or self.form[-self.need :] in data

    def replaced(self, data: bytes) -> bytes:
        """The data with its begin replaced anywhere, and its end at the begin of the data."""
        if size := self._ending(data):
            data = self.mask + data[size:]
        told: list[bytes] = []
        done, at = 0, data.find(self.form[: self.need])
        while at >= 0:
            here = data[at : at + len(self.form)]
            end = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.form, here, strict=False)))
            while end > at + self.need and end < len(data) and data[end] & 0xC0 == 0x80:
                end -= 1
            told += (data[done:at], self.mask)
            done, at = end, data.find(self.form[: self.need], end)
        return b"".join([*told, data[done:]])

    def _ending(self, data: bytes) -> int:
        """How many of the first bytes are the end of the secret; 0 if fewer than ``need``."""
        first = data[: self.need]
        place = self.form.find(first, 1) if len(first) == self.need else -1
        for _ in range(_MOST_TRIES):
            if place < 0:
                break
            if data.startswith(self.form[place:]):
                return len(self.form) - place
            place = self.form.find(first, place + 1)
        return 0


def _forms(value: str) -> Iterator[bytes]:
    """The encodings in which a value may be printed."""
    whole = value.strip()
    lines = [line.strip() for line in whole.splitlines()]
    for text in (whole, *(line for line in lines if len(lines) > 1 and len(line) >= _SHORTEST_PART)):
        yield text.encode()
        yield quote(text, safe="").encode()
        yield json.dumps(text)[1:-1].encode()  # as in JSON; repr() below
        yield repr(text)[1:-1].encode()
        yield " ".join(text.split()).encode()  # as in an error on one line
    for data in {value.encode(), whole.encode()}:
        yield from (data.hex().encode(), data.hex().upper().encode())
        yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[bytes]:
    """Base64 of the value alone, and the part that is the same inside a longer text such as ``user:password``."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).rstrip(b"=")
        for before in range(3):
            usable = len(data) - (before + len(data)) % 3
            core = encode(b"\0" * before + data[:usable])[(0, 2, 3)[before] :] if usable > 0 else b""
            if len(core) >= _SHORTEST_PART:
                yield core
