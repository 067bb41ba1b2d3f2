"""Defines speed curves: a job's speed by device type, gang size and topology level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEAR, FAR = 0, 1
"""The widest topology level that a gang crosses: all on one node, or over several.

A curve may have more levels: 0 is one node, 1 the narrowest domain around it (a rack), 2 the next wider one (a zone),
and so on; its last level holds for all wider domains.
"""

BOUND = 0.99
"""A gang that keeps more than this part of its speed over several nodes is indifferent to its place."""

BANDWIDTH: tuple[float, ...] = (32e9, 12.5e9, 3.1e9, 0.6e9)
"""Bytes per second and device within a node (PCIe 4.0 x16), a rack (100 Gb/s), a zone (25 Gb/s), and beyond (5 Gb/s):
for clusters that do not say otherwise."""


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Units of work per second for each gang that the job could be given.

    ``speeds[type][level][i]`` belongs to a gang of ``sizes[i]`` devices; 0 where it cannot run so. One object is shared
    by all jobs of the same shape, so that a policy may work per shape and not per job.
    """

    sizes: tuple[int, ...]  # ascending
    speeds: Mapping[str, tuple[tuple[float, ...], ...]]
    levels: int = field(init=False, repr=False, compare=False)  # its topology levels, the same for all types
    _fastest: dict[int | None, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _exchanges: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _running: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", len(next(iter(self.speeds.values()), ())))  # read for every job

    def speed(self, device_type: str, size: int, level: int = NEAR) -> float:
        """Speed of exactly this gang; 0 if the curve does not know it."""
        levels = self.speeds.get(device_type)
        if levels is None or size not in self.sizes:
            return 0.0
        return levels[min(level, len(levels) - 1)][self.sizes.index(size)]

    def over(self, device_type: str, size: int, levels: int) -> list[float]:
        """Speeds of exactly this gang at the first ``levels`` levels."""
        rows = self.speeds.get(device_type, ())
        if not rows or size not in self.sizes:
            return [0.0] * levels
        at = self.sizes.index(size)
        return [row[at] for row in rows[:levels]] + [rows[-1][at]] * (levels - len(rows))

    def exchanges(self, device_type: str) -> bool:
        """Whether a gang loses speed over several nodes."""
        found = self._exchanges.get(device_type)
        if found is None:
            rows = self.speeds.get(device_type, ())
            pairs = zip(rows[NEAR], rows[-1], strict=True) if len(rows) > FAR else ()
            found = self._exchanges[device_type] = any(0 < far < BOUND * near for near, far in pairs)
        return found

    def fastest(self, size: int | None = None) -> float:
        """Speed on the best device type, at one size or at any; 0 if the curve does not know it."""
        if not self._fastest:
            rows = [level for levels in self.speeds.values() for level in levels if level]
            self._fastest.update(zip(self.sizes, map(max, zip(*rows, strict=False)), strict=False))
            self._fastest[None] = max(self._fastest.values(), default=0.0)
        return self._fastest.get(size, 0.0)

    @property
    def running(self) -> list[int]:
        """The sizes at which it runs on some type, ascending."""
        if not self._running:
            self._running.extend(size for size in self.sizes if self.fastest(size) > 0)
        return self._running


def widened(curve: SpeedCurve, bandwidth: Sequence[float] = BANDWIDTH) -> SpeedCurve:
    """The curve extended to as many levels as there are bandwidths, from its speeds on one node and several.

    A step has compute time and communication time, which grows as bandwidth falls. Two levels give both:
    ``time(level) = compute + bytes / bandwidth(level)``. A curve with one level stays as it is.
    """
    wide = {name: _widened(levels, bandwidth) for name, levels in curve.speeds.items()}
    return SpeedCurve(curve.sizes, wide)


def _widened(levels: tuple[tuple[float, ...], ...], bandwidth: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    if len(levels) != FAR + 1 or len(bandwidth) <= len(levels):
        return levels
    slower = 1.0 / bandwidth[FAR] - 1.0 / bandwidth[NEAR]
    further = []
    for wider in bandwidth[FAR + 1 :]:
        row = []
        for near, far in zip(*levels, strict=True):
            exchanged = max(0.0, 1.0 / far - 1.0 / near) / slower if near > 0 and far > 0 and slower > 0 else 0.0
            row.append(1.0 / (1.0 / far + exchanged * (1.0 / wider - 1.0 / bandwidth[FAR])) if far > 0 else 0.0)
        further.append(tuple(row))
    return (*levels, *further)
