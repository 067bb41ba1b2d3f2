"""Fairlead: one shared training cluster in a Python package. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.pipelines.declarations import pipeline, stage
    from fairlead.sdk.client import Client, Job
    from fairlead.specs import JobSpec, TenantSpec
    from fairlead.training.definition import Training

    __version__: str

__all__ = ["Client", "Job", "JobSpec", "TenantSpec", "Training", "__version__", "pipeline", "stage"]

_HOMES = {
    "Client": "fairlead.sdk.client",
    "Job": "fairlead.sdk.client",
    "JobSpec": "fairlead.specs",
    "TenantSpec": "fairlead.specs",
    "Training": "fairlead.training.definition",
    "pipeline": "fairlead.pipelines.declarations",
    "stage": "fairlead.pipelines.declarations",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("fairlead")
    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
