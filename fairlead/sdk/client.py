"""The Python client: the verbs of the command line, for scripts and notebooks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from fairlead.errors import FairleadError
from fairlead.sdk.datasets import DataVerbs
from fairlead.sdk.jobs import Job
from fairlead.sdk.pipelines import PipelineVerbs
from fairlead.sdk.profile import locate
from fairlead.sdk.transport import Transport
from fairlead.views.jobs import (
    AuditView,
    CancelledView,
    DryRun,
    EventView,
    JobDetail,
    JobView,
    LogLine,
    MetricsView,
    NewTenant,
    NewToken,
    NodeView,
    Page,
    ResultView,
    SecretView,
    StateView,
    TenantView,
    TokenView,
    UsageView,
    View,
    WhoAmI,
    Why,
)  # fmt: skip
from fairlead.views.reports import Report

if TYPE_CHECKING:  # imported only by the methods that submit
    from fairlead.sdk.requests import Request, What
    from fairlead.specs import TenantSpec

V = TypeVar("V", bound=View)


class Client(DataVerbs, PipelineVerbs):
    """A client of the platform named by arguments, ``FAIRLEAD_URL`` and ``FAIRLEAD_TOKEN``, or the home's profile."""

    def __init__(
        self, url: str | None = None, token: str | None = None, home: str | Path | None = None, timeout_s: float = 30.0
    ) -> None:
        self._wire = Transport(locate(url, token, home), timeout_s)

    @property
    def url(self) -> str:
        return self._wire.profile.url

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ jobs

    def submit(self, what: What, *, folder: str | Path | None = None, key: str | None = None, **fields: Any) -> Job:
        """Submit a job: a spec, a mapping, a YAML file, ``"file.py:function"``, a command as a list, or a function.

        Keyword fields override written ones. Uploads ``folder``, by default the YAML file's folder or the current
        one. Repeating a call with the same key creates the job only once.
        """
        from fairlead.sdk.requests import prepare

        return self._submit_request(prepare(what, folder, fields), key)

    def _submit_request(self, request: Request, key: str | None = None) -> Job:
        bundle = request.pack()
        try:
            tenant = request.spec.tenant
            place = f"/bundles/{bundle.digest}"
            if not self._wire.exists(place, params={"tenant": tenant}):
                self._wire.call("PUT", place, params={"tenant": tenant}, content=bundle.bytes)
            headers = {"Idempotency-Key": key or uuid.uuid4().hex}
            body = request.body(bundle.digest)
            return Job(self, JobView.model_validate(self._wire.call("POST", "/jobs", body=body, headers=headers)))
        except FairleadError as error:
            raise _with_source(error, request) from None

    run = submit

    def dry_run(self, what: What, *, folder: str | Path | None = None, **fields: Any) -> DryRun:
        """Whether the job would be admitted, where it would run and when it would start; stores nothing."""
        from fairlead.sdk.requests import prepare

        request = prepare(what, folder, fields)
        request.pack()  # a folder that cannot be packed fails here, too
        try:
            return DryRun.model_validate(self._wire.call("POST", "/jobs/dry-run", body=request.body(None)))
        except FairleadError as error:
            raise _with_source(error, request) from None

    def page(
        self, *, state: str | None = None, tenant: str | None = None, name: str | None = None,
        limit: int | None = None, cursor: str | None = None, order: str | None = None,
    ) -> Page:  # fmt: skip
        """One page of jobs, with the number of all matching jobs."""
        params = {"state": state, "tenant": tenant, "name": name, "limit": limit, "cursor": cursor, "order": order}
        return self._one(Page, "GET", "/jobs", params)

    def jobs(
        self, *, state: str | None = None, tenant: str | None = None, name: str | None = None, order: str | None = None
    ) -> Iterator[Job]:
        """All matching jobs visible to the token, newest first, fetched page by page."""
        cursor: str | None = None
        while True:
            page = self.page(state=state, tenant=tenant, name=name, limit=1000, cursor=cursor, order=order)
            yield from (Job(self, view) for view in page.items)
            if page.next is None:
                return
            cursor = page.next

    def detail(self, ref: str) -> JobDetail:
        return self._one(JobDetail, "GET", _job(ref))

    def job(self, ref: str) -> Job:
        """The job with this id or id prefix, or the newest job of this name."""
        return Job(self, self.detail(ref))

    def cancel(self, ref: str) -> Job:
        return Job(self, self._one(JobView, "POST", f"{_job(ref)}/cancel"))

    def cancel_jobs(
        self, *, all: bool = False, labels: Mapping[str, str] | None = None, state: str | None = None,
        name: str | None = None, tenant: str | None = None, dry_run: bool = False,
    ) -> CancelledView:  # fmt: skip
        """Cancel all unfinished jobs that match every given filter; ``name`` may contain ``*``.

        Without a filter, ``all=True`` is required. At most 20,000 per call: the answer says whether there are more.
        """
        given = {"tenant": tenant, "state": state, "name": name, "labels": dict(labels or {})}
        body = {key: value for key, value in given.items() if value} | {"all": all, "dry_run": dry_run}
        return CancelledView.model_validate(self._wire.call("POST", "/jobs/cancel", body=body))

    def why(self, ref: str, *, forecast: bool = False) -> Why:
        """Why a job waits, runs on its present devices or ended; with a forecast also its predicted start and end."""
        return self._one(Why, "GET", f"{_job(ref)}/why", {"forecast": True} if forecast else None)

    def metrics(self, ref: str) -> list[dict[str, float]]:
        """One entry per step, ready for a data frame."""
        return self._one(MetricsView, "GET", f"{_job(ref)}/metrics").steps

    def logs(
        self, ref: str, *, follow: bool = False, worker: str | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """The output of a job's workers; with ``follow`` also new output until the job ends."""
        params = {"worker": worker, "tail": tail}
        place = f"{_job(ref)}/logs"
        if not follow:
            return iter(self._many(LogLine, place, params))
        events = self._wire.follow(place, params={**params, "follow": "true"}, until="end")
        return (LogLine.model_validate(event.data) for event in events if event.kind == "line")

    def result(self, ref: str, *, download: str | Path | None = None, force: bool = False) -> ResultView:
        """The result of an ended job; with ``download``, its files are saved into that folder.

        Existing files are replaced only with ``force``; without it, nothing is written. A download returns a
        :class:`~fairlead.sdk.downloads.Downloaded`, which lists files that were skipped or renamed.
        """
        result = self._one(ResultView, "GET", f"{_job(ref)}/result")
        if download is None:
            return result
        from fairlead.sdk import downloads

        place = f"{_job(ref)}/artifacts/"
        return downloads.download(
            result, Path(download), lambda name: self._wire.download(place + quote(name)), force=force
        )

    # ------------------------------------------------------------ nodes

    def nodes(self) -> list[NodeView]:
        return self._many(NodeView, "/nodes")

    def cordon(self, node: str) -> NodeView:
        """Start no new work on the node; running jobs continue."""
        return self._one(NodeView, "POST", f"/nodes/{quote(node, safe='')}/cordon")

    def uncordon(self, node: str) -> NodeView:
        return self._one(NodeView, "POST", f"/nodes/{quote(node, safe='')}/uncordon")

    def drain(self, node: str) -> NodeView:
        """Cordon the node and move its jobs elsewhere."""
        return self._one(NodeView, "POST", f"/nodes/{quote(node, safe='')}/drain")

    # ------------------------------------------------------------ tenants and tokens

    def tenants(self) -> list[TenantView]:
        return self._many(TenantView, "/tenants")

    def tenant(self, name: str) -> TenantView:
        return self._one(TenantView, "GET", f"/tenants/{quote(name, safe='')}")

    def create_tenant(self, tenant: str | TenantSpec | Mapping[str, Any], **fields: Any) -> NewTenant:
        """Create a tenant; returns it with its first token, which cannot be read again."""
        from fairlead.specs import TenantSpec, parse_tenant

        if isinstance(tenant, TenantSpec):
            tenant = tenant.model_dump(mode="python", by_alias=True, exclude_unset=True)
        written = {"name": tenant} if isinstance(tenant, str) else dict(tenant)
        spec = parse_tenant({**written, **{name: value for name, value in fields.items() if value is not None}})
        body = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return NewTenant.model_validate(self._wire.call("POST", "/tenants", body=body, safe=False))

    def update_tenant(self, name: str, **changes: Any) -> TenantView:
        """Change weight, quota, parent, guarantee, most, sla, policy or budget; other settings stay."""
        place = f"/tenants/{quote(name, safe='')}"
        return TenantView.model_validate(self._wire.call("PATCH", place, body=changes))

    def tokens(self) -> list[TokenView]:
        return self._many(TokenView, "/tokens")

    def create_token(
        self, role: str = "member", *, tenant: str | None = None, label: str = "", expires_s: float | None = None
    ) -> NewToken:
        """Create a token; its secret cannot be read again."""
        wanted = {"tenant": tenant, "role": role, "label": label, "expires_s": expires_s}
        body = {name: value for name, value in wanted.items() if value is not None}
        return NewToken.model_validate(self._wire.call("POST", "/tokens", body=body, safe=False))

    def revoke_token(self, id: str) -> TokenView:
        return self._one(TokenView, "DELETE", f"/tokens/{quote(id, safe='')}")

    def secrets(self, *, tenant: str | None = None) -> list[SecretView]:
        """The names of a tenant's secrets; values can never be read."""
        return self._many(SecretView, "/secrets", {"tenant": tenant})

    def set_secret(self, name: str, value: str, *, tenant: str | None = None) -> SecretView:
        """Store an encrypted value; jobs with this name in ``secrets`` get it as an environment variable."""
        place = f"/secrets/{quote(name, safe='')}"
        return SecretView.model_validate(
            self._wire.call("PUT", place, params={"tenant": tenant}, body={"value": value})
        )

    def remove_secret(self, name: str, *, tenant: str | None = None) -> None:
        self._wire.call("DELETE", f"/secrets/{quote(name, safe='')}", params={"tenant": tenant})

    # ------------------------------------------------------------ the platform

    def events(
        self, *, after: int | None = None, limit: int | None = None, job: str | None = None, follow: bool = False
    ) -> Iterator[EventView]:
        """Events; with ``follow`` also new events, without end."""
        if not follow:
            return iter(self._many(EventView, "/events", {"after": after, "limit": limit, "job": job}))
        events = self._wire.follow("/events/stream", params={"after": after, "job": job})
        return (EventView.model_validate(event.data) for event in events if isinstance(event.data, dict))

    def state(self) -> StateView:
        """Nodes, tenants and jobs as the policy sees them now; needs an admin token."""
        return self._one(StateView, "GET", "/state")

    def report(self) -> Report:
        return self._one(Report, "GET", "/report")

    def usage(
        self, by: str | Sequence[str] = "tenant", *, since_s: float | None = None, until_s: float | None = None,
        tenant: str | None = None, limit: int | None = None,
    ) -> UsageView:  # fmt: skip
        """Device hours, CPU hours and jobs by tenant, user, label[:KEY], ...; default: the last 30 days."""
        keys = by if isinstance(by, str) else ",".join(by)
        params = {"by": keys, "since_s": since_s, "until_s": until_s, "tenant": tenant, "limit": limit}
        return self._one(UsageView, "GET", "/usage", params)

    def audit(
        self, *, after: int | None = None, limit: int | None = None, tenant: str | None = None,
        actor: str | None = None, action: str | None = None, since_s: float | None = None, until_s: float | None = None,
    ) -> list[AuditView]:  # fmt: skip
        """Audit log, oldest first; ``after=-20``: the twenty newest entries."""
        params = {"after": after, "limit": limit, "tenant": tenant, "actor": actor, "action": action}
        return self._many(AuditView, "/audit", params | {"since_s": since_s, "until_s": until_s})

    def whoami(self) -> WhoAmI:
        return self._one(WhoAmI, "GET", "/whoami")

    def health(self) -> dict[str, Any]:
        return dict(self._wire.call("GET", "/healthz", patient=False) or {})

    def down(self) -> None:
        """Stop the platform; returns before it has stopped."""
        self._wire.call("POST", "/shutdown", safe=False)

    def _one(self, kind: type[V], method: str, path: str, params: Mapping[str, Any] | None = None) -> V:
        return kind.model_validate(self._wire.call(method, path, params=params))

    def _many(self, kind: type[V], path: str, params: Mapping[str, Any] | None = None) -> list[V]:
        return [kind.model_validate(item) for item in self._wire.call("GET", path, params=params)]


def _job(ref: str) -> str:
    return f"/jobs/{quote(ref, safe='')}"


def _with_source(error: FairleadError, request: Request) -> FairleadError:
    """The server's error, with the source file before the name of the field."""
    if request.source is None or error.field is None:
        return error
    return type(error)(error.message, field=f"{request.source}: {error.field}", value=error.value, fix=error.fix)


__all__ = ["Client", "Job"]
