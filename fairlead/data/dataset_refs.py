"""Data sets by name: what a Training says instead of handing tensors over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import InvalidSpec

DATA_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?(@[0-9a-f]{6,64})?$"
"""As specs have it, which load more than a Training should have to; a test holds them together."""


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A data set of the tenant's, which workers find in the grid."""

    name: str
    version: str | None = None  # or its beginning; None: as it was when the job was handed in
    features: tuple[str, ...] = ()  # what the model is called with; empty: all but the target
    target: str | None = None  # None: as the recipe says

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def dataset(
    name: str, version: str | None = None, *, features: str | Sequence[str] = (), target: str | None = None
) -> DatasetRef:
    """A data set by its name, ``"bank"`` or ``"bank@3f2a9c"``, with the columns that are wanted of it."""
    check_dataset_ref(name)
    own, _, meant = name.partition("@")
    wanted = (features,) if isinstance(features, str) else tuple(features)
    return DatasetRef(own, version or meant or None, wanted, target)


def check_dataset_ref(name: str, field: str = "data") -> None:
    """Refuse what cannot be the name of a data set, wherever it stands."""
    if not isinstance(name, str) or not re.match(DATA_PATTERN, name):
        raise InvalidSpec(f"{name!r} is no data set", field=field, value=str(name)[:80],
                          fix="write its name, such as bank, or one of its versions, such as bank@3f2a9c")  # fmt: skip
