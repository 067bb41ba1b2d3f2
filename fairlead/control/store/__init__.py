"""The control plane's database (SQLite or PostgreSQL). Only the leader writes to it."""

from fairlead.control.store import data_schema, pipeline_schema  # noqa: F401 (registers these tables in the metadata)
from fairlead.control.store.engine import Store

__all__ = ["Store"]
