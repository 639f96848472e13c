"""A runner keeps pods that were sent ahead until as many of their pipeline have ended as their orders say."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest
from msgspec import structs

from flowsched.cluster.local import attempt_states, attempts
from flowsched.executor.protocol import Pod, PodEnded, PodGone, PodStarted
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.executors.executor_contract import shell


def noting(world: RealWorld, name: str, seconds: float = 0, after: int = 0, **more: object) -> Pod:
    """A pod of a pipeline that writes when it begins and ends into one file."""
    script = f'echo +{name} >> "{world.root}/log"; sleep {seconds}; echo -{name} >> "{world.root}/log"'
    return structs.replace(shell(name, script), **{"pipeline": "1-0", "after": after, **more})


def log(world: RealWorld) -> list[str]:
    path = world.root / "log"
    return path.read_text().split() if path.exists() else []


async def test_they_start_one_after_the_other_in_order(real_world: RealWorld) -> None:
    """In the order of their numbers, however they came."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 0.3)])
    await cluster.launch([noting(real_world, name, 0.05, after) for name, after in (("c", 2), ("b", 1))])
    await cluster.launch([noting(real_world, "d", 0, 3)])
    await ear.ended("d")
    assert log(real_world) == ["+a", "-a", "+b", "-b", "+c", "-c", "+d", "-d"]
    assert [type(event) for event in ear.of("b")] == [PodStarted, PodEnded]


async def test_only_the_ends_of_their_pipeline_count(real_world: RealWorld) -> None:
    """Other attempts come and go: a long one that starts later keeps none of them waiting."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 0.4), noting(real_world, "other", 0, pipeline="1-1")])
    await cluster.launch([noting(real_world, "b", 0, 1), noting(real_world, "long", 60, pipeline="")])
    await ear.ended("other")
    await asyncio.sleep(0.05)
    assert "+b" not in log(real_world)
    await ear.ended("b")
    assert log(real_world).index("-a") < log(real_world).index("+b")


async def test_one_whose_turn_has_come_meanwhile_starts_at_once(real_world: RealWorld) -> None:
    """The end and the order cross."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a")])
    await ear.ended("a")
    await cluster.launch([noting(real_world, "b", 0, 1)])
    assert (await ear.ended("b")).exit_code == 0


async def test_one_that_cannot_start_holds_up_none(real_world: RealWorld) -> None:
    """Its secret is missing: that is an end, too."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 0.2)])
    bad = noting(real_world, "b", 0, 1, secrets={"TOKEN": "none-of-this-name"})
    await cluster.launch([bad, noting(real_world, "c", 0, 2)])
    assert (await ear.ended("b")).reason == "SecretMissing"
    assert (await ear.ended("c")).exit_code == 0


async def test_one_that_is_released_never_starts(real_world: RealWorld) -> None:
    """It is gone at once, also while those before it run."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 60)])
    await cluster.launch([noting(real_world, "b", 0, 1), noting(real_world, "c", 0, 2)])
    await cluster.release(["b"], 60_000)
    gone = await ear.gone("b")
    assert (gone.reason, gone.started) == ("Released", False)
    await cluster.release(["a"], 0)
    assert (await ear.ended("c")).exit_code == 0
    assert "+b" not in log(real_world)


async def test_a_full_disk_costs_no_other_attempt(
    real_world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wish for its end cannot be written: the service asks again, and does not kill the runner of all the others."""
    monkeypatch.setattr(attempt_states, "OVERDUE_S", 0.1)
    ask, refused = attempts.ask_for_end, []

    def full(folder: Path, grace_ms: int) -> None:
        if len(refused) < 3:
            refused.append(folder.name)
            raise OSError(errno.ENOSPC, "No space left on device")
        ask(folder, grace_ms)

    monkeypatch.setattr(attempts, "ask_for_end", full)
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 6)])
    await ear.started("a")
    await cluster.launch([noting(real_world, "b", 0, 1)])
    await cluster.release(["b"], 100)
    assert (await ear.gone("b")).reason == "Released"
    assert refused == ["b", "b", "b"]
    assert (await ear.ended("a")).exit_code == 0


async def test_they_outlive_the_service(real_world: RealWorld) -> None:
    """The runner goes on with them, and the next service waits for them."""
    cluster, ear, _ = await real_world.open()
    first, second = noting(real_world, "a", 1), noting(real_world, "b", 0, 1)
    await cluster.launch([first])
    await ear.started("a")
    await cluster.launch([second])
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([first, second])
    assert (await ear.ended("b")).exit_code == 0
    assert log(real_world) == ["+a", "-a", "+b", "-b"]


async def test_they_never_ran_if_their_runner_is_killed(real_world: RealWorld) -> None:
    """The service learns so, and may launch others in their place."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([noting(real_world, "a", 60)])
    await ear.started("a")
    await cluster.launch([noting(real_world, "b", 0, 1)])
    await until(lambda: lives.runner_of(real_world.attempt("a")) is not None)
    os.kill(lives.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
    gone = await ear.gone("b")
    assert isinstance(gone, PodGone)
    assert (gone.reason, gone.started) == ("NotStarted", False)
    assert log(real_world) == ["+a"]
