"""Delivery of many files: whole before they have their names, synced many at a time, told as they come."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from flowsched.cluster.local.runner import trees
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.deliver import Delivery, count
from flowsched.cluster.local.runner.outputs import Refused
from flowsched.cluster.local.runner.places import Places, plan
from flowsched.cluster.local.runner.room import Progress
from flowsched.cluster.local.runner.uploads import Stores


def left(folder: Path, files: int) -> Places:
    """The paths of an attempt that has left so many files in its folder `d`."""
    room = Path(os.path.realpath(folder)) / "room"
    (room / "d").mkdir(parents=True)
    for number in range(files):
        (room / f"d/f{number}").write_text(f"{number}")
    places = Places(str(room))
    places.bounds = Bounds(own=str(room))
    return places


def output(path: str, target: Path, **more: Any) -> dict[str, Any]:
    return {"path": path, "uri": str(target), "local": str(target), "prefix": None, **more}


def unsent(_: int, uri: str) -> str:
    raise AssertionError(uri)


def tree(folder: Path) -> dict[str, str]:
    """The files of a folder, by their relative paths."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


class Disk:
    """Notes what is synced, and refuses a name for a file that is not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[int] = []
        self.renamed = 0
        fsync, rename = os.fsync, os.rename

        def noted(fd: int) -> None:
            fsync(fd)
            self.synced.append(os.fstat(fd).st_ino)

        def checked(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            there = os.stat(source, dir_fd=src_dir_fd)
            assert there.st_ino in self.synced, f"{target} has its name before it is on the disk"
            self.renamed += stat.S_ISREG(there.st_mode)
            rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        monkeypatch.setattr(os, "fsync", noted)
        monkeypatch.setattr(os, "rename", checked)


@pytest.mark.parametrize("way", ["folder", "wildcard", "files"])
def test_many_files_of_one_folder_are_synced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """1,000 files go into a folder that is there: each is synced once, their folder ten times at most, and then they have names."""
    places, target = left(tmp_path, 1_000), tmp_path / "out"
    target.mkdir()
    inner = f"{places.room}/d"
    outputs = {
        "folder": [output(inner, target)],
        "wildcard": [output(f"{inner}/f*", target, prefix=inner)],
        "files": [output(f"{inner}/f{number}", target / f"f{number}") for number in range(1_000)],
    }[way]
    disk = Disk(monkeypatch)
    with Delivery(places, unsent, {str(each["local"]): str(each["local"]) for each in outputs}) as delivery:
        for each in outputs:
            delivery.deliver(each)
        delivery.flush()
        assert len(delivery.files) == 1_000
    files = [inode for inode in disk.synced if inode != target.stat().st_ino]
    assert len(files) == len(set(files)) == disk.renamed == 1_000
    assert len(disk.synced) <= 1_010
    assert tree(target) == {f"f{number}": f"{number}" for number in range(1_000)}


@pytest.mark.parametrize("moment", [1, 100, 257, 599])
def test_a_delivery_that_is_killed_leaves_whole_files_and_is_done_again(tmp_path: Path, moment: int) -> None:
    """Of 600 files that replace older ones, each is the old or the new one; the next delivery brings all of them."""
    places, target = left(tmp_path, 600), tmp_path / "out"
    target.mkdir()
    for number in range(600):
        (target / f"f{number}").write_text("an older file")
    wanted = output(f"{places.room}/d", target)
    pid = os.fork()
    if pid == 0:
        renames = 0
        rename = os.rename

        def deadly(*arguments: Any, **named: Any) -> None:
            nonlocal renames
            renames += 1
            if renames == moment:
                os._exit(9)
            rename(*arguments, **named)

        os.rename = deadly
        try:
            with Delivery(places, unsent, {}) as delivery:
                delivery.deliver(wanted)
                delivery.flush()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    found = {name: text for name, text in tree(target).items() if not name.startswith(".flowsched-")}
    new = {f"f{number}": f"{number}" for number in range(600)}
    assert sum(text != "an older file" for text in found.values()) == moment - 1
    assert all(text in (new[name], "an older file") for name, text in found.items())
    with Delivery(places, unsent, {}) as delivery:
        delivery.deliver(wanted)
        delivery.flush()
        assert len(delivery.files) == 600
    assert {name: (target / name).read_text() for name in new} == new


def test_what_cannot_have_its_name_leaves_the_others_theirs(tmp_path: Path) -> None:
    """A folder has the name of the third file: the error names it, the first two are told, and nothing else is left."""
    places, target = left(tmp_path, 4), tmp_path / "out"
    (target / "f2").mkdir(parents=True)
    with Delivery(places, unsent, {}) as delivery:
        delivery.deliver(output(f"{places.room}/d", target))
        with pytest.raises(IsADirectoryError) as caught:
            delivery.flush()
        assert [each["uri"] for each in delivery.files] == [f"{target}/f0", f"{target}/f1"]
    assert caught.value.filename == f"{target}/f2"
    assert sorted(os.listdir(target)) == ["f0", "f1", "f2"]


def test_a_file_that_cannot_be_synced_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses one of 300: a folder of them does not come to be, and a sealed one is told as failed."""
    places, target = left(tmp_path, 300), tmp_path / "out"
    bad, fsync = os.stat(f"{places.room}/d/f77").st_ino, os.fsync

    def broken(fd: int) -> None:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, "broken")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", broken)
    with Delivery(places, unsent, {}) as delivery, pytest.raises(OSError, match="broken"):
        delivery.deliver(output(f"{places.room}/d", target))
    assert os.listdir(tmp_path) == ["room"]
    assert delivery.files == []
    with pytest.raises(OSError, match="broken"):
        trees.seal(f"{places.room}/d")


