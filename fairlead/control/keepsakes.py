"""Bounds what a tenant's ended jobs keep on the disk together: when it is more than allowed, the oldest go first.

Logs and output of an ended job do not change, so each is measured once. What runs is never touched: its own limit is
the business of its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from fairlead.backends.local import disk
from fairlead.control.records import Tenant
from fairlead.control.store import audit, events, pruning
from fairlead.control.store.engine import Store
from fairlead.control.store.pruning import End
from fairlead.home import Home
from fairlead.specs import Policy
from fairlead.units import shown_size

KEPT = frozenset({"logs", "output"})  # of an ended job's folder; all else was for its work
_JOBS_AT_ONCE = 50


def outgrown(ends: Sequence[End], sizes: dict[str, int], allowed_bytes: int) -> list[End]:
    """Those to go, the oldest first, until the rest is within what is allowed."""
    held = sum(sizes[end.job] for end in ends)
    found = []
    for end in sorted(ends):
        if held <= allowed_bytes:
            break
        held -= sizes[end.job]
        if sizes[end.job]:
            found.append(end)
    return found


class Keepsakes:
    """What the ended jobs of all tenants keep; the leader's."""

    def __init__(
        self, store: Store, home: Home, clock: Callable[[], float], remove: Callable[[Path], Awaitable[bool]]
    ) -> None:
        self._store, self._home, self._clock, self._remove = store, home, clock, remove
        self._sizes: dict[str, int] = {}  # of ended jobs, in bytes

    def forget(self, job: str) -> None:
        """Something of it is gone: it is to be measured again."""
        self._sizes.pop(job, None)

    async def bound(self, tenants: Sequence[Tenant]) -> None:
        """Take away what is too much, of every tenant."""
        found: dict[str, list[End]] = {tenant.name: [] for tenant in tenants}
        names = await asyncio.to_thread(_folders, self._home.jobs)
        for begin in range(0, len(names), _JOBS_AT_ONCE):
            for owner, end in await self._store.read(partial(pruning.ends, ids=names[begin : begin + _JOBS_AT_ONCE])):
                found.setdefault(owner, []).append(end)
                if end.job not in self._sizes:
                    held = await asyncio.to_thread(disk.measure, self._home.job(end.job))
                    self._sizes[end.job] = sum(held.bytes_by_part.get(part, 0) for part in KEPT)
        self._sizes = {end.job: self._sizes[end.job] for ends in found.values() for end in ends}
        for tenant in tenants:
            allowed_bytes = Policy.model_validate(dict(tenant.policy)).kept
            for end in outgrown(found[tenant.name], self._sizes, allowed_bytes):
                await self._take_away(tenant, end, allowed_bytes)

    async def _take_away(self, tenant: Tenant, end: End, allowed_bytes: int) -> None:
        """First the word, then the deed: after a crash it is done again, and never without one."""
        now_s, freed = self._clock(), self._sizes[end.job]
        text = (
            f"logs and results of {end.job} ({shown_size(freed)}) were removed, as the oldest: the ended jobs of "
            f"{tenant.name} held more than the {shown_size(allowed_bytes)} that they may keep together"
        )
        facts = {"what": "logs and results", "reason": "disk", "freed_bytes": freed, "allowed_bytes": allowed_bytes}
        await self._store.write(
            lambda c: events.append(c, time_s=now_s, kind="pruned", text=text, tenant=tenant.name, job=end.job,
                                    facts=facts)
        )  # fmt: skip
        await self._store.write(
            lambda c: audit.append(c, time_s=now_s, actor="platform", action="job.prune", target=end.job, detail=facts,
                                   tenant=tenant.name)
        )  # fmt: skip
        await self._remove(self._home.job(end.job))
        self._sizes[end.job] = 0


def _folders(place: Path) -> list[str]:
    try:
        return sorted(path.name for path in place.iterdir())
    except FileNotFoundError:
        return []
