"""Where the ranks of one generation meet: drawn once, stored with the generation, the same for every rank and retry."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass

FIRST_PORT, PORTS = 16_384, 16_384
"""Below the ports that systems give to outgoing connections, so that none of those is in the way."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A name in the job's own folder, and a port on the machine of rank 0 for ranks that meet over the network."""

    name: str
    port: int
    address: str = "127.0.0.1"

    def __str__(self) -> str:
        return f"{self.name} {self.address}:{self.port}"

    @classmethod
    def parse(cls, stored: str | None) -> Rendezvous | None:
        """As it was stored; None for a generation of an older version, which met at a file of its own."""
        name, _, place = (stored or "").partition(" ")
        address, _, port = place.rpartition(":")
        return cls(name, int(port), address) if port.isdigit() else None


def draw(job: str, generation: int, created_s: float, taken: Collection[int] = ()) -> Rendezvous:
    """The rendezvous of this generation, at a port that is not ``taken`` by another live generation.

    The name holds the time: a store that was restored counts generations again, and must meet no file of the first.
    """
    first = zlib.crc32(f"{job}/{generation}".encode())
    ports = (FIRST_PORT + (first + step) % PORTS for step in range(PORTS))
    free = next(port for port in ports if port not in taken)
    return Rendezvous(f"generation-{generation}-{int(1000 * created_s):x}", free)
