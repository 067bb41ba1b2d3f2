"""Speed curves: how fast a job would run on so many devices of a type, near each other or far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NEAR, FAR = 0, 1
"""The widest topology level that a gang crosses: all on one node, or over several."""


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Units of work per second for each gang that the job could be given.

    ``speeds[type][level][i]`` belongs to a gang of ``sizes[i]`` devices; 0 where it cannot run so. One object is shared
    by all jobs of the same shape, so that a policy may work per shape and not per job.
    """

    sizes: tuple[int, ...]  # ascending
    speeds: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]

    def speed(self, device_type: str, size: int, level: int = NEAR) -> float:
        """Of this very gang; 0 when the curve does not know it."""
        levels = self.speeds.get(device_type)
        if levels is None or size not in self.sizes:
            return 0.0
        return levels[level][self.sizes.index(size)]

    def fastest(self, size: int | None = None) -> float:
        """On the best devices there are: of gangs of one size, or of any."""
        wanted = range(len(self.sizes)) if size is None else [self.sizes.index(size)]
        known = [level[i] for levels in self.speeds.values() for level in levels for i in wanted]
        return max(known, default=0.0)
