"""The control plane that tests run on: found by its documented order, killed and restarted, gone at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.hollow.binaries import APISERVER, ETCD, find, missing
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.programs import NotStarted, Program

VARIABLES = ("TEST_ASSET_ETCD", "TEST_ASSET_KUBE_APISERVER", "KUBEBUILDER_ASSETS", "XDG_CACHE_HOME")


def binary(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any binary."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_binaries_are_looked_for_where_they_were_named_first(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH, then what `make kube-assets` built, then KUBEBUILDER_ASSETS, then TEST_ASSET_*: the later named wins."""
    assert find(APISERVER) is None
    on_path = binary(bare / "path", APISERVER)
    assert find(APISERVER) == on_path
    built = binary(bare / "home/.cache/flowsched/kube/bin", APISERVER)
    assert find(APISERVER) == built
    envtest = binary(bare / "envtest", APISERVER)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare / "envtest"))
    assert find(APISERVER) == envtest
    named = binary(bare / "named", "my-apiserver")
    monkeypatch.setenv("TEST_ASSET_KUBE_APISERVER", str(named))
    assert find(APISERVER) == named


def test_an_etcd_without_watch_progress_is_refused(bare: Path) -> None:
    """3.5.12 would answer sendInitialEvents by an error in the middle of a test."""
    binary(bare / "path", APISERVER)
    etcd = binary(bare / "path", ETCD, "#!/bin/sh\necho 'etcd Version: 3.5.12'\n")
    why = missing()
    assert why is not None
    assert f"{etcd} is etcd 3.5.12, 3.5.13 is needed" in why


async def test_a_program_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    """Whoever waits for it is told its exit code and its last words."""
    program = Program(
        [str(binary(tmp_path, "bad", "#!/bin/sh\necho no such flag\nexit 3\n"))], tmp_path / "log"
    )
    program.start()
    while program.pid is not None:
        await asyncio.sleep(0.01)
    with pytest.raises(NotStarted, match=r"bad has ended with 3: no such flag"):
        program.check()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
def test_programs_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Kill -9 of the test process leaves no etcd behind."""
    script = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from tests.programs import Program
        program = Program(["/bin/sleep", "600"], Path({str(tmp_path / "log")!r}))
        program.start()
        print(program.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    try:
        deadline = time.monotonic() + 120  # the leash is an interpreter, which becomes `sleep`
        while "sleep" not in Path(f"/proc/{pid}/cmdline").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 120
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def get(plane: ControlPlane, path: str, user: str | None = "admin") -> tuple[int, Any]:
    """One request with the credentials of a kubeconfig's user."""
    trusted = ssl.create_default_context(cafile=str(plane.certificate[0]))
    headers = {} if user is None else dict(await plane.connection(user).headers())
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(plane.url + path, ssl=trusted, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def test_a_stopped_program_is_none_the_less_killed(tmp_path: Path) -> None:
    """SIGSTOP does not protect it from `kill`."""
    program = Program(["/bin/sleep", "600"], tmp_path / "log")
    program.start()
    program.signal(signal.SIGSTOP)
    pid = program.pid
    assert pid is not None
    program.kill()
    assert program.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
