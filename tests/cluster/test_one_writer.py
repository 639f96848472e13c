"""Two live attempts never write one path outside of their own, whichever client sent them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.writers import Writers, written_paths
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Delivered, Mount, Step
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.executors.executor_contract import contained

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def writer(name: str, folder: Path, **changes: object) -> Pod:
    """A task of its own workflow that writes FOLDER/stdout until FOLDER/go is there, and notes when another does so meanwhile."""
    script = (
        f"mkdir {folder}/busy || echo {name} >> {folder}/overlap; echo {name}; "
        f"while [ ! -e {folder}/go ]; do sleep 0.05; done; sleep 0.2; rmdir {folder}/busy"
    )
    step = Step(("/bin/sh", "-c", script), stdout=f"{folder}/stdout")
    outputs = (Delivered(f"{folder}/stdout", f"{folder}/stdout"),)
    return contained(name, steps=(step,), outputs=outputs, workflow=f"wf-{name}", **changes)


async def test_a_second_writer_waits_for_the_first(real_world: RealWorld, tmp_path: Path) -> None:
    """It runs when the first has ended, and its lines are what is left; one that writes elsewhere runs meanwhile."""
    (tmp_path / "call").mkdir()
    (tmp_path / "other").mkdir()
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writer("a", tmp_path / "call"), writer("b", tmp_path / "call")])
    await cluster.launch([writer("c", tmp_path / "other")])
    (tmp_path / "other/go").touch()
    assert (await ear.ended("c")).exit_code == 0
    assert not real_world.attempt("b").exists()
    (tmp_path / "call/go").touch()
    assert [(await ear.ended(name)).exit_code for name in ("a", "b")] == [0, 0]
    assert (tmp_path / "call/stdout").read_text() == "b\n"
    assert not (tmp_path / "call/overlap").exists()


async def test_a_second_writer_waits_for_what_the_first_has_left(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """The first one's runner is killed: the second starts when the last process of the first is dead."""
    (tmp_path / "call").mkdir()
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writer("a", tmp_path / "call"), writer("b", tmp_path / "call")])
    await ear.started("a")
    os.kill(lives.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
    assert (await ear.gone("a")).started
    await ear.started("b")
    await until(lambda: (tmp_path / "call/stdout").read_text() == "b\n")


async def test_a_writer_that_waits_can_be_cancelled(real_world: RealWorld, tmp_path: Path) -> None:
    """It never starts; the one behind it does when the first has ended (P8)."""
    (tmp_path / "call").mkdir()
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writer(name, tmp_path / "call") for name in ("a", "b", "c")])
    await cluster.release(["b"], 0)
    gone = await ear.gone("b")
    assert (gone.reason, gone.started) == ("Released", False)
    (tmp_path / "call/go").touch()
    assert [(await ear.ended(name)).exit_code for name in ("a", "c")] == [0, 0]
    assert (tmp_path / "call/stdout").read_text() == "c\n"


async def test_an_adopted_writer_is_waited_for(real_world: RealWorld, tmp_path: Path) -> None:
    """After a restart too."""
    (tmp_path / "call").mkdir()
    cluster, ear, _ = await real_world.open()
    first = writer("a", tmp_path / "call")
    await cluster.launch([first])
    await ear.started("a")
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([first])
    await cluster.launch([writer("b", tmp_path / "call")])
    await asyncio.sleep(0.3)
    assert not real_world.attempt("b").exists()
    (tmp_path / "call/go").touch()
    assert [(await ear.ended(name)).exit_code for name in ("a", "b")] == [0, 0]
    assert not (tmp_path / "call/overlap").exists()


async def test_a_writer_that_waited_and_cannot_be_launched_is_gone(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """A fault of the service by then: the attempt is told as never started, so that another one may be."""
    (tmp_path / "call").mkdir()
    made: list[str] = []

    def fails_the_second_time(where: str) -> None:
        if where == "launch.made":
            made.append(where)
            if len(made) == 2:
                raise RuntimeError("a fault")

    cluster = LocalCluster(real_world.root, real_world.nodes, failpoint=fails_the_second_time)
    _, ear, _ = await real_world.open(cluster)
    await cluster.launch([writer("a", tmp_path / "call"), writer("b", tmp_path / "call")])
    (tmp_path / "call/go").touch()
    assert (await ear.ended("a")).exit_code == 0
    gone = await ear.gone("b")
    assert (gone.reason, gone.started) == ("NotStarted", False)


def test_which_paths_are_written() -> None:
    """Files that are delivered and streams in mounts; folders, patterns and devices may be shared."""
    step = Step(("true",), stdout="/mnt/a/out", stderr="/own/err")
    outputs = (
        Delivered("/own/x", "/data//x"),
        Delivered("/own/s", "s3://lab/s"),
        Delivered("/own/folder", "/data/folder", directory=True),
        Delivered("/own/*.txt", "/data/texts", path_prefix="/own"),
        Delivered("/own/n", "/dev/null"),
    )
    what = contained("a", steps=(step,), outputs=outputs, mounts=(Mount("/host", "/mnt"),))
    assert written_paths(what) == {"/data/x", "s3://lab/s", "/host/a/out"}


def test_members_of_a_gang_do_not_wait_for_each_other() -> None:
    """They share a shard's files; another workflow's task waits for all of them."""
    writers = Writers()
    outputs = (Delivered("/o", "/data/o"),)
    for name, workflow in (("m0", "wf"), ("m1", "wf"), ("other", "wf2")):
        pod = contained(name, "true", outputs=outputs, workflow=workflow)
        writers.enter(pod, written_paths(pod))
    assert [writers.before(name) for name in ("m0", "m1", "other")] == [None, None, ("m0", "/data/o")]
    assert [writers.leave("m0"), writers.leave("m1"), writers.leave("other")] == [
        ["m1", "other"],
        ["other"],
        [],
    ]
