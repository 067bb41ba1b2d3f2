"""Receives code bundles: checks each against its digest and enforces the tenant's space limit."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from sqlalchemy import Connection

from fairlead.control.identity.access import acting_for, require
from fairlead.control.records import Role, Token
from fairlead.control.service.core import Core, Verbs, tenant_named
from fairlead.control.store import bundles
from fairlead.errors import InvalidSpec, TooLarge, Unavailable
from fairlead.specs import Policy
from fairlead.units import shown_size


class BundleVerbs(Verbs):
    """Uploads of code."""

    bundle_limit_bytes: int = 256 * 1024 * 1024

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._arriving: Counter[str] = Counter()  # bytes by tenant of unfinished uploads, which fill the disk as well

    async def has_bundle(self, who: Token, digest: str, tenant: str | None) -> bool:
        """True if the tenant has uploaded this code and it still exists."""
        name = acting_for(who, tenant)
        known = await self._read(lambda connection: bundles.exists_for(connection, name, digest))
        return known and self._core.home.bundle(name, digest).exists()

    async def put_bundle(self, who: Token, digest: str, stream: AsyncIterator[bytes], tenant: str | None) -> None:
        """Store the packed code if it matches its digest; a partial upload leaves nothing."""
        require(who, Role.MEMBER, "upload code")
        name = acting_for(who, tenant)
        room = await self._read(lambda connection: _room(connection, name, digest))
        target = self._core.home.bundle(name, digest)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = target.with_suffix(f".{token_hex(4)}.part")
        now_s = self._core.clock()

        def work(connection: Connection) -> None:
            known = bundles.exists_for(connection, name, digest)
            if not known:
                _room(connection, name, digest).check(size)  # other uploads may have finished meanwhile
            part.replace(target)  # in the writer thread, where no pruning runs
            bundles.add(connection, name, digest, size, now_s)
            if not known:
                self._audit(connection, who, "bundle.put", digest, tenant=name, size_bytes=size)

        try:
            size = await self._receive(part, digest, stream, room)
            await self._write(work)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Unavailable("the platform's disk is full: it cannot store code", field="bundle",
                              fix="try again later, or ask an administrator to free some space") from None  # fmt: skip
        finally:
            part.unlink(missing_ok=True)

    async def _receive(self, part: Path, digest: str, stream: AsyncIterator[bytes], room: _Room) -> int:
        """Write the stream to the file; returns its size if it matches the digest."""
        hasher, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as file:
                async for chunk in stream:
                    size += len(chunk)
                    self._arriving[room.tenant] += len(chunk)
                    if size > self.bundle_limit_bytes:
                        raise TooLarge(f"the bundle is over {self.bundle_limit_bytes} bytes", field="bundle",
                                       fix="list what is not needed in .fairleadignore")  # fmt: skip
                    room.check(self._arriving[room.tenant])
                    hasher.update(chunk)
                    file.write(chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())  # for a large file fsync takes longer than the lease
        finally:
            self._arriving[room.tenant] -= size
        if digest != f"sha256:{hasher.hexdigest()}":
            raise InvalidSpec("is not the sha256 of what was sent", field="digest", value=digest,
                              fix=f"send it as sha256:{hasher.hexdigest()}")  # fmt: skip
        return size


@dataclass(frozen=True, slots=True)
class _Room:
    """Space for a tenant's code: all bundles together may take as much as one of its jobs."""

    tenant: str
    held_bytes: int
    allowed_bytes: int

    def check(self, more_bytes: int) -> None:
        if self.held_bytes + more_bytes > self.allowed_bytes:
            held, allowed, double = map(shown_size, (self.held_bytes, self.allowed_bytes, 2 * self.allowed_bytes))
            change = f"fairlead tenant update {self.tenant}"
            raise TooLarge(f"code of tenant {self.tenant} holds {held}, and {allowed} are allowed", field="bundle",
                           fix=f"list what is not needed in .fairleadignore, or let an admin allow more ({change} "
                               f"--disk {double.replace(' ', '')}) or keep less ({change} --keep-results 30d)",
                           )  # fmt: skip


def _room(connection: Connection, name: str, digest: str) -> _Room:
    policy = Policy.model_validate(dict(tenant_named(connection, name).policy))
    return _Room(name, bundles.held_bytes(connection, name, besides=digest), policy.disk)
