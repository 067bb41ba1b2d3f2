"""Runs migrations in the transaction that fairlead.control.store.migrate has opened and locked."""

from alembic import context

from fairlead.control.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by making it anew
    transactional_ddl=True,
)
context.run_migrations()