def test_a_file_that_found_no_room_is_delivered_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills while the third of four files is copied: taken again, all four are whole, and nothing else is left."""
    places, target = left(tmp_path, 4), tmp_path / "out"
    target.mkdir()
    wanted, copies = output(f"{places.room}/d", target), []

    def full(reading: int, writing: int) -> None:
        copies.append(writing)
        if len(copies) == 3:
            os.write(writing, b"half")
            raise OSError(errno.ENOSPC, "full")
        trees.copy_bytes(reading, writing)

    monkeypatch.setattr("flowsched.cluster.local.runner.deliver.copy_bytes", full)
    monkeypatch.setattr(
        os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EXDEV, "another disk"))
    )
    with Delivery(places, unsent, {}) as delivery:
        with pytest.raises(OSError, match="full"):
            delivery.deliver(wanted)
        delivery.deliver(wanted)
        delivery.flush()
        assert len(delivery.files) == 4
    assert tree(target) == {"f0": "0", "f1": "1", "f2": "2", "f3": "3"}


def test_a_target_in_another_one_goes_where_the_deeper_one_was(tmp_path: Path) -> None:
    """Targets are found by their folders: a link that was there before the task began leads what lies below it."""
    places = left(tmp_path, 1)
    targets = {"/results": "/disk1", "/results/deep": "/disk2/there"}
    with Delivery(places, unsent, targets) as delivery:
        assert delivery.target("/results/a/b") == "/disk1/a/b"
        assert delivery.target("/results/deep") == "/disk2/there"
        assert delivery.target("/results/deep/x") == "/disk2/there/x"
        assert delivery.target("/resultsdeep/x") == "/resultsdeep/x"


def test_the_plan_of_a_task_with_many_files_asks_the_disk_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the inputs and outputs cost at most five times the looks. Each output looked at each input: sixteen times."""
    looks, isdir = [0], os.path.isdir

    def counted(path: str) -> bool:
        looks[0] += 1
        return isdir(path)

    def asked(files: int) -> int:
        sources = [tmp_path / f"{files}-{number}" for number in range(files)]
        for source in sources:
            source.touch()
        container: dict[str, Any] = {
            "mounts": [],
            "inputs": [
                {"path": f"/in/{each.name}", "uri": str(each), "source": str(each), "content": None}
                for each in sources
            ],
            "outputs": [
                {"path": f"/w/{each.name}", "local": f"{tmp_path}/out/{each.name}", "directory": False}
                for each in sources
            ],
            "steps": [{"stdout": None, "stderr": None, "workdir": None}],
            "volumes": ["/w"],
        }
        looks[0] = 0
        plan(f"{tmp_path}/room", str(tmp_path), container)
        return looks[0]

    monkeypatch.setattr(os.path, "isdir", counted)
    assert 0 < asked(400) <= 5 * asked(100)


