"""Root and database get another partner: what the former one has left is neither run twice nor touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.forks import ran
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401
from tests.serving.processes import Served, served
from tests.serving.test_restored_backup import counts, ended, starts, submit, wait_for

pytestmark = pytest.mark.slow
LEADERSHIP = "flowsched.control.leading.leadership"


@pytest.fixture(autouse=True)
def no_task_is_left(tmp_path: Path) -> Iterator[None]:
    """Also where a test fails."""
    yield
    (tmp_path / "go").touch()


def readiness(service: Served) -> str:
    """Why it is not ready; "" = it is."""
    try:
        urlopen(f"{service.url}/readyz", timeout=60).close()
    except HTTPError as error:
        return error.read().decode()
    return ""


def copied(root: Path, new: Path) -> None:
    subprocess.run(["cp", "-a", root, new], check=True)


def linked(root: Path, new: Path) -> None:
    root.rename(new)
    root.symlink_to(new)


def moved(root: Path, new: Path) -> None:
    root.rename(new)


def runners(root: Path) -> list[int]:
    """The runners that a service started for a root."""
    command = ["pgrep", "-f", f"run_attempt.py {root} "]
    return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True).stdout.split()]


@contextmanager
def refused(root: Path, *options: str) -> Iterator[list[str]]:
    """A start that ends with exit code 2; what it says."""
    said: list[str] = []
    with served(root, *options) as service:
        assert service.process.wait(60) == 2, service.told()
        said.append(service.told())
        yield said


@pytest.mark.parametrize("runner", ["lives", "dead"])
@pytest.mark.parametrize("way", [copied, linked, moved])
def test_a_root_at_another_place_runs_no_task_twice(tmp_path: Path, way: object, runner: str) -> None:
    """Without `--take-over` it is refused. With it the tasks that ran at the former place are ended before they run again."""
    root, new = tmp_path / "root", tmp_path / "disk" / "root"
    new.parent.mkdir()
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
    if runner == "dead":
        for pid in runners(root):
            os.kill(pid, signal.SIGKILL)
    way(root, new)  # type: ignore[operator]
    with refused(new) as (said,):
        assert "--take-over" in said
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)
    with served(new, "--take-over") as service:
        service.ready()
        wait_for(lambda: starts(tmp_path) + (tmp_path / "doubled").exists() == 2, service)
        assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (2, False)
    with served(new) as service:  # from now on the root is at home there
        service.ready()
        assert service.get(f"/api/v1/workflows/{ident}")["state"] == "SUCCEEDED"


def test_a_root_takes_no_place_of_one_whose_service_runs(tmp_path: Path) -> None:
    """Its tasks would be ended under a service that goes on."""
    root, new = tmp_path / "root", tmp_path / "copy"
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
        copied(root, new)
        with refused(new, "--take-over") as (said,):
            assert f"process {service.service} runs the local cluster in {root}" in said
        assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)


def test_a_start_with_another_database_says_so(tmp_path: Path) -> None:
    """It is refused while tasks of the last database run; later it says what is not shown, once for each change."""
    root, other = tmp_path / "root", tmp_path / "other.db"
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
    shutil.move(root / "flowsched.db", tmp_path / "mine.db")
    for path in root.glob("flowsched.db-*"):
        path.unlink()
    for options in ((), ("--db", str(other))):  # an empty file by mistake, and another file
        with refused(root, *options) as (said,):
            assert f"1 tasks of {root}/flowsched.db run in {root} (fs-{ident}-a-0-0 …), and " in said
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)
    (tmp_path / "go").touch()
    time.sleep(1)
    with served(root, "--db", str(other)) as service:
        service.ready()
        assert (
            f"{root} was used with {root}/flowsched.db, and now with {other}, another database"
            in service.told()
        )
        assert service.get("/api/v1/workflows")["workflows"] == []
    with served(root, "--db", str(tmp_path / "mine.db")) as service:
        service.ready()
        wait_for(lambda: service.get(f"/api/v1/workflows/{ident}")["state"] == "SUCCEEDED", service)
    with served(root, "--db", str(tmp_path / "mine.db")) as service:
        service.log.write_text("")
        service.ready()
        assert "another database" not in service.told()
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)


def test_a_service_outlives_a_root_that_is_away(tmp_path: Path) -> None:
    """Root and database are away for longer than a request waits: it says so, and no task is lost or started twice."""
    root = tmp_path / "root"
    with served(root, constants={f"{LEADERSHIP}.LEASE_MS": 3_000, f"{LEADERSHIP}.RENEW_S": 0.5}) as service:
        pid = service.ready()
        ident = submit(service, tmp_path)
        root.rename(tmp_path / "away")
        wait_for(lambda: str(root) in readiness(service), service)
        time.sleep(4)  # longer than the lease
        (tmp_path / "away").rename(root)
        assert service.ready() == pid
        assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)


@pytest.mark.postgresql
def test_a_service_goes_on_with_a_database_that_was_moved(
    tmp_path: Path,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """From SQLite to PostgreSQL and back while a task runs: it is adopted each time, and the history is there."""
    root, url = tmp_path / "root", fresh_postgres()
    file = str(root / "flowsched.db")
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
    for source, target in ((file, url), (url, file)):
        done = ran(["db", "move", source, target])
        assert (done.returncode, done.stdout) == (0, "1 workflows moved\n"), done.stderr
        with refused(root, "--db", source) as (said,):
            assert "were moved to" in said if source == file else "start the service without --db" in said
        with served(root, "--db", target) as service:
            service.log.write_text("")
            service.ready()
            wait_for(lambda service=service: counts(service, ident).get("RUNNING"), service)
            assert "another database" not in service.told()
            if target == file:
                assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (1, False)
