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

from tests.kubernetes.conftest import require
from tests.kubernetes.hollow import controlplane
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


def test_a_variable_that_names_nothing_finds_nothing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error is not covered up by another binary."""
    binary(bare / "path", ETCD)
    monkeypatch.setenv("TEST_ASSET_ETCD", str(bare / "no/such"))
    assert find(ETCD) is None


def test_what_is_missing_is_said_with_the_remedy(bare: Path) -> None:
    """The reason names the binaries and `make kube-assets`."""
    why = missing("kubectl")
    assert why is not None
    assert "etcd, kube-apiserver, kubectl" in why
    assert "make kube-assets" in why


def test_an_etcd_without_watch_progress_is_refused(bare: Path) -> None:
    """3.5.12 would answer sendInitialEvents by an error in the middle of a test."""
    binary(bare / "path", APISERVER)
    etcd = binary(bare / "path", ETCD, "#!/bin/sh\necho 'etcd Version: 3.5.12'\n")
    why = missing()
    assert why is not None
    assert f"{etcd} is etcd 3.5.12, 3.5.13 is needed" in why


async def test_a_control_plane_that_cannot_be_had_says_why(bare: Path) -> None:
    """No folder is left behind, and the message is that of `missing`."""
    with pytest.raises(NotStarted, match="make kube-assets"):
        await ControlPlane().start()


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


@pytest.mark.kubernetes
async def test_each_user_is_known_by_its_token(control_plane: ControlPlane) -> None:
    """The administrator may read nodes; an ordinary user is somebody, but may not; nobody is told so."""
    assert (await get(control_plane, "/api/v1/nodes"))[0] == 200
    status, refusal = await get(control_plane, "/api/v1/nodes", "user")
    assert status == 403
    assert 'User "alice" cannot list' in refusal["message"]
    _, refusal = await get(control_plane, "/api/v1/nodes", "scheduler")
    assert 'User "system:serviceaccount:flowsched-system:flowsched" cannot list' in refusal["message"]
    _, refusal = await get(control_plane, "/api/v1/nodes", None)
    assert 'User "system:anonymous" cannot list' in refusal["message"]


@pytest.mark.kubernetes
async def test_what_was_written_outlives_a_killed_api_server(own_control_plane: ControlPlane) -> None:
    """After kill -9 and restart the URL, the certificate and the data are the same."""
    plane = own_control_plane
    _, before = await get(plane, "/api/v1/namespaces/default")
    plane.kill()
    with pytest.raises(aiohttp.ClientError):
        await get(plane, "/api/v1/namespaces/default")
    await plane.restart_apiserver()
    _, after = await get(plane, "/api/v1/namespaces/default")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.kubernetes
async def test_a_paused_api_server_answers_when_it_goes_on(own_control_plane: ControlPlane) -> None:
    """The request that met silence is answered, not refused."""
    plane = own_control_plane
    plane.pause()
    asked = asyncio.create_task(get(plane, "/api/v1/namespaces/default"))
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    assert not done
    plane.resume()
    assert (await asked)[0] == 200


@pytest.mark.kubernetes
async def test_native_podgroups_are_served_where_they_are_asked_for() -> None:
    """Both the group and the field of pods, which an ordinary API server does not have; everything is gone afterwards."""
    require()
    async with ControlPlane(native_podgroups=True) as plane:
        _, found = await get(plane, "/apis/scheduling.k8s.io/v1alpha2")
        assert "podgroups" in [resource["name"] for resource in found["resources"]]
        folder, pids = plane.folder, [program.pid for program in plane.programs.values()]
    assert not folder.exists()
    assert [pid for pid in pids if pid is None or _lives(pid)] == []


@pytest.mark.kubernetes
async def test_scheduler_and_controllers_start_on_demand(own_control_plane: ControlPlane) -> None:
    """By the kubeconfig that is offered kubectl sees the default service account, which only a controller manager makes."""
    require("kube-scheduler", "kube-controller-manager", "kubectl")
    scheduler = await own_control_plane.scheduler(qps=1000)
    manager = await own_control_plane.controller_manager()
    assert scheduler.pid is not None
    assert manager.pid is not None
    kubectl = str(find("kubectl"))
    command = [
        kubectl,
        "--kubeconfig",
        str(own_control_plane.kubeconfig()),
        "get",
        "sa",
        "default",
        "-o",
        "name",
    ]
    for _ in range(600):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        await asyncio.sleep(0.1)
    assert done.stdout == "serviceaccount/default\n", done.stderr


@pytest.mark.kubernetes
async def test_a_plane_whose_flags_are_wrong_shows_the_api_servers_log() -> None:
    """And it leaves no process behind."""
    require()
    plane = ControlPlane(apiserver_flags=["--no-such-flag"])
    with pytest.raises(NotStarted, match="no-such-flag"):
        await plane.start()
    assert plane.programs == {}


def test_the_signing_key_is_one_that_openssl_reads(tmp_path: Path) -> None:
    """The few bytes that are put together by hand are a P-256 key."""
    if find("openssl") is None:
        pytest.skip("no openssl")
    path = tmp_path / "key"
    path.write_text(controlplane._signing_key())
    done = subprocess.run(
        [str(find("openssl")), "ec", "-in", path, "-noout", "-text"], capture_output=True, text=True
    )
    assert "Private-Key: (256 bit)" in done.stdout, done.stderr


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
