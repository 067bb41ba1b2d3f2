"""Stores tenants. Each has a number that is never reused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy import insert as insert_row
from sqlalchemy import update as update_rows

from fairlead.control.records import Tenant
from fairlead.control.store import damaged_rows
from fairlead.control.store.row_mapping import column_values, row_of
from fairlead.control.store.schema import tenants
from fairlead.errors import Conflict, NotFound
from fairlead.specs import STORED, Budget, Policy, Sla, TenantSpec

_TENANT = [tenants.c[name] for name in Tenant.__slots__]
_ALL = select(*_TENANT).order_by(tenants.c.number)
_BY_NAME = select(*_TENANT).where(tenants.c.name == bindparam("wanted"))  # built once: every submission runs it


def insert(conn: Connection, spec: TenantSpec, created_s: float | None = None) -> Tenant:
    """The new tenant. Raises :class:`Conflict` when the name is taken."""
    if get(conn, spec.name) is not None:
        fix = "choose another name, or change the one that exists"
        raise Conflict(f"there already is a tenant {spec.name!r}", field="name", value=spec.name, fix=fix)
    highest = conn.execute(select(func.max(tenants.c.number))).scalar()
    tenant = Tenant(
        name=spec.name,
        number=0 if highest is None else highest + 1,
        created_s=time.time() if created_s is None else created_s,
        **spec_columns(spec),
    )
    conn.execute(insert_row(tenants), row_of(tenant))
    return tenant


def spec_columns(spec: TenantSpec) -> dict[str, Any]:
    """The columns that come from a spec and may change."""
    return {
        "weight": spec.weight,
        "quota": spec.quota,
        "sla": spec.sla.model_dump(mode="json", by_alias=True, exclude_none=True),
        "policy": spec.policy.model_dump(mode="json", exclude_defaults=True),
        "budget": {} if spec.budget is None else spec.budget.model_dump(mode="json"),
        "parent": spec.parent,
        "guarantee": dict(spec.guarantee),
        "most": dict(spec.most),
    }


def get(conn: Connection, name: str) -> Tenant | None:
    row = conn.execute(_BY_NAME, {"wanted": name}).one_or_none()
    return None if row is None else _tenant(row)


def ancestry(conn: Connection, tenant: Tenant) -> list[Tenant]:
    """The tenant and its parents, up to the top."""
    found = [tenant]
    while (parent := found[-1].parent) is not None and parent not in {one.name for one in found}:
        above = get(conn, parent)
        if above is None:
            break
        found.append(above)
    return found


def all_tenants(conn: Connection) -> list[Tenant]:
    """Every tenant, oldest first."""
    return [_tenant(row) for row in conn.execute(_ALL)]


def update(conn: Connection, name: str, **changes: Any) -> Tenant:
    """Change these fields and return the tenant."""
    changed = conn.execute(update_rows(tenants).where(tenants.c.name == name).values(column_values(changes)))
    tenant = get(conn, name) if changed.rowcount else None
    if tenant is None:
        fix = f"list them with fairlead tenants, or create it: fairlead tenant create {name}"
        raise NotFound(f"there is no tenant {name!r}", field="tenant", value=name, fix=fix)
    return tenant


def _tenant(row: Iterable[Any]) -> Tenant:
    """The tenant of a row. Damaged columns become a new tenant's, with the strictest policy, and are reported."""
    values = list(row)
    key = str(values[_AT["name"]])
    _SHAPE.repair(key, values)
    for name, good in _VALID.items():
        if values[_AT[name]] and not good(values[_AT[name]]):
            values[_AT[name]] = {}
            damaged_rows.report_damage("tenants", key, f"{name} is invalid")
    if not 0 < values[_AT["weight"]] < float("inf"):
        values[_AT["weight"]] = 1.0
        damaged_rows.report_damage("tenants", key, "weight is invalid")
    return Tenant(*values)


def _valid_as(spec: type[BaseModel]) -> Callable[[Mapping[str, Any]], bool]:
    def good(stored: Mapping[str, Any]) -> bool:
        try:
            spec.model_validate(dict(stored), context=STORED)
        except ValidationError:
            return False
        return True

    return good


def _are_counts(stored: Mapping[str, Any]) -> bool:
    return not any(type(count) is not int or count < 0 for count in stored.values())


_AT = {name: place for place, name in enumerate(Tenant.__slots__)}
_SHAPE = damaged_rows.RowShape(Tenant, "tenants", weight=1.0)
_VALID: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "policy": _valid_as(Policy), "budget": _valid_as(Budget), "sla": _valid_as(Sla),
    "guarantee": _are_counts, "most": _are_counts,
}  # fmt: skip
