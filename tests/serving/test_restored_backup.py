"""A backup is put back while tasks of a later moment run: their work is used or ended, and no task runs twice at a time."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.processes import Served, served

pytestmark = pytest.mark.slow

#: Says that it runs, and twice at a time if it does; ends when `go` is there.
COMMAND = """
exec 9>> {0}/lock
flock -n 9 && echo x >> {0}/starts || echo x >> {0}/doubled
until [ -e {0}/go ]; do sleep 0.05; done
"""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@pytest.fixture(autouse=True)
def no_task_is_left(tmp_path: Path) -> Iterator[None]:
    """Also where a test fails."""
    yield
    (tmp_path / "go").touch()


def wait_for(told: Callable[[], Any], service: Served) -> None:
    """Until something is so."""
    end = time.monotonic() + 60
    while not told():
        assert time.monotonic() < end, service.told()
        time.sleep(0.02)


def starts(folder: Path) -> int:
    """How often the task has started, as it says itself."""
    file = folder / "starts"
    return file.read_text().count("x") if file.exists() else 0


def submit(service: Served, folder: Path) -> str:
    """One task that may fail once only; returns when it runs."""
    stage = {"name": "a", "command": ["sh", "-c", COMMAND.format(folder)]}
    ident: str = service.get("/api/v1/workflows", {"name": "w", "stages": [stage]})["id"]
    wait_for(lambda: starts(folder) == 1, service)
    return ident


def make_way(service: Served, folder: Path, ident: str) -> None:
    """Drain the node and let it take tasks again: the task runs as its next attempt."""
    service.get("/api/v1/nodes/node-0/drain", {"grace": "0s"})
    wait_for(lambda: counts(service, ident).get("QUEUED"), service)
    service.get("/api/v1/nodes/node-0/uncordon", {})
    wait_for(lambda: starts(folder) == 2, service)


def counts(service: Served, ident: str) -> dict[str, int]:
    """How many tasks of a workflow are in which state."""
    found: dict[str, int] = service.get(f"/api/v1/workflows/{ident}")["counts"]
    return found


def ended(service: Served, folder: Path, ident: str) -> str:
    """Let the task end; the state of its workflow."""
    (folder / "go").touch()
    wait_for(lambda: service.get(f"/api/v1/workflows/{ident}")["state"] in ENDED, service)
    return str(service.get(f"/api/v1/workflows/{ident}")["state"])


def test_a_task_that_was_drained_after_the_backup_of_the_database_goes_on(tmp_path: Path) -> None:
    """The attempt that the backup knows was released by a service it does not know of: no failure. The later one is adopted."""
    root = tmp_path / "root"
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
    shutil.copy(root / "flowsched.db", tmp_path / "backup.db")
    with served(root) as service:
        service.ready()
        make_way(service, tmp_path, ident)
    for name in ("flowsched.db-wal", "flowsched.db-shm"):
        (root / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", root / "flowsched.db")
    with served(root) as service:
        service.ready()
        wait_for(lambda: counts(service, ident).get("RUNNING"), service)
        assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (2, False)


def test_tasks_of_a_root_that_a_backup_has_replaced_are_ended_before_theirs_start(tmp_path: Path) -> None:
    """Their runner is of a folder that is not here any more: nothing in the backup names it."""
    root = tmp_path / "root"
    with served(root) as service:
        service.ready()
        ident = submit(service, tmp_path)
    subprocess.run(["cp", "-a", root, tmp_path / "backup"], check=True)
    with served(root) as service:
        service.ready()
        make_way(service, tmp_path, ident)
    root.rename(tmp_path / "before")
    subprocess.run(["cp", "-a", tmp_path / "backup", root], check=True)
    with served(root) as service:
        service.ready()
        wait_for(lambda: starts(tmp_path) == 3, service)
        assert "another folder was here before" in service.told()
        assert ended(service, tmp_path, ident) == "SUCCEEDED"
    assert (starts(tmp_path), (tmp_path / "doubled").exists()) == (3, False)
