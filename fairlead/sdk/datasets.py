"""Data sets and lineage in Python: the client's verbs for what was loaded, and what came of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlead.views.datasets import DataSetDetail, DataSetView, LineageView, RerunView
from fairlead.views.jobs import JobDetail, TenantView

if TYPE_CHECKING:
    from fairlead.sdk.jobs import Job
    from fairlead.sdk.requests import Request
    from fairlead.sdk.transport import Transport


class DataVerbs:
    """The part of the client that is about data."""

    _wire: Transport

    def _submit_request(self, request: Request, key: str | None = None) -> Job:
        raise NotImplementedError

    def load_data(
        self, source: str | Path, name: str, *, recipe: Any = None, target: str | None = None, test: float = 0.0,
        workers: int = 0, like: str | None = None, tenant: str | None = None, memory: str | None = None, **how: Any,
    ) -> Job:  # fmt: skip
        """The job that loads a file, folder or database as a data set; a version exists when it has succeeded.

        ``recipe`` is a YAML file, a mapping or a Recipe, fitted on what is loaded; with ``like`` the fitted recipe of
        another data set is replayed instead. ``test`` puts that part of the rows into ``NAME-test``, unseen by the
        recipe. ``memory`` ("1GB") bounds the job. ``how`` is said to the reader: ``format``, ``query``, ...
        """
        from fairlead.sdk.dataset_loads import loading

        params = {"target": target, "test": test or None, "workers": workers or None, "like": like, "how": how or None}
        read = [like] if like is not None else []
        return self._submit_request(loading(
            source, name, recipe=recipe, tenant=tenant, data=read, folders=self._granted(tenant), memory=memory,
            **params,
        ))  # fmt: skip

    def sync_data(self, name: str, *, source: str | Path | None = None, tenant: str | None = None) -> Job:
        """The job that appends what has come since to a data set, from where it was read the last time."""
        from fairlead.sdk.dataset_loads import loading

        known = self.dataset(name, tenant=tenant)
        loaded = JobDetail.model_validate(self._wire.call("GET", f"/jobs/{quote(known.job, safe='')}"))
        params = dict(loaded.spec.get("params", {}))
        place = source or params.get("local") or params["source"]
        memory = loaded.spec.get("resources", {}).get("memory")
        how = {"workers": params.get("workers"), "how": params.get("how"), "append": True, "memory": memory}
        return self._submit_request(loading(
            place, name, tenant=tenant, data=[f"{name}@{known.version}"], folders=self._granted(tenant), **how
        ))  # fmt: skip

    def _granted(self, tenant: str | None) -> list[str]:
        """The folders that the tenant's sandbox sees."""
        found = [TenantView.model_validate(each) for each in self._wire.call("GET", "/tenants")]
        own = [each for each in found if tenant is None or each.name == tenant]
        return list(own[0].policy.get("folders", [])) if len(own) == 1 else []

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
        return RerunView.model_validate(self._wire.call("POST", f"/jobs/{quote(ref, safe='')}/rerun", headers=headers))


def _place(name: str) -> str:
    return f"/datasets/{quote(name, safe='')}"
