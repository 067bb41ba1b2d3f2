"""The demonstration's tenants and jobs, and the data sets that they use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOBS_FOLDER = Path(__file__).parent / "jobs"
"""The submitted folder: plain user code that does not know this demonstration."""


def granted_folders() -> list[str]:
    """The folders that tenants may read: FAIRLEAD_DATA, if it exists."""
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
    """A data set: its folder below FAIRLEAD_DATA, its name, and the name of its replacement."""

    place: str
    name: str
    instead: str

    def available(self) -> bool:
        folder = os.environ.get("FAIRLEAD_DATA")
        return bool(folder) and (Path(str(folder)) / self.place).exists()

    def name_in_use(self) -> str:
        return self.name if self.available() else self.instead


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job and its tenant, with parameters for the real data (``params``) and for the bundled ones."""

    name: str
    tenant: str
    what: str
    data: Data
    run: str | None = None
    command: tuple[str, ...] | None = None
    workers: str = "1"
    priority: int = 0
    when_busy: bool = False  # submitted once all trainings are running
    params: Mapping[str, Any] = field(default_factory=dict)
    bundled: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, scale: float) -> dict[str, Any]:
        """The job as a spec for the SDK; ``scale`` shortens the training."""
        common = {"name": self.name, "workers": self.workers, "priority": self.priority}
        if self.command is not None:
            return {**common, "command": list(self.command)}
        params = dict(self.params if self.data.available() else self.bundled)
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

JOBS = (
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
    DemoJob("calls", "marketing", "a plain command", BANK, command=("python", "calls.py"), priority=10, when_busy=True),
)  # fmt: skip

QUICK_SCALE = 0.3
"""The part of the epochs that ``--quick`` trains."""


def data_summary() -> str:
    """One sentence that says which data are used and why."""
    folder = os.environ.get("FAIRLEAD_DATA")
    missing = {work.data.name for work in JOBS if not work.data.available()}
    if not missing:
        return f"data: Bank Marketing, CIFAR-10 and IMDB from FAIRLEAD_DATA ({folder})"
    why = f"{', '.join(sorted(missing))} not in FAIRLEAD_DATA ({folder})" if folder else "FAIRLEAD_DATA is not set"
    return f"data: {why}, so scikit-learn's bundled data sets are used instead"
