"""Where the ranks of one generation meet: drawn once, stored with the generation, the same for every rank and retry."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field

from fairlead.control.records import Generation

FIRST_PORT, PORTS = 16_384, 16_384
"""Below the ports that systems give to outgoing connections, so that none of those is in the way."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A name in the job's own folder, and a port on the machine of rank 0 for ranks that meet over the network.

    There they meet under the secret, which nobody but the members is told.
    """

    name: str
    port: int
    address: str = "127.0.0.1"
    secret: str = field(default="", repr=False)  # empty: of an older version

    def __str__(self) -> str:
        return f"{self.name} {self.address}:{self.port} {self.secret}".rstrip()

    @classmethod
    def parse(cls, stored: str | None) -> Rendezvous | None:
        """As it was stored; None for a generation of an older version, which met at a file of its own."""
        name, _, rest = (stored or "").partition(" ")
        place, _, secret = rest.partition(" ")
        address, _, port = place.rpartition(":")
        return cls(name, int(port), address, secret) if port.isdigit() else None


def draw(job: str, generation: int, created_s: float, taken: Collection[int] = (), secret: str = "") -> Rendezvous:
    """The rendezvous of this generation, at a port that is not ``taken`` by another live generation.

    The name holds the time: a store that was restored counts generations again, and must meet no file of the first.
    """
    first = zlib.crc32(f"{job}/{generation}".encode())
    ports = (FIRST_PORT + (first + step) % PORTS for step in range(PORTS))
    free = next(port for port in ports if port not in taken)
    return Rendezvous(f"generation-{generation}-{int(1000 * created_s):x}", free, secret=secret)


def point_of(generation: Generation) -> Rendezvous:
    """Where its ranks meet: as it was stored, or as an older version would have it drawn now."""
    stored = Rendezvous.parse(generation.rendezvous)
    return stored or draw(generation.job, generation.number, generation.created_s)
