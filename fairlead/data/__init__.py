"""Data: what is read, described, prepared and versioned. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.data.faults import BadData
    from fairlead.data.named import dataset
    from fairlead.data.reading import read
    from fairlead.data.source import Source

_HOMES = {
    "BadData": "fairlead.data.faults",
    "Source": "fairlead.data.source",
    "dataset": "fairlead.data.named",
    "read": "fairlead.data.reading",
}

__all__ = ["BadData", "Source", "dataset", "read"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
