"""References to stored data sets by name, which a Training uses instead of tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import InvalidSpec

DATA_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?(@[0-9a-f]{6,64})?$"
"""Copy of the pattern in specs, which a Training does not import; a test keeps the two equal."""


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A data set of the tenant, read by workers from the grid."""

    name: str
    version: str | None = None  # or a prefix of it; None: the latest when the job was submitted
    features: tuple[str, ...] = ()  # columns passed to the model; empty: all but the target
    target: str | None = None  # None: the target of the recipe

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def dataset(
    name: str, version: str | None = None, *, features: str | Sequence[str] = (), target: str | None = None
) -> DatasetRef:
    """Refer to a data set as ``"bank"`` or ``"bank@3f2a9c"``, optionally with a choice of columns."""
    check_dataset_ref(name)
    own, _, meant = name.partition("@")
    wanted = (features,) if isinstance(features, str) else tuple(features)
    return DatasetRef(own, version or meant or None, wanted, target)


def check_dataset_ref(name: str, field: str = "data") -> None:
    """Refuse a value that is not a valid data set reference; ``field`` names where it stands."""
    if not isinstance(name, str) or not re.match(DATA_PATTERN, name):
        raise InvalidSpec(f"{name!r} is not a data set name", field=field, value=str(name)[:80],
                          fix="write its name, such as bank, or one of its versions, such as bank@3f2a9c")  # fmt: skip
