"""Cancels all jobs that match a filter in one transaction; tenants only their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection

from fairlead.control.identity.access import acting_for, require, scope
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.records import ENDED, JobPhase, Role, Token
from fairlead.control.service.core import Verbs, tenant_named
from fairlead.control.store import cancellations
from fairlead.control.store.cancellations import CancelFilter, MatchedJob
from fairlead.errors import InvalidSpec
from fairlead.views.jobs import CancelledView

MAX_NAMED = 100  # job ids in the response
MAX_AUDITED = 20  # job ids in an audit entry


class CancelVerbs(Verbs):
    """Bulk cancellation."""

    async def cancel_jobs(
        self, who: Token, *, tenant: str | None, state: str | None, name: str | None, labels: Mapping[str, str],
        dry_run: bool,
    ) -> CancelledView:  # fmt: skip
        """Cancel all jobs that match every given condition, or only count them."""
        require(who, Role.MEMBER, "cancel jobs")
        whose = scope(who) if tenant is None else acting_for(who, tenant)
        if any('"' in key or "\\" in key for key in labels):
            raise InvalidSpec("a label with a quote or a backslash cannot be searched for", field="labels",
                              fix="name the jobs, or use another label")  # fmt: skip
        meant = CancelFilter(whose, _phases(state), name, labels)
        now_s = self._core.clock()

        def work(connection: Connection) -> tuple[list[MatchedJob], bool]:
            if whose is not None:
                tenant_named(connection, whose)
            found, more = cancellations.find(connection, meant)
            if found and not dry_run:
                cancellations.cancel(connection, found, who.id, now_s)
                for owner, count in Counter(job.tenant for job in found).items():
                    first = [job.id for job in found if job.tenant == owner][:MAX_AUDITED]
                    self._audit(connection, who, "job.cancel", f"{count} jobs", tenant=owner, jobs=first,
                                **_filter_fields(meant))  # fmt: skip
            return found, more

        found, more = await (self._read(work) if dry_run else self._write(work))
        if found and not dry_run:
            failpoint("stop-stored")
            for job in found:
                if job.phase is not JobPhase.QUEUED:
                    self._core.controller.nudge(job.id)
            self._core.controller.nudge()
            self._core.controller.publish()
        return CancelledView(
            cancelled=len(found), more=more, jobs=[job.id for job in found[:MAX_NAMED]], dry_run=dry_run
        )


def _phases(state: str | None) -> list[JobPhase]:
    """The requested phases, all of which can be cancelled."""
    active = [phase for phase in JobPhase if phase not in ENDED]
    if state in (None, "active"):
        return active
    try:
        wanted = [JobPhase(part.strip()) for part in str(state).split(",")]
    except ValueError:
        wanted = []
    if not wanted or not set(wanted) <= set(active):
        raise InvalidSpec(f"{state!r} is not a state in which a job can be cancelled", field="state", value=state,
                          fix=f"use some of {', '.join(active)}, or active")  # fmt: skip
    return wanted


def _filter_fields(meant: CancelFilter) -> dict[str, object]:
    """The filter for the audit log."""
    said: dict[str, object] = {"state": ",".join(meant.phases), "name": meant.name, "labels": dict(meant.labels)}
    return {key: value for key, value in said.items() if value}
