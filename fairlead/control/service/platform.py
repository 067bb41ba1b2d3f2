"""All verbs together: the object behind the API."""

from __future__ import annotations

from fairlead.control.records import Token
from fairlead.control.service.cluster import ClusterVerbs
from fairlead.control.service.core import Core
from fairlead.control.service.secrets import SecretVerbs
from fairlead.control.service.submitting import SubmitVerbs
from fairlead.control.service.tenancy import TenantVerbs
from fairlead.control.service.watching import WatchVerbs


class Platform(SubmitVerbs, SecretVerbs, WatchVerbs, TenantVerbs, ClusterVerbs):
    """The platform as its doors see it."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._tokens: dict[str, tuple[float, Token]] = {}
        self._revoked: set[str] = set()
