"""Names that another account can foresee: a link or folder that it puts there in advance is neither followed nor removed.

`.flowsched-left-PID` was one: the file that a link of this name led to was overwritten.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from flowsched.cli import cromwell
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.deliver import note, write_left
from flowsched.cluster.local.runner.image_places import ImagePlaces
from flowsched.cluster.node.folder_lock import lock_folder
from flowsched.cluster.node.space import Space
from flowsched.errors import ConfigurationError
from flowsched.store.database import FileLock
from flowsched.tokens import write_whole
from tests.cromwell.desk import Desk

#: Where a text has the number of a process in it: names in folders of flowsched's own, which no other account can write to, ids,
#: and paths below /proc.
OWN = {
    "app.py",
    "cluster/local/runner/kin.py",
    "cluster/node/folder_lock.py",
    "cluster/kubernetes/agent/logs.py",
    "cluster/local/runner/outputs.py",
    "cluster/local/runners.py",
    "cluster/node/cache.py",
}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of the user that no other account may write."""
    path = tmp_path / "private"
    path.write_text("mine")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that each account may write to."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


def test_no_name_in_a_folder_of_the_user_has_the_number_of_a_process() -> None:
    """Each account sees the numbers of processes, before a file of such a name is made."""
    top = Path(__file__).parents[2] / "flowsched"
    found = {str(path.relative_to(top)) for path in top.rglob("*.py") if "{os.getpid()" in path.read_text()}
    assert found == OWN, "the folder may be another account's too: take `temporary_name()`"


@pytest.mark.parametrize("planted", ["link", "folder"])
def test_a_file_that_is_left_takes_no_planted_name(shared: Path, private: Path, planted: str) -> None:
    name = shared / f".flowsched-left-{os.getpid()}"
    if planted == "link":
        name.symlink_to(private)
    else:
        name.mkdir()
        (name / "theirs").touch()
    write_left(str(shared / "rc"), "79")
    assert (shared / "rc").read_text() == "79"
    assert private.read_text() == "mine"
    assert os.path.lexists(name)
    assert sorted(path.name for path in shared.iterdir()) == [name.name, "rc"]


def test_a_measurement_of_room_writes_through_no_planted_link(shared: Path, private: Path) -> None:
    """It wrote 64 KiB over what the link led to."""
    (shared / f".probe-{os.getpid()}").symlink_to(private)
    space = Space(shared)
    space.note(OSError(errno.EDQUOT, "quota"))
    space.measure()
    assert private.read_text() == "mine"


def test_a_file_that_is_written_whole_takes_no_planted_name(shared: Path, private: Path) -> None:
    (shared / f".profile.yaml.{os.getpid()}").symlink_to(private)
    write_whole(shared / "profile.yaml", b"queues: {}\n", 0o640)
    assert private.read_text() == "mine"
    assert f"{(shared / 'profile.yaml').stat().st_mode:o}" == "100640"


async def test_locks_follow_no_link(shared: Path, private: Path) -> None:
    """They wrote the number of their process over what it led to."""
    (shared / "in-use").symlink_to(private)
    (shared / "x.db.lock").symlink_to(private)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        await lock_folder(shared, 0, lambda _: "")
    with pytest.raises(ConfigurationError, match=re.escape("cannot open the lock file")):
        FileLock(shared / "x.db").acquire()
    assert private.read_text() == "mine"


def test_a_return_code_of_cromwell_takes_no_planted_name(shared: Path, private: Path) -> None:
    (shared / "rc.alive").symlink_to(private)
    with Desk((200, {"state": "CANCELLED"})) as desk:
        assert cromwell.main(["alive", "w1", "--server", desk.url, "--rc-file", str(shared / "rc")]) == 1
    assert private.read_text() == "mine"
    assert (shared / "rc").read_text() == "143\n"


class Swapping(Bounds):
    """Another account puts a link in the place of a folder once the path has been checked."""

    def __init__(self, folder: Path, leads: Path) -> None:
        super().__init__()
        self.folder, self.leads = folder, leads

    def check(self, path: str, *, whole: bool = False) -> str:
        checked = super().check(path, whole=whole)
        if not self.folder.is_symlink():
            self.folder.rmdir()
            self.folder.symlink_to(self.leads)
        return checked


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("folders", "{0}/made"),
        ("files", "{0}/made"),
        ("texts", ("{0}/made", "text")),
        ("copies", ("/etc/hostname", "{0}/made")),
        ("links", ("{0}/made", "/etc/hostname")),
    ],
)
def test_what_an_image_task_finds_in_a_folder_of_the_user_is_made_over_no_link(
    tmp_path: Path, shared: Path, key: str, entry: str | tuple[str, str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (shared / "d").mkdir()
    there = f"{shared}/d"
    layout = {
        each: [] for each in ("view", "mounts", "folders", "files", "sources", "copies", "links", "texts")
    }
    layout[key] = [
        entry.format(there) if isinstance(entry, str) else tuple(word.format(there) for word in entry)
    ]
    (tmp_path / "room").mkdir()
    places = ImagePlaces(str(tmp_path / "room"), layout, Swapping(shared / "d", closed))
    make = places.make_folders if key == "folders" else places.fill
    with pytest.raises(OSError, match=r"is a link to .* and no folder"):
        make()
    assert list(closed.iterdir()) == []


def test_a_line_about_a_refusal_is_written_over_no_link(shared: Path, private: Path) -> None:
    (shared / "stderr").symlink_to(private)
    container = {
        "steps": [{"stderr": "/out/stderr"}],
        "mounts": [{"source": str(shared), "path": "/out"}],
        "outputs": [],
    }
    note(container, Bounds(), "a line\n")
    assert private.read_text() == "mine"
