"""Data sets and lineage in Python: the client's verbs for what was loaded, and what came of it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairlead.dataviews import DataSetDetail, DataSetView, LineageView, RerunView

if TYPE_CHECKING:
    from fairlead.sdk.transport import Transport


class DataVerbs:
    """The part of the client that is about data."""

    _wire: Transport

    def datasets(self, *, tenant: str | None = None) -> list[DataSetView]:
        """The newest version of each data set."""
        found = self._wire.call("GET", "/datasets", params={"tenant": tenant})
        return [DataSetView.model_validate(each) for each in found]

    def dataset(self, name: str, version: str | None = None, *, tenant: str | None = None) -> DataSetDetail:
        """One version, the newest unless another is named, with its manifest and who read it."""
        params = {"version": version, "tenant": tenant}
        return DataSetDetail.model_validate(self._wire.call("GET", _place(name), params=params))

    def drop_dataset(self, name: str, version: str | None = None, *, tenant: str | None = None) -> list[DataSetView]:
        """Forget one version of a data set, or all; returns what was forgotten."""
        params = {"version": version, "tenant": tenant}
        return [DataSetView.model_validate(each) for each in self._wire.call("DELETE", _place(name), params=params)]

    def lineage(self, ref: str) -> LineageView:
        """Where a job's result came from: data, recipe, blocks, code, run, weights."""
        return LineageView.model_validate(self._wire.call("GET", f"/jobs/{quote(ref, safe='')}/lineage"))

    def rerun(self, ref: str, *, key: str | None = None) -> RerunView:
        """Hand the same job in once more; the answer says whether the weights will be the same bit by bit."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return RerunView.model_validate(
            self._wire.call("POST", f"/jobs/{quote(ref, safe='')}/rerun", headers=headers)
        )


def _place(name: str) -> str:
    return f"/datasets/{quote(name, safe='')}"
