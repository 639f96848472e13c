"""Folders of the root are away for a while: an unmounted disk, a rename by mistake. The cluster says so, waits, and goes on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowsched.cluster.local import attempts
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import OutputFile, PodEnded
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.executors.executor_contract import shell

FOLDERS = [".", "runners", "nodes", "nodes/node-0", "nodes/node-0/attempts"]


@contextmanager
def away(folder: Path, *, is_empty: bool) -> Iterator[None]:
    """A folder is not at its path; in its place an empty one, like that which an unmounted disk leaves, or none."""
    other = folder.with_name("away")
    folder.rename(other)
    if is_empty:
        folder.mkdir()
    yield
    if is_empty:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    other.rename(folder)


def counted(world: RealWorld, name: str, then: str) -> str:
    """A command that says outside of the root that it starts."""
    return f"echo x >> {world.root.parent}/{name}; {then}"


def starts(world: RealWorld, name: str) -> int:
    file = world.root.parent / name
    return file.read_text().count("x") if file.exists() else 0


@pytest.mark.parametrize("is_empty", [False, True], ids=["renamed", "unmounted"])
@pytest.mark.parametrize("name", FOLDERS)
async def test_tasks_go_on_while_a_folder_is_away(real_world: RealWorld, name: str, is_empty: bool) -> None:
    """One runs through, one ends meanwhile with a result, one is to be launched meanwhile: it is told as never launched."""
    cluster, ear, _ = await real_world.open()
    go, end = real_world.root.parent / "go", real_world.root.parent / "end"
    wait = "while [ ! -e {} ]; do sleep 0.05; done"
    runs = shell("runs", counted(real_world, "runs", wait.format(end)))
    ends = shell(
        "ends",
        counted(real_world, "ends", f"{wait.format(go)}; echo kept > out; touch {go}ne"),
        outputs=(OutputFile("o", "out", "flowsched:wf/s/0/o"),),
    )
    await cluster.launch([runs, ends])
    await until(lambda: starts(real_world, "runs") and starts(real_world, "ends"))
    with away(real_world.root / name, is_empty=is_empty):
        await until(lambda: "put" in cluster.trouble, "a word of it")
        go.touch()
        await until((real_world.root.parent / "gone").exists)
        await asyncio.sleep(0.2)  # its runner hears of its end, and must not take its result for lost
        await cluster.launch([shell("late", counted(real_world, "late", "true"))])
        if name == ".":
            await cluster.release(["late"], 0)
        assert await cluster.orphans() == []  # which ends what has left nothing but processes
    await until(lambda: not cluster.trouble, "its end")
    ended = await ear.ended("ends")
    assert (ended.exit_code, ended.reason, [out.name for out in ended.outputs]) == (0, "", ["o"])
    end.touch()
    assert (await ear.ended("runs")).exit_code == 0
    late = await ear.final("late")
    assert isinstance(late, PodEnded) or late.reason in ("NotLaunched", "NotStarted", "Released")
    assert [starts(real_world, each) for each in ("runs", "ends", "late")] == [
        1,
        1,
        int(isinstance(late, PodEnded)),
    ]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
async def test_a_folder_that_cannot_be_read_is_no_end(
    real_world: RealWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its attempt is neither told as gone nor killed."""
    cluster, ear, _ = await real_world.open()
    go = real_world.root.parent / "go"
    await cluster.launch([shell("a", counted(real_world, "a", f"while [ ! -e {go} ]; do sleep 0.05; done"))])
    await until(lambda: starts(real_world, "a"))
    asked = []

    def broken(path: object) -> int:
        asked.append(path)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(attempts, "mode_of", broken)
        await until(lambda: len(asked) > 2)
    go.touch()
    assert (await ear.ended("a")).exit_code == 0
    assert starts(real_world, "a") == 1


async def test_a_lost_root_does_not_end_the_tasks_of_the_real_one(real_world: RealWorld) -> None:
    """A start on the empty folder that an unmounted disk leaves is refused while tasks of that root run."""
    go = real_world.root.parent / "go"
    runs = shell("a", counted(real_world, "a", f"while [ ! -e {go} ]; do sleep 0.05; done"))
    cluster, ear, _ = await real_world.open()
    await cluster.launch([runs])
    await until(lambda: starts(real_world, "a"))
    await real_world.drop()
    with away(real_world.root, is_empty=True):
        empty = await real_world.cluster()
        try:
            with pytest.raises(ConfigurationError, match="is its disk mounted"):
                await empty.start()
        finally:
            await empty.stop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([runs])
    go.touch()
    assert (await ear.ended("a")).exit_code == 0
    assert starts(real_world, "a") == 1
