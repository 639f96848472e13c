"""The way back after an upgrade, as docs/tutorials/operator.md says it: its commands against a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from flowsched import app
from flowsched.store.database import Database
from tests.docs.pages import ROOT, Block, Reader
from tests.postgres import Server, binaries
from tests.store.new_schema import add_revision

PAGE = ROOT / "docs" / "tutorials" / "operator.md"


async def test_a_restored_backup_can_be_upgraded_again(
    postgres_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dumped at the schema before this one, upgraded, restored as the page says: nothing of the newer schema is left."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").write_text("#!/bin/sh\n")  # this test is about the database
    (programs / "kubectl").chmod(0o755)
    folder = postgres_server.folder
    reader = Reader(
        tmp_path,
        programs=[programs, binaries()],
        replaced={
            "kill $forward": "true",
            "--host db.example.com --username postgres": f"--host {folder} --username flowsched",
            "CREATE ROLE flowsched": "CREATE ROLE operator",  # the server has a role flowsched, which may do anything
            "DATABASE flowsched OWNER flowsched": "DATABASE restored OWNER operator",
            "DROP DATABASE flowsched": "DROP DATABASE restored",
            "flowsched:$password@db.example.com:5432/flowsched": f"operator:$password@/restored?host={folder}",
        },
    )

    def type_block_with(words: str) -> None:
        def chosen(block: Block) -> bool:
            return block.language == "sh" and words in block.text and not block.not_run

        reader.follow(PAGE, chosen=chosen)

    type_block_with("CREATE ROLE")
    url = (reader.folder / "database-url.txt").read_text()
    await app.database_upgrade(url)
    async with await Database.open(url, exclusive=False) as database:
        await database.write(lambda connection: connection.execute(text("CREATE TABLE mark (kept int)")))
    type_block_with("pg_dump")
    add_revision(tmp_path, monkeypatch)
    assert await app.database_upgrade(url) == ("0.1.0_2", "next")

    type_block_with("pg_restore")
    assert postgres_server.execute("SELECT version_num FROM alembic_version", "restored") == [("0.1.0_2",)]
    assert await app.database_upgrade(url) == ("0.1.0_2", "next")
    assert postgres_server.execute("SELECT count(*) FROM mark", "restored") == [(0,)]
    postgres_server.drop(url)
    postgres_server.execute("DROP ROLE operator")
