"""What all migrations leave in a SQLite file, as statements: `python -m tests.store.new_schema` writes migrations/sqlite.sql."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from flowsched.store import database
from flowsched.store.database import migrations_folder, upgrade

_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{before}"


def upgrade():
    op.create_table("added", sa.Column("name", sa.Text(), primary_key=True))


def downgrade():
    op.drop_table("added")
"""


def migrated(file: Path) -> None:
    """Make a file by migrations alone."""
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()


def add_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the version after the newest one: its revision `next` adds the table `added`."""
    made = folder / "migrations"
    shutil.copytree(migrations_folder(), made)
    (made / "versions" / "next.py").write_text(_NEXT.format(before=database.REVISION))
    monkeypatch.setattr(database, "migrations_folder", lambda: made)
    monkeypatch.setattr(database, "REVISION", "next")


def statements() -> str:
    """The statements."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "migrated.db"
        migrated(file)
        connection = sqlite3.connect(file)
        kept = [each for each in connection.iterdump() if each not in ("BEGIN TRANSACTION;", "COMMIT;")]
        lines = [line.rstrip() for each in kept for line in each.splitlines()]
        connection.close()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (migrations_folder() / "sqlite.sql").write_text(statements(), encoding="utf-8")
