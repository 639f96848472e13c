"""Results that find no room: a runner tries again, loses nothing, and says what it waits for."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flowsched.cluster.local.runner import attempt, outputs, trees
from flowsched.cluster.local.runner.room import with_room
from flowsched.cluster.node.space import Space


def task(folder: Path) -> Any:
    """What `with_room` asks of an attempt: it keeps the reasons that were given."""
    given: list[str] = []
    return SimpleNamespace(folder=str(folder), given=given, waits=given.append)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_result_that_finds_no_room_is_written_when_there_is_some(tmp_path: Path, number: int) -> None:
    """A full disk and a used-up quota are the same; the reason is told while it waits, and taken back after."""
    full = task(tmp_path)
    tries: list[list[str]] = []

    def act() -> None:
        tries.append(list(full.given))
        if len(tries) == 1:
            raise OSError(number, os.strerror(number))

    with_room(full, "output f", f"{tmp_path}/not/yet/f", act)
    why = tries[1][0]
    assert why.startswith(f"output f finds no room: {os.strerror(number)}, at {tmp_path}/not/yet/f; ")
    assert (tries, full.given) == ([[], [why]], [why, ""])


@pytest.mark.parametrize("released", [False, True])
def test_the_wait_ends(tmp_path: Path, released: bool) -> None:
    """When no room was found in time, or the end of the attempt is asked for; another error is no reason to wait at all."""
    if released:
        (tmp_path / "release").write_text("0")

    def full() -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="output f finds no room: full, at /f") as caught:
        with_room(task(tmp_path), "output f", "/f", full, wait_s=3600 if released else 0)
    assert caught.value.errno == errno.ENOSPC

    def broken() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        with_room(task(tmp_path), "output f", "/f", broken)


@pytest.mark.parametrize("fails", [(outputs, "write_record"), (trees, "seal")])
def test_a_result_that_could_not_be_published_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[ModuleType, str]
) -> None:
    """Whatever finds no room, the result can be published again, whole."""
    (tmp_path / "work").mkdir()
    (tmp_path / "cache").mkdir()
    source, entry = tmp_path / "work/f", tmp_path / "cache/entry"
    source.write_text("result")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    work = os.open(tmp_path / "work", os.O_RDONLY)
    wanted = {"name": "f", "path": "f", "uri": "flowsched://f", "optional": False, "value": False}
    (found,) = outputs.find_outputs(work, [wanted])
    with monkeypatch.context() as patch:
        patch.setattr(*fails, full)
        with pytest.raises(OSError, match="full"):
            outputs.publish(str(entry), work, found)
    assert source.read_text() == "result"
    outputs.publish(str(entry), work, found)
    os.close(work)
    assert (entry / "f").read_text() == "result"
    assert not source.exists()
    assert os.listdir(tmp_path / "cache") == ["entry"]


def test_a_full_file_system_says_what_the_second_figure_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as much must be free to start again, and the words say so."""
    blocks = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1 << 18, f_favail=1 << 20, f_files=1 << 20)
    monkeypatch.setattr("flowsched.cluster.node.space.os.statvfs", lambda _: blocks)
    space = Space(tmp_path)
    assert space.measure().endswith("10.2 MiB and 1024 are needed to start anything")
    assert space.measure().endswith("20.5 MiB and 2048 are needed to start again (twice the least)")
    blocks.f_bavail = 1 << 17
    assert space.measure() == ""


def test_many_folders_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with files is; more than the most, folders too, would hold up the attempt's end."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(b"x" * 9000)
    monkeypatch.setattr(attempt, "_MOST_FILES", 10)
    assert attempt.occupied(str(tmp_path)) >= 9000
    for number in range(10):
        (tmp_path / f"d{number}").mkdir()
    assert attempt.occupied(str(tmp_path)) == 0
