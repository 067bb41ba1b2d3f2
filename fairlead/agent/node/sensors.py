"""Temperature and power of the machine, where its kernel tells them; a virtual node has those of the machine below."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "FAIRLEAD_SENSORS"
"""Names another folder than SYSTEM, as where the readings of a management controller are put. What lies in a folder
named after the node is that node's alone."""

SYSTEM = Path("/sys/class")
READ_EVERY_S = 5.0


class Sensors:
    """Reads now and then, and remembers: neither changes within seconds, and reading may ask the firmware."""

    def __init__(self, folder: Path = SYSTEM) -> None:
        self._thermal, self._chips, self._power = folder / "thermal", folder / "hwmon", folder / "powercap"
        self._read_s = -READ_EVERY_S
        self._energy: dict[Path, int] = {}
        self.temperature_c: float | None = None
        self.power_w: float | None = None

    @classmethod
    def of(cls, node: str) -> Sensors:
        """Those of this node: its own, or else the machine's."""
        folder = Path(os.environ.get(VARIABLE) or SYSTEM)
        return cls(folder / node if (folder / node).is_dir() else folder)

    def read(self, now_s: float | None = None) -> tuple[float | None, float | None]:
        """The hottest zone or chip in degrees, and the watts of all processor packages since the last reading."""
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
        credible = [degree for degree in degrees if 0 < degree < 150]  # some zones say nonsense when they are off
        return max(credible, default=None)

    def _watts(self, elapsed_s: float) -> float | None:
        # Packages are intel-rapl:0, intel-rapl:1, ...; what lies in them (intel-rapl:0:0) is part of them.
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
    except (OSError, ValueError):  # not there, not for us to read, or not told at the moment
        return None
