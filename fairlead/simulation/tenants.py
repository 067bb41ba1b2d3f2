"""Reads the tenants of a simulation from a file; refuses impossible values by line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.cluster import Node
from fairlead.errors import InvalidSpec
from fairlead.scheduling.state import TenantState
from fairlead.simulation.trace import Trace
from fairlead.simulation.trace_formats.cells import text_of
from fairlead.units import parse_counts

FIELDS = ("name", "weight", "quota", "parent", "guarantee", "most")
"""Columns of the file, in this order unless its first line names them."""


def read_tenants(path: Path) -> list[TenantState]:
    """Tenants from a CSV: name, weight, quota, parent, and devices by type (``v100=4;k80=2``) guaranteed and most."""
    lines = [(at, row) for at, row in enumerate(csv.reader(io.StringIO(text_of(path))), start=1) if any(row)]
    names: Sequence[str] = [cell.strip().lower() for cell in lines[0][1]] if lines else ()
    if "name" in names:
        if unknown := sorted(set(names) - set(FIELDS)):
            raise InvalidSpec(f"there is no {unknown[0]!r} of a tenant", field=path.name, fix=f"of {', '.join(FIELDS)}")
        lines = lines[1:]
    elif names[1:] and not any(character.isdigit() for cell in names for character in cell):
        names, lines = FIELDS, lines[1:]  # a header in other words
    else:
        names = FIELDS
    found: dict[str, TenantState] = {}
    for number, row in lines:
        told = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        if not told.get("name"):
            continue
        if told["name"] in found:
            text = f"there is a tenant {told['name']!r} already"
            raise InvalidSpec(text, field=f"{path.name}: line {number}: name", fix="give every tenant one line")
        found[told["name"]] = _tenant(told, f"{path.name}: line {number}")
    _check_parents(found, path.name)
    return list(found.values())


def _tenant(told: Mapping[str, str], line: str) -> TenantState:
    """A tenant from one row; missing values have defaults."""
    weight, quota = told.get("weight") or "1", told.get("quota") or ""
    try:
        heavy = float(weight)
    except ValueError:
        heavy = math.nan
    if not 0 < heavy < math.inf:
        text = f"{weight!r} is not a weight"
        raise InvalidSpec(text, field=f"{line}: weight", fix="a weight is more than 0, like 2")
    if quota and not quota.isdecimal():
        text = f"{quota!r} is not a number of devices"
        raise InvalidSpec(text, field=f"{line}: quota", fix="write a whole number, or nothing for no quota")
    by_type = {}
    for name in ("guarantee", "most"):
        try:
            by_type[name] = parse_counts(told[name]) if told.get(name) else {}
        except ValueError as error:
            text = f"{told[name]!r} is not devices by type"
            raise InvalidSpec(text, field=f"{line}: {name}", fix="write it like v100=4;k80=2") from error
    return TenantState(
        told["name"], heavy, int(quota) if quota else None, parent=told.get("parent") or None,
        guarantee=by_type["guarantee"], most=by_type["most"],
    )  # fmt: skip


def _check_parents(tenants: Mapping[str, TenantState], file: str) -> None:
    """Refuse unknown parents and cycles."""
    for tenant in tenants.values():
        path = [tenant.name]
        while (parent := tenants[path[-1]].parent) is not None:
            field = f"{file}: parent of {path[-1]}"
            if parent not in tenants:
                raise InvalidSpec(f"there is no tenant {parent!r}", field=field, fix="give it a line of its own")
            if parent in path:
                text = f"{' is below '.join([*path, parent])}, which goes round in a circle"
                raise InvalidSpec(text, field=field, fix="leave out one of these parents")
            path.append(parent)


def check_owners(tenants: Sequence[TenantState], trace: Trace, nodes: Sequence[Node]) -> list[str]:
    """Refuse guarantees beyond this cluster; returns tenants without jobs and without tenants below."""
    devices: dict[str, int] = {}
    for node in nodes:
        devices[node.device_type] = devices.get(node.device_type, 0) + node.devices
    for kind in sorted({kind for tenant in tenants for kind in tenant.guarantee}):
        top = sum(tenant.guarantee.get(kind, 0) for tenant in tenants if tenant.parent is None)
        sure = max(top, *(tenant.guarantee.get(kind, 0) for tenant in tenants))
        if sure > devices.get(kind, 0):
            text = f"{sure:g} devices of type {kind} are guaranteed, and there are {devices.get(kind, 0)}"
            raise InvalidSpec(text, field="--tenants: guarantee", fix="guarantee fewer, or add devices of this type")
    working, above = {job.tenant for job in trace.jobs}, {tenant.parent for tenant in tenants}
    idle = [tenant.name for tenant in tenants if tenant.name not in working | above]
    if tenants and working.isdisjoint(tenant.name for tenant in tenants):
        text = f"no job is of any of these tenants; those of the trace are {', '.join(sorted(working)[:5])}"
        raise InvalidSpec(text, field="--tenants: name", fix="name the tenants as the trace does")
    return idle
