"""Alembic's environment and the versions of the store's schema, run by Store.open."""
