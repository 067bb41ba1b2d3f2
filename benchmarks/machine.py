"""What a measurement depends on besides the code: the machine, its load, and the versions in use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Cores, memory, processor, kernel, and how busy the machine is before the measurement adds to it."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Python's and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