def test_files_are_told_as_they_are_delivered(tmp_path: Path) -> None:
    """A folder of three files, and a file: each is counted, of all."""
    places, told = left(tmp_path, 3), []
    outputs = [output(f"{places.room}/d", tmp_path / "out"), output(f"{places.room}/d/f0", tmp_path / "one")]
    task: Any = SimpleNamespace(waits=lambda why, reason: told.append((reason, why)))
    with Delivery(places, unsent, {}, Progress(task, lambda: count(places, outputs), 0)) as delivery:
        for each in outputs:
            delivery.deliver(each)
    assert told == [("Delivering", f"{files} of 4 files") for files in (1, 2, 3, 4)]


class Meeting(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store in which an object is written once eight are being written; it takes none with `refused` in its key."""

    cachable = False
    objects: dict[str, bytes]
    met: threading.Barrier

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        """An object to be written."""
        return _Written(self, path)


class _Written(io.BytesIO):
    def __init__(self, store: Meeting, key: str) -> None:
        super().__init__()
        self.store, self.key = store, key

    def close(self) -> None:
        """Meet the other writers, then be there."""
        if not self.closed:
            self.store.met.wait(20)
            if "refused" in self.key:
                raise PermissionError(self.key)
            self.store.objects[self.key] = self.getvalue()
        super().close()


@pytest.fixture
def meeting() -> type[Meeting]:
    """The store of `meet://`, empty."""
    Meeting.objects, Meeting.met = {}, threading.Barrier(8)
    fsspec.register_implementation("meet", Meeting, clobber=True)
    return Meeting


UPLOAD: dict[str, Any] = {"env": {}, "path": [], "options": {}}


@pytest.mark.parametrize("way", ["folder", "files"])
def test_eight_files_are_uploaded_at_a_time(tmp_path: Path, meeting: type[Meeting], way: str) -> None:
    """No object comes to be before eight are on their way. Each is told once it is there, in the order of the files."""
    places = left(tmp_path, 24)
    names = ["d"] if way == "folder" else [f"d/f{number}" for number in range(24)]
    outputs = [
        output(f"{places.room}/{name}", Path("x")) | {"uri": f"meet://lab/{name}", "local": None}
        for name in names
    ]
    with Delivery(places, Stores(UPLOAD).write, {}) as delivery:
        for each in outputs:
            delivery.deliver(each)
        delivery.flush()
        assert sorted(str(each["uri"]) for each in delivery.files) == sorted(
            f"meet://lab/d/f{n}" for n in range(24)
        )
    assert meeting.objects == {f"lab/d/f{number}": f"{number}".encode() for number in range(24)}


def test_what_a_store_refuses_is_named_and_the_others_are_told(
    tmp_path: Path, meeting: type[Meeting]
) -> None:
    """Of eight objects one is refused: the end names it, and seven are told."""
    places = left(tmp_path, 8)
    outputs = [
        output(f"{places.room}/d/f{n}", Path("x"))
        | {"uri": f"meet://lab/{'refused' if n == 3 else n}", "local": None}
        for n in range(8)
    ]
    with Delivery(places, Stores(UPLOAD).write, {}) as delivery:
        for each in outputs:
            delivery.deliver(each)
        with pytest.raises(Refused, match="cannot write meet://lab/refused: PermissionError"):
            delivery.flush()
        delivery.flush()
        assert [str(each["uri"]) for each in delivery.files] == [
            f"meet://lab/{n}" for n in (0, 1, 2, 4, 5, 6, 7)
        ]


def test_a_file_that_is_written_to_while_it_is_uploaded_is_another_one_than_was_sent(tmp_path: Path) -> None:
    """The record has the time from before the upload, so that no copy of the later bytes is taken for the object."""
    places = left(tmp_path, 1)
    path = Path(places.room) / "d/f0"
    os.utime(path, ns=(0, 5))

    def send(_: int, _uri: str) -> str:
        path.write_text("1")
        return "tag"

    with Delivery(places, send, {}) as delivery:
        delivery.deliver(output(str(path), tmp_path / "x") | {"uri": "s3://lab/x", "local": None})
        delivery.flush()
    assert [each["place"] for each in delivery.files] == [
        {"path": str(path), "inode": path.stat().st_ino, "mtime_ns": 5}
    ]
