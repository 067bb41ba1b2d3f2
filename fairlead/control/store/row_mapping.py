"""Converts records to database rows, for all tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def column_value(value: Any) -> Any:
    """A field as both databases take it: an enum's value, a plain dict, text without NUL."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    return dict(value) if isinstance(value, Mapping) else value


def column_values(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column_value(value) for name, value in changes.items()}


def row_of(record: Any) -> dict[str, Any]:
    """All fields of a flat record, ready for an INSERT."""
    return {name: column_value(getattr(record, name)) for name in record.__slots__}


def insert_into(dialect: str, table: Table) -> Insert:
    """An INSERT with ON CONFLICT support, in the database's own dialect."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
