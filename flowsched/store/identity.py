"""The identity of a database: an id for life, which its copies and backups share; and where its rows were moved."""

from __future__ import annotations

import uuid

import msgspec
from sqlalchemy import text

from flowsched.errors import ConfigurationError
from flowsched.store.database import Database

_MAKE = text("INSERT INTO identity (name, value) VALUES ('id', :id) ON CONFLICT DO NOTHING")


class Identity(msgspec.Struct, frozen=True):
    """Which database it is.

    Args:
        id: Made at the first use.
        moved_to: The database that has its rows now (`flowsched db move`); "" = it has them itself.
    """

    id: str
    moved_to: str = ""


async def identify(database: Database) -> Identity:
    """The identity of a database.

    Raises:
        ConfigurationError: Its rows were moved to another database: used here again, they would run a second time.
    """
    await database.write(lambda connection: connection.execute(_MAKE, {"id": uuid.uuid4().hex}))
    rows = {row.name: row.value for row in await database.rows(text("SELECT name, value FROM identity"))}
    if moved_to := rows.get("moved_to"):
        raise ConfigurationError(
            f"the workflows of {database.place} were moved to {moved_to}: start the service with --db {moved_to}, or move them "
            f"to a new database: flowsched db move {moved_to} NEW"
        )
    return Identity(rows["id"])
