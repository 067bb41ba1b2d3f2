"""Draws the rendezvous of a generation: where its ranks meet, stored once, the same for every rank and retry."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field

from fairlead.control.records import Generation

FIRST_PORT, PORTS = 16_384, 16_384
"""Below the ephemeral ports, so that no outgoing connection occupies one."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A name in the job's own folder, and a port on the machine of rank 0 for ranks that meet over the network.

    Ranks authenticate there by the secret, which only the members get.
    """

    name: str
    port: int
    address: str = "127.0.0.1"
    secret: str = field(default="", repr=False)  # empty: stored by an older version

    def __str__(self) -> str:
        return f"{self.name} {self.address}:{self.port} {self.secret}".rstrip()

    @classmethod
    def parse(cls, stored: str | None) -> Rendezvous | None:
        """Parse the stored form; None for a generation of an older version, which met at a file of its own."""
        name, _, rest = (stored or "").partition(" ")
        place, _, secret = rest.partition(" ")
        address, _, port = place.rpartition(":")
        return cls(name, int(port), address, secret) if port.isdigit() else None


def draw_rendezvous(
    job: str, generation: int, created_s: float, taken: Collection[int] = (), secret: str = ""
) -> Rendezvous:
    """The rendezvous of this generation, at a port not ``taken`` by another live generation.

    The name holds the time: a restored store counts generations again, and must not meet files of the first time.
    """
    first = zlib.crc32(f"{job}/{generation}".encode())
    ports = (FIRST_PORT + (first + step) % PORTS for step in range(PORTS))
    free = next(port for port in ports if port not in taken)
    return Rendezvous(f"generation-{generation}-{int(1000 * created_s):x}", free, secret=secret)


def rendezvous_of(generation: Generation) -> Rendezvous:
    """The stored rendezvous of a generation; drawn anew for one that an older version stored."""
    stored = Rendezvous.parse(generation.rendezvous)
    return stored or draw_rendezvous(generation.job, generation.number, generation.created_s)
