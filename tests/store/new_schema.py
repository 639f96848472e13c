"""What all migrations leave in a SQLite file, as statements: `python -m tests.store.new_schema` writes migrations/sqlite.sql."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from sqlalchemy import create_engine

from flowsched.store.database import migrations_folder, upgrade


def migrated(file: Path) -> None:
    """Make a file by migrations alone."""
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()


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
