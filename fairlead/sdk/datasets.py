"""The client's verbs for data sets, lineage and reruns."""

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
    """The client's verbs for data sets, lineage and reruns."""

    _wire: Transport

    def _submit_request(self, request: Request, key: str | None = None) -> Job:
        raise NotImplementedError

    def load_data(
        self, source: str | Path, name: str, *, recipe: Any = None, target: str | None = None, test: float = 0.0,
        workers: int = 0, like: str | None = None, tenant: str | None = None, memory: str | None = None, **how: Any,
    ) -> Job:  # fmt: skip
        """Submit a job that loads a file, folder or database as a data set; its success creates a version.

        ``recipe`` is a YAML file, a mapping or a Recipe, fitted on the loaded rows; ``like`` reuses the fitted recipe
        of another data set instead. ``test`` is the fraction of rows for ``NAME-test``, on which the recipe is not
        fitted. ``memory`` ("1GB") limits the job. ``how`` holds options of the reader: ``format``, ``query``, ...
        """
        from fairlead.sdk.dataset_loads import loading_job

        params = {"target": target, "test": test or None, "workers": workers or None, "like": like, "how": how or None}
        read = [like] if like is not None else []
        return self._submit_request(loading_job(
            source, name, recipe=recipe, tenant=tenant, data=read, folders=self._granted(tenant), memory=memory,
            **params,
        ))  # fmt: skip

    def sync_data(self, name: str, *, source: str | Path | None = None, tenant: str | None = None) -> Job:
        """Submit a job that appends new rows to a data set, by default from its earlier source."""
        from fairlead.sdk.dataset_loads import loading_job

        known = self.dataset(name, tenant=tenant)
        loaded = JobDetail.model_validate(self._wire.call("GET", f"/jobs/{quote(known.job, safe='')}"))
        params = dict(loaded.spec.get("params", {}))
        place = source or params.get("local") or params["source"]
        memory = loaded.spec.get("resources", {}).get("memory")
        how = {"workers": params.get("workers"), "how": params.get("how"), "append": True, "memory": memory}
        return self._submit_request(loading_job(
            place, name, tenant=tenant, data=[f"{name}@{known.version}"], folders=self._granted(tenant), **how
        ))  # fmt: skip

    def _granted(self, tenant: str | None) -> list[str]:
        """The folders that the tenant's sandbox can read."""
        found = [TenantView.model_validate(each) for each in self._wire.call("GET", "/tenants")]
        own = [each for each in found if tenant is None or each.name == tenant]
        return list(own[0].policy.get("folders", [])) if len(own) == 1 else []

    def datasets(self, *, tenant: str | None = None) -> list[DataSetView]:
        """The newest version of each data set."""
        found = self._wire.call("GET", "/datasets", params={"tenant": tenant})
        return [DataSetView.model_validate(each) for each in found]

    def dataset(self, name: str, version: str | None = None, *, tenant: str | None = None) -> DataSetDetail:
        """One version (default: the newest) with its manifest and the jobs that read it."""
        params = {"version": version, "tenant": tenant}
        return DataSetDetail.model_validate(self._wire.call("GET", _place(name), params=params))

    def drop_dataset(self, name: str, version: str | None = None, *, tenant: str | None = None) -> list[DataSetView]:
        """Remove one version of a data set, or all; returns the removed versions."""
        params = {"version": version, "tenant": tenant}
        return [DataSetView.model_validate(each) for each in self._wire.call("DELETE", _place(name), params=params)]

    def lineage(self, ref: str) -> LineageView:
        """The data, recipe, blocks, code, settings and weights of a job's result."""
        return LineageView.model_validate(self._wire.call("GET", f"/jobs/{quote(ref, safe='')}/lineage"))

    def rerun(self, ref: str, *, key: str | None = None) -> RerunView:
        """Submit the same job again; the answer says whether the weights will be identical."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return RerunView.model_validate(self._wire.call("POST", f"/jobs/{quote(ref, safe='')}/rerun", headers=headers))


def _place(name: str) -> str:
    return f"/datasets/{quote(name, safe='')}"
