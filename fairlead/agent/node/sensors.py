"""Reads temperature and power from sysfs; virtual nodes report those of their machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "FAIRLEAD_SENSORS"
"""Names a folder to read instead of SYSTEM, for example readings of a management controller. A sub-folder
named after a node applies to that node only."""

SYSTEM = Path("/sys/class")
READ_EVERY_S = 5.0


class Sensors:
    """Caches readings for READ_EVERY_S: they change slowly, and reading may query the firmware."""

    def __init__(self, folder: Path = SYSTEM) -> None:
        self._thermal, self._chips, self._power = folder / "thermal", folder / "hwmon", folder / "powercap"
        self._read_s = -READ_EVERY_S
        self._energy: dict[Path, int] = {}
        self.temperature_c: float | None = None
        self.power_w: float | None = None

    @classmethod
    def of(cls, node: str) -> Sensors:
        """The sensors of this node, or else of the machine."""
        folder = Path(os.environ.get(VARIABLE) or SYSTEM)
        return cls(folder / node if (folder / node).is_dir() else folder)

    def read(self, now_s: float | None = None) -> tuple[float | None, float | None]:
        """The highest temperature in °C, and the mean watts of all cpu packages since the last reading."""
        now_s = time.monotonic() if now_s is None else now_s
        elapsed_s = now_s - self._read_s
        if elapsed_s >= READ_EVERY_S:
            self._read_s = now_s
            self.temperature_c = self._hottest()
            self.power_w = self._watts(elapsed_s)
        return self.temperature_c, self.power_w

    def _hottest(self) -> float | None:
        places = (*self._thermal.glob("thermal_zone*/temp"), *self._chips.glob("hwmon*/temp*_input"))
        readings = (_number(place) for place in places)
        degrees = [reading / 1000 for reading in readings if reading is not None]
        credible = [degree for degree in degrees if 0 < degree < 150]  # zones that are off report nonsense
        return max(credible, default=None)

    def _watts(self, elapsed_s: float) -> float | None:
        # Packages are intel-rapl:0, intel-rapl:1, ...; sub-domains (intel-rapl:0:0) are included in them.
        packages = [folder for folder in self._power.glob("*-rapl:*") if folder.name.count(":") == 1]
        before, self._energy = self._energy, {}
        joules = 0.0
        for package in packages:
            energy = _number(package / "energy_uj")
            if energy is None:
                continue
            self._energy[package] = energy
            wraps_at = _number(package / "max_energy_range_uj") or 0
            used = energy - before.get(package, energy)
            joules += (used if used >= 0 else used + wraps_at) / 1e6
        known = before.keys() & self._energy.keys()
        return joules / elapsed_s if known else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # missing, unreadable or empty
        return None
