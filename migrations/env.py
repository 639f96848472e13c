"""How alembic reaches the database: always through a connection that flowsched has opened.

To write a new revision, see `docs/`: change `flowsched/store/tables.py`, then add a file to `versions/` by
hand and set `flowsched.store.database.REVISION`. A test compares the tables with what the revisions make, on
both databases.
"""

from __future__ import annotations

from alembic import context

from flowsched.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("use `flowsched db upgrade` or `db check`: they open the database in the right way")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
