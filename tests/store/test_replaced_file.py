"""A SQLite file that is moved, removed or replaced under a running service: nothing is acknowledged into it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_samples import submission

from flowsched.errors import StorageBusy, Unavailable
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter


def moved(path: Path) -> None:
    path.rename(path.with_name("away.db"))


def replaced(path: Path) -> None:
    moved(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE other (id TEXT)")


def folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))


def removed(path: Path) -> None:
    path.unlink()


def put_back(path: Path) -> None:
    if path.parent.with_name("away").exists():
        path.parent.with_name("away").rename(path.parent)
    else:
        path.with_name("away.db").replace(path)


@pytest.mark.parametrize("what", [moved, replaced, folder_moved, removed])
async def test_a_submission_into_a_lost_file_is_not_acknowledged(
    tmp_path: Path, what: Callable[[Path], None]
) -> None:
    """Writes and reads are answered with what happened to the file. SQLite itself would go on without a word."""
    path = tmp_path / "root" / "flowsched.db"
    async with await Database.open(str(path)) as database, GroupWriter(database, retry_s=0.2) as writer:
        await writer.submit(submission("a"))
        what(path)
        with pytest.raises(StorageBusy, match=f"{path} is .* put the file back"):
            await writer.submit(submission("b"))
        with pytest.raises(Unavailable, match=f"{path} is .* put the file back"):
            await Workflows(database).get("a")
        assert database.outage is not None
        assert path.exists() == (what is replaced)  # SQLite has made no new file


@pytest.mark.parametrize("what", [moved, replaced, folder_moved])
async def test_a_file_that_is_put_back_is_used_again(tmp_path: Path, what: Callable[[Path], None]) -> None:
    """What waits meanwhile is written once, into the right file."""
    path = tmp_path / "root" / "flowsched.db"
    async with await Database.open(str(path)) as database, GroupWriter(database) as writer:
        await writer.submit(submission("a"))
        what(path)
        waits = asyncio.create_task(writer.submit(submission("b")))
        while database.outage is None:
            await asyncio.sleep(0.01)
        put_back(path)
        assert (await waits).seq == 2
        assert database.outage is None
        assert await Workflows(database).existing(["a", "b"]) == {"a", "b"}
    async with await Database.open(str(path)) as database:
        assert await Workflows(database).existing(["a", "b"]) == {"a", "b"}


async def test_a_file_that_is_lost_during_a_commit_is_noticed_before_the_answer(tmp_path: Path) -> None:
    """The commit has gone into the moved file. The submission is answered when that is back, and is there once."""
    path = tmp_path / "flowsched.db"

    async with await Database.open(str(path)) as database:
        done: list[str] = []

        async def failpoint(name: str) -> None:
            if name == "writer.before_commit" and not done:
                done.append(name)
                moved(path)

        async with GroupWriter(database, failpoint=failpoint) as writer:
            waits = asyncio.create_task(writer.submit(submission("a")))
            while database.outage is None:
                await asyncio.sleep(0.01)
            assert not waits.done()
            put_back(path)
            assert (await waits).seq == 1
        assert await Workflows(database).existing(["a"]) == {"a"}


async def test_a_log_that_is_removed_is_not_lost(tmp_path: Path) -> None:
    """What was committed before and after is there at the next start: the log has a second name."""
    path = tmp_path / "flowsched.db"
    async with await Database.open(str(path)) as database, GroupWriter(database) as writer:
        await writer.submit(submission("a"))
        path.with_name("flowsched.db-wal").unlink()
        await writer.submit(submission("b"))
        copy = tmp_path / "copy"  # as a kill leaves it
        copy.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", copy)
    async with await Database.open(str(copy / "flowsched.db")) as database:
        assert await Workflows(database).existing(["a", "b"]) == {"a", "b"}
