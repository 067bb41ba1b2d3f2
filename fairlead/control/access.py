"""Who may do what: every request is somebody's, and scoped to their tenant."""

from __future__ import annotations

from fairlead.control.records import Role, Token
from fairlead.errors import Forbidden, InvalidSpec, NotFound

_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.TENANT_ADMIN: 2, Role.ADMIN: 3}


def require(who: Token, role: Role, to: str) -> None:
    """Raise Forbidden unless the token has at least this role."""
    if _RANK[who.role] < _RANK[role]:
        raise Forbidden(f"a {who.role} may not {to}", fix=f"use a token with the role {role}")


def scope(who: Token) -> str | None:
    """The tenant whose things this token may see; None: all of them."""
    return None if who.role is Role.ADMIN else who.tenant


def acting_for(who: Token, tenant: str | None, *, field: str = "tenant") -> str:
    """The tenant that a request is about: the token's own, or for an admin the one that is named."""
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


def may_grant(who: Token, role: Role, tenant: str | None) -> None:
    """Nobody hands out more than they have, or for a tenant that is not theirs."""
    require(who, Role.TENANT_ADMIN, "make tokens")
    if (role is Role.ADMIN) != (tenant is None):
        raise InvalidSpec(f"{role}: an admin token belongs to no tenant, every other one to one", field="role",
                          value=str(role), fix="name a tenant, or make it an admin token without one")  # fmt: skip
    if _RANK[role] > _RANK[who.role]:
        raise Forbidden(f"a {who.role} may not make a token with the role {role}", field="role", value=str(role),
                        fix="ask an admin")  # fmt: skip
