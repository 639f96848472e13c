"""Secrets by reference: they reach the task's environment and nothing else."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from flowsched.cluster.local.orders import list_secrets, remove_secret, set_secret
from flowsched.errors import InvalidRequest, NotFound
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_tasks import run
from tests.executors.executor_contract import pod, shell

CANARY = "canary-7f3a"


def holders(root: Path) -> list[str]:
    """Files below a folder that hold the canary."""
    found = []
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):  # runners tidy up at the same time
                if path.is_file() and CANARY.encode() in path.read_bytes():
                    found.append(str(path.relative_to(root)))
    return found


async def test_a_task_gets_its_secret_and_nobody_else_does(real_world: RealWorld) -> None:
    """While it runs and afterwards the value is in its own file only, also where the command names it."""
    set_secret(real_world.root, "key", CANARY.encode())
    script = 'test ${#KEY} = 11 && test "$1" = "\\$(KEY)" && touch ready && sleep 1'
    task = pod("a", "/bin/sh", "-c", script, "sh", "$(KEY)", secrets={"KEY": "key"})
    cluster, ear, _ = await real_world.open()
    await cluster.launch([task])
    await ear.started("a")
    assert holders(real_world.root) == ["secrets/key"]
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (0, "")
    assert holders(real_world.root) == ["secrets/key"]


async def test_a_secret_that_is_missing_fails_the_attempt(real_world: RealWorld) -> None:
    """Before anything runs; the message says which file was expected and how it gets there."""
    end = await run(real_world, shell("a", "true", secrets={"KEY": "key"}))
    assert (end.exit_code, end.reason) == (126, "SecretMissing")
    assert str(real_world.root / "secrets" / "key") in end.message
    assert "flowsched secret set key" in end.message
    assert not lives.has_started(real_world.attempt("a"))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", ".key", "a/b", "x" * 129, "vault://key"])
async def test_a_name_is_no_path(real_world: RealWorld, name: str) -> None:
    """Nothing outside of the folder can be named."""
    (real_world.root / "secrets").mkdir(parents=True)
    (real_world.root / "outside").write_text(CANARY)
    end = await run(real_world, shell("a", "env", secrets={"KEY": name}))
    assert end.reason == "SecretMissing"
    assert holders(real_world.root) == ["outside"]
    with pytest.raises(InvalidRequest):
        set_secret(real_world.root, name, b"x")


async def test_a_secret_that_others_can_read_is_refused(real_world: RealWorld) -> None:
    """So are links, which may lead anywhere."""
    set_secret(real_world.root, "key", b"x")
    path = real_world.root / "secrets" / "key"
    path.chmod(0o644)
    end = await run(real_world, shell("a", "true", secrets={"KEY": "key"}))
    assert (end.reason, "chmod 600" in end.message) == ("SecretMissing", True)
    (real_world.root / "secrets" / "link").symlink_to(path)
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("b", "true", secrets={"KEY": "link"})])
    assert (await ear.ended("b")).reason == "SecretMissing"


def test_secrets_are_kept_listed_and_removed(tmp_path: Path) -> None:
    """For their owner alone, whatever the umask; replaced whole."""
    before = os.umask(0)
    try:
        for value in (b"one", b"two"):
            set_secret(tmp_path / "root", "key", value)
    finally:
        os.umask(before)
    path = tmp_path / "root" / "secrets" / "key"
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list_secrets(tmp_path / "root") == ["key"]
    remove_secret(tmp_path / "root", "key")
    assert list_secrets(tmp_path / "root") == list_secrets(tmp_path / "none") == []
    with pytest.raises(NotFound):
        remove_secret(tmp_path / "root", "key")
    with pytest.raises(InvalidRequest):
        set_secret(tmp_path / "root", "key", b"a\0b")


async def test_the_limit_is_what_kills(real_world: RealWorld) -> None:
    """Between what it asked for and what it may use at most, a task lives; above, it does not."""
    script = "import sys, time; x = bytearray(120 << 20); time.sleep(float(sys.argv[1]))"
    fits = pod("a", "python", "-c", script, "1", memory_bytes=60 << 20, memory_limit_bytes=1 << 30)
    assert (await run(real_world, fits)).reason == ""
    cluster, ear, _ = await real_world.open()
    large = pod("b", "python", "-c", script, "60", memory_bytes=1 << 30, memory_limit_bytes=60 << 20)
    await cluster.launch([large])
    assert (await ear.ended("b")).reason == "OOMKilled"
