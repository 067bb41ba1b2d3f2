"""Authorisation: checks what a token's role allows and to which tenant it is scoped."""

from __future__ import annotations

from fairlead.control.records import Role, Token
from fairlead.errors import Forbidden, InvalidSpec, NotFound

_RANK = {Role.SCRAPER: -1, Role.VIEWER: 0, Role.MEMBER: 1, Role.TENANT_ADMIN: 2, Role.ADMIN: 3}
_PLATFORM = frozenset({Role.ADMIN, Role.SCRAPER})  # roles without a tenant; only admins hand them out


def require(who: Token, role: Role, to: str) -> None:
    """Raise Forbidden unless the token has at least this role."""
    if _RANK[who.role] < _RANK[role]:
        raise Forbidden(f"a {who.role} may not {to}", fix=f"use a token with the role {role}")


def scope(who: Token) -> str | None:
    """The tenant whose resources this token may see; None: all. Raises Forbidden for scrapers, who see none."""
    if who.role is Role.ADMIN:
        return None
    if who.tenant is None:
        raise metrics_only_error()
    return who.tenant


def require_scraper(who: Token) -> None:
    """Raise Forbidden unless the token may read the metrics, which cover all tenants."""
    if who.role not in _PLATFORM:
        fix = "use the token of a scraper or an admin"
        raise Forbidden("shows all tenants", field="role", value=str(who.role), fix=fix)


def refuse_scraper(who: Token) -> None:
    """Raise Forbidden for a scraper's token: it lies on a scraper's machine, which needs only the metrics."""
    if who.role is Role.SCRAPER:
        raise metrics_only_error()


def metrics_only_error() -> Forbidden:
    return Forbidden("a scraper reads /metrics and nothing else", field="role", value=str(Role.SCRAPER),
                     fix="use a token with another role")  # fmt: skip


def token_owner(who: Token, role: Role, tenant: str | None) -> str | None:
    """The tenant of a new token: none for platform roles, else the tenant for which the caller acts."""
    return None if role in _PLATFORM and tenant is None else acting_for(who, tenant)


def acting_for(who: Token, tenant: str | None, *, field: str = "tenant") -> str:
    """The tenant that a request is about: the token's own, or the one that an admin names."""
    own = scope(who)
    if own is None:
        if tenant is None:
            fix = f"add {field}: NAME, or --{field} NAME on the command line"
            raise InvalidSpec("is required when an admin asks", field=field, fix=fix)
        return tenant
    if tenant is not None and tenant != own:
        raise NotFound(f"{tenant!r}: no such tenant for this token", field=field, value=tenant,
                       fix=f"leave {field} out, or use a token of that tenant")  # fmt: skip
    return own


def require_grant(who: Token, role: Role, tenant: str | None) -> None:
    """Raise unless the caller may create a token of this role: no higher than its own, and for its own tenant."""
    require(who, Role.TENANT_ADMIN, "make tokens")
    if (role in _PLATFORM) != (tenant is None):
        raise InvalidSpec(f"{role}: tokens of admins and scrapers have no tenant, all other tokens have one",
                          field="role", value=str(role),
                          fix="name a tenant, or leave it out for an admin or a scraper")  # fmt: skip
    if _RANK[role] > _RANK[who.role] or (role in _PLATFORM and who.role is not Role.ADMIN):
        raise Forbidden(f"a {who.role} may not make a token with the role {role}", field="role", value=str(role),
                        fix="ask an admin")  # fmt: skip
