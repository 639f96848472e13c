"""Who may read a root and use a service: its user. Tried with a second account of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from flowsched import tokens
from flowsched.private import make_database, make_root
from tests.forks import ran
from tests.serving.processes import NOBODY, as_nobody, gone, served

pytestmark = pytest.mark.slow
other_account = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter: pytest's own are closed, and would prove nothing."""
    folder = Path(tempfile.mkdtemp(prefix="flowsched-open-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`flowsched …` of the same user, without a token of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FLOWSCHED_")} | variables
    return ran(words, env=env)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@other_account
def test_another_account_neither_reads_a_root_nor_runs_a_task(open_folder: Path, tmp_path: Path) -> None:
    """A root of an earlier version, open to all, is closed at the start; commands of the same user find the token."""
    root, out = open_folder / "root", open_folder / "out"
    (root / "nodes").mkdir(parents=True)
    (root / "flowsched.db").touch(mode=0o644)
    root.chmod(0o755)
    out.mkdir()
    document = tmp_path / "w.json"
    task = {"executors": [{"image": "a", "command": ["sh", "-c", "echo x > f"], "env": {"KEY": "s3cret-value"}, "workdir": "/w"}],
            "outputs": [{"url": f"file://{out}/f", "path": "/w/f"}]}  # fmt: skip
    document.write_text(
        json.dumps(
            {"name": "w", "stages": [{"name": "a", "command": ["true"], "env": {"KEY": "s3cret-value"}}]}
        )
    )
    with served(root, token=True) as service:
        pid = service.ready()
        done = command("submit", str(document), "--wait", "--server", service.url)
        assert done.returncode == 0, done.stderr
        token = command("token", "--server", service.url).stdout.strip()
        assert len(token) == 32
        ident = service.get("/v1/tasks", task, token=token)["id"]
        while service.get(f"/v1/tasks/{ident}", token=token)["state"] not in (
            "COMPLETE",
            "EXECUTOR_ERROR",
            "SYSTEM_ERROR",
        ):
            time.sleep(0.1)

        assert (mode(root), mode(root / "flowsched.db"), mode(root / "token")) == (0o700, 0o600, 0o600)
        for path in (root / "flowsched.db", root / "flowsched.db-wal", root / "token", root / "nodes"):
            assert as_nobody(
                lambda path=path: str(os.listdir(path) if path.is_dir() else path.read_bytes())
            ).startswith("PermissionError")
        body = json.dumps({"name": "x", "stages": [{"name": "a", "command": ["id"]}]}).encode()
        asked = Request(f"{service.url}/api/v1/workflows", data=body)
        assert (
            as_nobody(lambda: str(urlopen(asked, timeout=60).status))
            == "HTTPError: HTTP Error 401: Unauthorized"
        )
        assert as_nobody(lambda: str(tokens.found(service.url))) == "None"
        # What a task delivers has the mode that its user's umask gives: the root alone is private.
        assert (mode(out / "f"), as_nobody(lambda: (out / "f").read_text())) == (0o644, "x\n")

        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        service.ready(other_than=pid)
        assert command("ls", "--server", service.url).returncode == 0  # the token stays


@other_account
def test_a_token_is_not_sent_to_another_account_that_has_taken_the_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The service is gone, and `nobody` listens where it listened. Root's and our own sockets are trusted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        tokens.announce(port, "t0")
        assert tokens.found(f"http://127.0.0.1:{port}") == "t0"
        assert tokens.found(f"http://localhost:{port}/ga4gh/tes/v1") == "t0"
        assert tokens.found(f"http://example.org:{port}") is None
        assert tokens.found(f"http://127.evil.example:{port}") is None
        assert tokens.found(f"http://somebody@127.0.0.1:{port}") is None
    assert tokens.found(f"http://127.0.0.1:{port}") is None  # no service listens
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        theirs = socket.create_server(("127.0.0.1", 0))
    finally:
        os.setresuid(0, 0, 0)
    with theirs:
        port = theirs.getsockname()[1]
        tokens.announce(port, "t0")
        assert tokens.found(f"http://127.0.0.1:{port}") is None


