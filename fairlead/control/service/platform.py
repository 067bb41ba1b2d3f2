"""Combines all operations into the object behind the API."""

from __future__ import annotations

import asyncio

from fairlead.control.records import Token
from fairlead.control.service.accounting import AccountVerbs
from fairlead.control.service.bundles import BundleVerbs
from fairlead.control.service.cancellation import CancelVerbs
from fairlead.control.service.cluster import ClusterVerbs
from fairlead.control.service.core import Core
from fairlead.control.service.data import DataVerbs
from fairlead.control.service.live import LiveVerbs
from fairlead.control.service.pipelines import PipelineVerbs
from fairlead.control.service.queries import QueryVerbs
from fairlead.control.service.secrets import SecretVerbs
from fairlead.control.service.sessions import SessionVerbs
from fairlead.control.service.tenants import TenantVerbs
from fairlead.control.service.whatif import WhatIfVerbs
from fairlead.control.service.why import ReasonVerbs


class Platform(
    PipelineVerbs, DataVerbs, BundleVerbs, AccountVerbs, SecretVerbs, QueryVerbs, TenantVerbs, SessionVerbs,
    ReasonVerbs, ClusterVerbs, LiveVerbs, WhatIfVerbs, CancelVerbs,
):  # fmt: skip
    """The platform as API, CLI and SDK see it."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._tokens: dict[str, tuple[float, Token]] = {}
        self._revoked: set[str] = set()
        self._used: dict[str, float] = {}
        self._recording: set[asyncio.Task[None]] = set()
        self._read_lock = asyncio.Lock()
        self._beats = {}
