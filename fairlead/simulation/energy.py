"""How much power devices draw: busy and idle watts per type, from their makers' data sheets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BUSY_W: Mapping[str, float] = {
    "k80": 150.0, "p100": 250.0, "v100": 300.0, "t4": 70.0, "a100": 400.0, "h100": 700.0, "rtx2080ti": 250.0,
    "cpu": 10.0,
}  # fmt: skip
OTHER_BUSY_W = 250.0
IDLE = 0.15
"""Of the busy power, what a device draws that waits for work."""


def busy_w(device_type: str) -> float:
    return BUSY_W.get(device_type.lower(), OTHER_BUSY_W)


def energy_kwh(devices: Mapping[str, int], served_s: Mapping[str, float], span_s: float) -> float:
    """For a span of time, from the device seconds served by type: the rest of the devices' time they idle."""
    joules = 0.0
    for device_type in _both(devices, served_s):
        busy_s = served_s.get(device_type, 0.0)
        idle_s = max(0.0, devices.get(device_type, 0) * span_s - busy_s)
        joules += busy_w(device_type) * (busy_s + IDLE * idle_s)
    return joules / 3.6e6


def _both(left: Iterable[str], right: Iterable[str]) -> list[str]:
    return sorted({*left, *right})