def test_a_client_that_is_told_no_url_goes_to_the_service_of_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On whichever port it listens; FLOWSCHED_SERVER and FLOWSCHED_ROOT are followed, and no service is the usual port."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("FLOWSCHED_SERVER", "FLOWSCHED_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert tokens.default_url() == "http://127.0.0.1:8470"
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in (ours, other)]
        tokens.announce(ours.getsockname()[1], "t0", tmp_path / "flowsched")
        tokens.announce(other.getsockname()[1], "t0", tmp_path / "lab")
        assert tokens.default_url() == urls[0]
        assert dict(tokens.running()) == dict(
            zip(urls, (str(tmp_path / "flowsched"), str(tmp_path / "lab")), strict=True)
        )
        monkeypatch.setenv("FLOWSCHED_ROOT", str(tmp_path / "lab"))
        assert tokens.default_url() == urls[1]
        monkeypatch.setenv("FLOWSCHED_SERVER", "http://head:1")
        assert tokens.default_url() == "http://head:1"
    monkeypatch.delenv("FLOWSCHED_SERVER")
    assert tokens.default_url() == "http://127.0.0.1:8470"


def test_a_service_says_which_root_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The URL of a root, and the root of a URL; of none that does not listen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root = tmp_path / "root"
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        tokens.announce(port, "t0", root)
        assert tokens.root_of(f"http://127.0.0.1:{port}") == root
        assert tokens.url_of(root) == f"http://127.0.0.1:{port}"
        assert tokens.url_of(tmp_path / "another") is None
    assert tokens.root_of(f"http://127.0.0.1:{port}") is None
    assert tokens.url_of(root) is None


def test_an_announcement_that_others_can_write_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong token would do no harm; a file that others write is a sign of something that would."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        path = tokens.announce(port, "t0")
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)
        path.chmod(0o644)
        assert tokens.found(f"http://127.0.0.1:{port}") is None


def test_without_a_token_when_asked_for(tmp_path: Path) -> None:
    """`--no-token` answers everyone on this machine, and nowhere else; it says so when both are given."""
    with served(tmp_path / "root", "--no-supervise") as service:
        service.ready()
        assert service.get("/api/v1/workflows")["workflows"] == []
        assert not (tmp_path / "root" / "token").exists()
    wide = command("serve", "--no-token", "--host", "0.0.0.0", "--root", str(tmp_path / "r"))
    assert (wide.returncode, "needs a token" in wide.stderr) == (2, True)
    both = command("serve", "--no-token", "--token", "t", "--root", str(tmp_path / "r"))
    assert (both.returncode, "leave out one" in both.stderr) == (2, True)
    none = command("token", "--root", str(tmp_path / "r"))
    assert (none.returncode, "keeps none" in none.stderr) == (2, True)


def test_a_root_in_a_folder_with_other_things_closes_only_its_own(tmp_path: Path) -> None:
    """A home folder, or /tmp, is not closed because a service keeps its files there."""
    tmp_path.chmod(0o755)
    (tmp_path / "mine").write_text("x")
    (tmp_path / "mine").chmod(0o644)
    (tmp_path / "wes").mkdir(0o755)
    make_root(tmp_path)
    assert (mode(tmp_path), mode(tmp_path / "mine"), mode(tmp_path / "wes")) == (0o755, 0o644, 0o700)
    make_database(tmp_path / "flowsched.db")
    assert mode(tmp_path / "flowsched.db") == 0o600
    fresh = tmp_path / "fresh"
    make_root(fresh)
    assert mode(fresh) == 0o700


def test_a_database_beside_the_root_is_private_too(tmp_path: Path) -> None:
    """Wherever `--db` puts it, with what SQLite writes beside it; one of an earlier version is tightened."""
    import asyncio

    from flowsched.store.database import Database

    path = tmp_path / "other" / "flows.db"
    path.parent.mkdir()
    path.touch(mode=0o644)

    async def opened() -> list[tuple[str, int]]:
        async with await Database.open(f"sqlite:///{path}"):
            return sorted((each.name, mode(each)) for each in path.parent.iterdir())

    found = dict(asyncio.run(opened()))
    assert {"flows.db", "flows.db-shm", "flows.db-wal", "flows.db.lock"} <= set(found)
    assert set(found.values()) == {0o600}


def test_a_service_that_stops_announces_itself_no_more(tmp_path: Path) -> None:
    """One that is killed is started again on its port, so its announcement stays; the port of a refused one is free again."""
    with served(tmp_path / "root", token=True) as service:
        file = tokens.servers_folder() / f"{service.port}.json"
        pid = service.ready()
        assert file.exists()
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        assert file.exists()
        service.ready(other_than=pid)
        with served(service.root, token=True) as second:
            assert second.process.wait(60) == 2
            assert not (tokens.servers_folder() / f"{second.port}.json").exists()
        assert file.exists()
        service.process.terminate()
        assert service.process.wait(60) == 0
        assert not file.exists()
