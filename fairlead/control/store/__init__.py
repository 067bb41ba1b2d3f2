"""The store: everything the control plane must remember, in SQLite or PostgreSQL, written by one leader only."""

from fairlead.control.store import data_schema, pipeline_schema  # noqa: F401 (its tables belong to the schema)
from fairlead.control.store.engine import Store

__all__ = ["Store"]
