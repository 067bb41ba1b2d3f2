"""Who takes part in the demonstration: tenants, their jobs, how much work each is, and on which data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
"""The folder that is submitted: plain user code that knows nothing of this demonstration."""


def granted() -> list[str]:
    """The folders that the tenants may read: that of the data, if there is one."""
    folder = os.environ.get("FAIRLEAD_DATA")
    return [str(Path(folder).absolute())] if folder and Path(folder).is_dir() else []


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    weight: float
    sla: Mapping[str, Any]
    color: str


@dataclass(frozen=True, slots=True)
class Data:
    """A data set: where it lies below FAIRLEAD_DATA, what it is called, and what is used when it is not there."""

    place: str
    name: str
    instead: str

    def here(self) -> bool:
        folder = os.environ.get("FAIRLEAD_DATA")
        return bool(folder) and (Path(str(folder)) / self.place).exists()

    def used(self) -> str:
        return self.name if self.here() else self.instead


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job: what is submitted for whom, with parameters for the real data and for the bundled ones."""

    name: str
    tenant: str
    what: str
    data: Data
    run: str | None = None
    command: tuple[str, ...] | None = None
    workers: str = "1"
    priority: int = 0
    later: bool = False  # submitted only when everybody is busy
    params: Mapping[str, Any] = field(default_factory=dict)
    bundled: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, scale: float) -> dict[str, Any]:
        """The job as the SDK takes it; ``scale`` shortens the training."""
        common = {"name": self.name, "workers": self.workers, "priority": self.priority}
        if self.command is not None:
            return {**common, "command": list(self.command)}
        params = dict(self.params if self.data.here() else self.bundled)
        params["epochs"] = max(1, round(params["epochs"] * scale))
        return {**common, "run": self.run, "params": params}


TENANTS = (
    Tenant("vision", 3.0, {"deadline": "5m"}, "#3b6fb6"),
    Tenant("reviews", 2.0, {"class": "gold"}, "#e08a3c"),
    Tenant("marketing", 1.0, {"class": "silver"}, "#4b9b6e"),
)

CIFAR = Data("cifar10", "CIFAR-10", "digits")
IMDB = Data("imdb", "IMDB reviews", "digits as words")
BANK = Data("bank_marketing", "Bank Marketing", "breast cancer")

WORK = (
    DemoJob(
        "images", "vision", "a CNN", CIFAR, run="images.py:training", workers="1:4",
        params={"epochs": 16, "images": 4000}, bundled={"epochs": 60, "width": 96},
    ),
    DemoJob(
        "texts", "reviews", "a text classifier", IMDB, run="text.py:training", workers="1:4",
        params={"epochs": 14, "texts": 6000}, bundled={"epochs": 60, "width": 192},
    ),
    DemoJob(
        "clients", "marketing", "an MLP", BANK, run="table.py:training", workers="1:2",
        params={"epochs": 16}, bundled={"epochs": 200, "width": 1024},
    ),
    DemoJob("calls", "marketing", "a plain command", BANK, command=("python", "calls.py"), priority=10, later=True),
)  # fmt: skip

QUICK = 0.3
"""How much of the training ``--quick`` does."""


def about_data() -> str:
    """One sentence that says which data are used, and why."""
    folder = os.environ.get("FAIRLEAD_DATA")
    missing = {work.data.name for work in WORK if not work.data.here()}
    if not missing:
        return f"data: Bank Marketing, CIFAR-10 and IMDB from FAIRLEAD_DATA ({folder})"
    why = f"{', '.join(sorted(missing))} not in FAIRLEAD_DATA ({folder})" if folder else "FAIRLEAD_DATA is not set"
    return f"data: {why}, so scikit-learn's bundled data sets are used instead"
