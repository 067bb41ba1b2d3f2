"""Schemas: declared by users, inferred from samples, and compared between loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fairlead.data.errors import BadData
from fairlead.errors import InvalidSpec

_ALIASES = {"float": "float64", "int": "int64", "str": "string", "text": "string", "boolean": "bool", "date": "date32"}


def type_of(column: str, name: Any) -> pa.DataType:
    """The Arrow type with a name such as int64, float or text."""
    if isinstance(name, pa.DataType):
        return name
    try:
        return pa.type_for_alias(_ALIASES.get(str(name), str(name)))
    except ValueError:
        fix = "use a type such as int64, float32, string, bool, date32 or timestamp[us]"
        raise InvalidSpec(f"{name!r} is not a column type", field=f"schema.{column}", fix=fix) from None


def with_declared_types(file: object, inferred: pa.Schema, wanted: Any) -> pa.Schema:
    """The inferred schema with the types that the caller declared."""
    if wanted is None:
        return inferred
    if isinstance(wanted, pa.Schema):
        declared = {field.name: field.type for field in wanted}
    elif isinstance(wanted, Mapping):
        declared = {str(name): type_of(str(name), kind) for name, kind in wanted.items()}
    else:
        raise InvalidSpec("is neither a pyarrow.Schema nor a mapping of column to type", field="schema")
    if missing := [name for name in declared if name not in inferred.names]:
        fix = f"it has {_first_names(inferred.names)}"
        raise BadData(file, "has no such column", column=missing[0], fix=fix)
    return pa.schema([pa.field(f.name, declared.get(f.name, f.type), metadata=f.metadata) for f in inferred])


def check_same_columns(file: object, schema: pa.Schema, names: list[str], first: object) -> None:
    """Refuse a further file unless it has the columns of the first, in the same order."""
    if names == schema.names:
        return
    fix = "read the files apart, or give them the same columns"
    if len(names) != len(schema.names):
        raise BadData(file, f"has {len(names)} columns, {first} has {len(schema.names)}", fix=fix)
    place = next(i for i, (one, other) in enumerate(zip(names, schema.names, strict=True)) if one != other)
    raise BadData(file, f"is called {schema.names[place]!r} in {first}", column=names[place], fix=fix)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two schemas, and whether rows of the new one still fit the old one."""

    column: str
    what: str
    fits: bool


def schema_changes(before: pa.Schema, after: pa.Schema) -> tuple[SchemaChange, ...]:
    """The differences of a later schema: lost, changed and added columns, in order."""
    found = []
    for field in before:
        if field.name not in after.names:
            found.append(SchemaChange(field.name, f"is gone (was {field.type})", False))
        elif (now := after.field(field.name).type) != field.type:
            found.append(SchemaChange(field.name, f"was {field.type}, is {now}", _widens(now, field.type)))
    found += [SchemaChange(f.name, f"is new ({f.type})", False) for f in after if f.name not in before.names]
    return tuple(found)


def schema_line(schema: pa.Schema) -> str:
    """Columns and types in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def schema_to_json(schema: pa.Schema) -> list[dict[str, Any]]:
    """A schema as JSON values."""
    return [
        {"name": f.name, "type": str(f.type)}
        | ({"meta": {k.decode(): v.decode() for k, v in f.metadata.items()}} if f.metadata else {})
        for f in schema
    ]


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    numbers = pa.types.is_integer(narrow) or pa.types.is_floating(narrow)
    return bool(numbers and pa.types.is_floating(wide))


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
