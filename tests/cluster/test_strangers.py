"""One entry that flowsched has not made stopped the start of all: /readyz said 503 for ever, and accepted tasks never ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.agent.ledger import Ledger
from flowsched.cluster.kubernetes.agent.logs import Logs
from flowsched.cluster.local.containers import devices
from flowsched.cluster.node.cache import Cache
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import shell

HASH = "ab" * 32


def put(path: Path) -> Path:
    """A folder with a file in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir()
    (path / "kept").write_text("mine")
    return path


FOLDERS = [
    "poke.sock",
    "runner.log",
    "flowsched.db.id",
    "runners/lost+found",
    "runners/backup of Tuesday",
    "runners/1700000000000-7/lock",
    "runners/1700000000000-7/000001",
    "runners/1700000000000-7/000001.done",
    "nodes/lost+found",
    "nodes/node-0/attempts/lost+found",
    "nodes/node-0/cache/lost+found",
]
FILES = [
    "runners/.nfs0001",
    "runners/1700000000000-7/.nfs0001",
    "nodes/.nfs0001",
    "nodes/node-0/attempts/.nfs0001",
    "nodes/node-0/cache/.nfs0001",
]


@pytest.mark.parametrize("name", [f"{name}/" for name in FOLDERS] + FILES)
async def test_a_cluster_starts_and_runs_tasks_beside_a_strange_entry(
    real_world: RealWorld, name: str
) -> None:
    path = real_world.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("/"):
        path.mkdir()
        path = path / "kept"
    path.write_text("mine")
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "true")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (0, "")
    await cluster.forget(["a"])
    assert path.read_text() == "mine"


async def test_what_is_skipped_is_said_with_its_path(
    real_world: RealWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    path = real_world.root / "runners" / ".nfs0001"
    path.parent.mkdir(parents=True)
    path.touch()
    await real_world.open()
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(said) == 1
    assert "skipped an entry that is not flowsched's; move it out of this folder, or remove it" in said[0]
    assert str(path) in said[0]


def test_a_cache_keeps_what_it_has_not_made(tmp_path: Path) -> None:
    """It removed it: a folder lost+found with what fsck had saved."""
    strange = put(tmp_path / "lost+found")
    half_made = put(tmp_path / ".tmp-1-0")
    broken = put(tmp_path / HASH)
    Cache(tmp_path).scan()
    assert (strange / "kept").read_text() == "mine"
    assert not half_made.exists()
    assert not broken.exists()


def test_the_ledger_of_an_agent_opens_beside_a_strange_folder(tmp_path: Path) -> None:
    strange, half, broken = put(tmp_path / "lost+found"), tmp_path / ".uid-1.tmp", tmp_path / "uid-2.json"
    half.touch()
    broken.write_text("{")
    ledger = Ledger(tmp_path)
    ledger.open()
    assert ledger.pods() == []
    assert (strange / "kept").exists()
    assert not half.exists()
    assert not broken.exists()


def test_the_kept_logs_of_an_agent_open_beside_a_strange_folder(tmp_path: Path) -> None:
    strange, half = put(tmp_path / "kept" / "notes"), put(tmp_path / "kept" / ".tmp-1-0")
    Logs(tmp_path / "live", tmp_path / "kept", lambda _: False, lambda: 0).open()
    assert (strange / "kept").exists()
    assert not half.exists()


def test_a_file_among_the_logs_of_pods_does_not_end_the_following(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    (live / "space_fs-wf1-a-0-0_uid-1").touch()
    logs = Logs(live, tmp_path / "kept", lambda _: False, lambda: 0)
    logs.open()
    logs.refresh()


def test_a_folder_among_the_descriptions_of_devices_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that chooses the engine raised, and every attempt in an image was STARTING for ever."""
    put(tmp_path / "old.yaml")
    monkeypatch.setattr("flowsched.cluster.local.containers._CDI", (str(tmp_path),))
    assert devices() is False
