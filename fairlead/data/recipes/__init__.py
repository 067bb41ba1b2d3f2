"""Recipes: declared preprocessing steps, fitted once on the training part and replayed on any data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.data.recipes.anomalies import Flag
    from fairlead.data.recipes.categories import Encode
    from fairlead.data.recipes.column_assembly import Assemble, Select
    from fairlead.data.recipes.images import Image
    from fairlead.data.recipes.lengths import Pad
    from fairlead.data.recipes.numbers import Impute, Normalise
    from fairlead.data.recipes.recipe import FittedRecipe, Recipe
    from fairlead.data.recipes.texts import Tokenise

_ROOM = "fairlead.data.recipes."
_HOMES = {
    "Assemble": "column_assembly", "Encode": "categories", "FittedRecipe": "recipe", "Flag": "anomalies",
    "Image": "images",
    "Impute": "numbers", "Normalise": "numbers", "Pad": "lengths", "Recipe": "recipe", "Select": "column_assembly",
    "Tokenise": "texts",
}  # fmt: skip

__all__ = [
    "Assemble", "Encode", "FittedRecipe", "Flag", "Image", "Impute", "Normalise", "Pad", "Recipe", "Select",
    "Tokenise",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead.data.recipes' has no attribute {name!r}")
    return getattr(import_module(_ROOM + _HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
