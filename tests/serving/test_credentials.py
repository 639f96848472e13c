"""What a service was given as a secret is in no place where another process can read it, and later lives have it all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from flowsched import credentials
from tests.programs import free_ports
from tests.serving.processes import NOBODY, START_S, Served, gone, served

pytestmark = pytest.mark.slow
SECRETS = {
    "FLOWSCHED_TOKEN": "t0ken-of-this-test",
    "AWS_ACCESS_KEY_ID": "AKIAOFTHISTEST",
    "AWS_SECRET_ACCESS_KEY": "s3cret-of-this-test",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountKey=azure-of-this-test",
}


def shown(pid: int) -> bytes:
    """What the kernel shows of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may still look")
def test_no_life_shows_its_secrets_and_each_has_them(tmp_path: Path) -> None:
    """Neither the supervisor nor a service, in environment or command line; the token and the database stay the same."""
    database = f"sqlite:///{tmp_path}/p4ssword@host.db"
    options = {"token": True, "env": SECRETS | {"AWS_REGION": "eu-1"}, "python": ("-m", "flowsched")}
    with served(
        tmp_path / "root", "--db", database, **options
    ) as service:  # a fork shows what it was forked from
        pid = 0
        for _ in range(2):
            pid = service.ready(other_than=pid)
            both = shown(pid) + shown(service.process.pid)
            assert [value for value in (*SECRETS.values(), "p4ssword") if value.encode() in both] == []
            assert b"AWS_REGION=eu-1" in both  # what is no secret is found where it was
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{service.url}/api/v1/workflows", timeout=START_S)
            answer = service.get("/api/v1/workflows", token=SECRETS["FLOWSCHED_TOKEN"])
            assert answer["workflows"] == []
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
        service.ready(other_than=pid)
    assert (tmp_path / "p4ssword@host.db").exists()
    assert not (tmp_path / "root/flowsched.db").exists()


def test_store_options_are_those_of_the_file_systems() -> None:
    """By scheme, as s3fs and adlfs call them; what is no store's is left out."""
    given = {
        "FLOWSCHED_TOKEN": "t",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "",
    }
    assert credentials.store_options(given) == (
        ("s3", (("key", "k"), ("secret", "s"))),
        ("s3a", (("key", "k"), ("secret", "s"))),
    )


def test_options_that_hold_secrets_are_taken_out_of_a_command() -> None:
    """A database is one only where a password can be in it."""
    command = ["python", "serve", "--token", "t", "--db=postgresql://u:p@h/d", "--port", "1"]
    assert credentials.hide_options(command) == (
        ["python", "serve", "--port", "1"],
        {"FLOWSCHED_TOKEN": "t", "FLOWSCHED_DATABASE": "postgresql://u:p@h/d"},
    )
    assert credentials.hide_options(["serve", "--db", "/a/b"]) == (["serve", "--db", "/a/b"], {})


class ServedByNobody(Served):
    """A service of the account `nobody`, which may enter the folders in which this interpreter lies."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_ports(1)[0]
        self.url, self.log = f"http://127.0.0.1:{self.port}", root.with_name("nobody.log")
        caps = "+dac_read_search"
        become = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            f"--inh-caps={caps}",
            f"--ambient-caps={caps}",
        ]
        command = [sys.executable, "-m", "flowsched", "serve", "--root", str(root), "--port", str(self.port), "--cpu", "2",
                   "--images", "ignore", "--memory", "2Gi"]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*become, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(root.parent), "PYTHONPATH": str(Path.cwd()), **SECRETS},
            )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_task_reads_neither_memory_nor_descriptors_of_its_service() -> None:
    """It runs as the same user, who is not root. Container tasks, adoption and a new life work as before."""
    folder = Path(tempfile.mkdtemp(prefix="flowsched-nobody-", dir="/tmp"))
    os.chown(folder, NOBODY, NOBODY)
    service = ServedByNobody(folder / "root")
    try:
        for killed in (0, service.ready()):
            if killed:
                os.kill(killed, signal.SIGKILL)
            pid = service.ready(other_than=killed)
            looks = "; ".join(
                f"ls /proc/{p}/fd; cat /proc/{p}/environ; head -c 1 /proc/{p}/mem; cat /proc/{p}/maps"
                for p in (pid, service.process.pid)
            )
            task = {
                "executors": [
                    {"image": "a", "command": ["sh", "-c", f"({looks}) > /out/seen 2> /out/errors; true"]}
                ],
                "outputs": [
                    {"path": f"/out/{name}", "url": f"{folder}/{killed}-{name}"}
                    for name in ("seen", "errors")
                ],
            }
            token = SECRETS["FLOWSCHED_TOKEN"]
            ident = service.get("/v1/tasks", task, token=token)["id"]
            end = time.monotonic() + START_S
            while (found := service.get(f"/v1/tasks/{ident}?view=FULL", token=token))["state"] in (
                "QUEUED",
                "INITIALIZING",
                "RUNNING",
            ):
                assert time.monotonic() < end, found
                time.sleep(0.1)
            assert found["state"] == "COMPLETE", json.dumps(found)
            assert (folder / f"{killed}-seen").read_text() == ""
            assert (folder / f"{killed}-errors").read_text().count("Permission denied") == 8
    finally:
        service.end()
        shutil.rmtree(folder, ignore_errors=True)
