"""Reads, profiles, prepares and versions data sets. Public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.data.dataset_refs import dataset
    from fairlead.data.errors import BadData
    from fairlead.data.manifest import Manifest, SchemaChanged
    from fairlead.data.partitioning import partition
    from fairlead.data.preparation import fit_and_prepare, prepare
    from fairlead.data.reading import read
    from fairlead.data.recipes.recipe import FittedRecipe, Recipe
    from fairlead.data.source import Source
    from fairlead.data.train_test_split import Part, split

_HOMES = {
    "BadData": "fairlead.data.errors",
    "FittedRecipe": "fairlead.data.recipes.recipe",
    "Manifest": "fairlead.data.manifest",
    "Part": "fairlead.data.train_test_split",
    "Recipe": "fairlead.data.recipes.recipe",
    "SchemaChanged": "fairlead.data.manifest",
    "Source": "fairlead.data.source",
    "dataset": "fairlead.data.dataset_refs",
    "fit_and_prepare": "fairlead.data.preparation",
    "partition": "fairlead.data.partitioning",
    "prepare": "fairlead.data.preparation",
    "read": "fairlead.data.reading",
    "split": "fairlead.data.train_test_split",
}

__all__ = [
    "BadData", "FittedRecipe", "Manifest", "Part", "Recipe", "SchemaChanged", "Source", "dataset", "fit_and_prepare",
    "partition", "prepare", "read", "split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
