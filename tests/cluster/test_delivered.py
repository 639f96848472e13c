"""Datasets of a node's cache, made of the files that an attempt has delivered to an object store."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.delivered import keep
from flowsched.executor.datasets import uri_of, versioned
from flowsched.executor.protocol import DeliveredFile, SourceFile
from flowsched.workflow.spec import Delivered


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    made.scan()
    return made


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of an attempt."""
    (tmp_path / "attempt/container").mkdir(parents=True)
    return tmp_path / "attempt"


def left(own: Path, name: str, text: str = "ACGT", uri: str = "", version: str = "tag") -> DeliveredFile:
    """A file that a task has left and that was delivered."""
    path = own / "container" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    status = path.stat()
    place = SourceFile(str(path), status.st_ino, status.st_mtime_ns)
    return DeliveredFile(f"/out/{name}", uri or f"s3://lab/{name}", len(text), version, place)


def at(file: DeliveredFile) -> Path:
    """Where its task has left it."""
    assert file.place is not None
    return Path(file.place.path)


def test_a_delivered_file_becomes_a_dataset_by_its_version(cache: Cache, own: Path) -> None:
    """It moves, is read-only, and is there after a restart; what has no version or no place is left."""
    file, nameless = left(own, "a.bam"), left(own, "b.bam", version="")
    inode = at(file).stat().st_ino
    (entry,) = keep(cache, own, (), [file, nameless, DeliveredFile("/out/c", "/data/c", 4)])
    assert entry.uri == versioned("s3://lab/a.bam", "tag")
    path = cache.payload(entry)
    assert (path.name, path.read_text(), path.stat().st_ino) == ("a.bam", "ACGT", inode)
    assert path.stat().st_mode & 0o777 == 0o444
    assert not at(file).exists()
    assert at(nameless).exists()
    again = Cache(cache.folder)
    again.scan()
    assert (list(again.entries), again.used_bytes) == ([entry.uri], 4)


def test_a_folder_becomes_one_dataset(cache: Cache, own: Path) -> None:
    """All of it moves. Where there is one object alone, the folder's version is that of the object."""
    files = [
        left(own, "d/1", "one", version="t1 v1"),
        left(own, "d/deep/2", "two", version="t2 v2"),
        left(own, "e/1", "alone", version="t3"),
    ]
    outputs = [Delivered("/out/d", "s3://lab/d", True), Delivered("/out/e", "s3://lab/e", True)]
    big, small = keep(cache, own, outputs, files)
    assert (uri_of(big.uri), big.size_bytes, big.directory) == ("s3://lab/d/", 6, True)
    assert small.uri == versioned("s3://lab/e/", "t3")
    top = cache.payload(big)
    assert {str(p.relative_to(top)): p.read_text() for p in top.rglob("*") if p.is_file()} == {
        "1": "one",
        "deep/2": "two",
    }


@pytest.mark.parametrize("way", ["{}", "../../../victim", "sub/../../../../victim", "./x", "a//b", "", "a/"])
def test_a_folder_with_a_path_out_of_it_is_no_dataset(
    cache: Cache, own: Path, tmp_path: Path, way: str
) -> None:
    """Another output names an object below the folder's: no file outside of the cache is made or replaced."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    inside, odd = left(own, "d/1", "one"), left(own, "x", uri=f"s3://lab/d/{way.format(victim)}")
    outputs = [Delivered("/out/d", "s3://lab/d", True), Delivered("/out/x", odd.uri)]
    assert keep(cache, own, outputs, [inside, odd]) == []
    assert (victim.read_text(), os.listdir(cache.folder)) == ("mine", [])
    assert at(odd).read_text() == "ACGT"


def test_files_of_a_folder_on_a_shared_storage_are_datasets_one_by_one(cache: Cache, own: Path) -> None:
    """Only the large ones have a version, so they are not all of the folder."""
    large, small = (
        left(own, f"d/{name}", uri=f"/lab/d/{name}", version=version)
        for name, version in (("a", "t"), ("b", ""))
    )
    (entry,) = keep(cache, own, [Delivered("/out/d", "/lab/d", True)], [large, small])
    assert entry.uri == versioned("/lab/d/a", "t")


def test_wildcards_give_a_dataset_for_each_file(cache: Cache, own: Path) -> None:
    """Readers name the files, and not the folder."""
    files = [left(own, "w/1.txt"), left(own, "w/2.txt")]
    found = keep(cache, own, [Delivered("/out/w/*.txt", "s3://lab/w", True, "/out/w")], files)
    assert sorted(uri_of(entry.uri) for entry in found) == ["s3://lab/w/1.txt", "s3://lab/w/2.txt"]


def test_what_others_may_write_to_is_not_taken(cache: Cache, own: Path, tmp_path: Path) -> None:
    """A file with a second name, one with other bytes by now, one that a link has replaced, and one outside of the attempt."""
    linked, written, replaced = left(own, "linked"), left(own, "written"), left(own, "replaced")
    os.link(at(linked), tmp_path / "second")
    before_ns = at(written).stat().st_mtime_ns
    at(written).write_text("TTTT")
    os.utime(at(written), ns=(before_ns, before_ns + 1_000_000_000))  # a fast test writes in the same tick
    other, new = left(own, "other"), left(own, "new")
    os.utime(at(new), ns=(0, at(other).stat().st_mtime_ns))
    at(new).rename(at(other))
    at(replaced).unlink()
    (tmp_path / "secret").write_text("ACGT")
    at(replaced).symlink_to(tmp_path / "secret")
    outside = left(tmp_path, "outside")
    assert keep(cache, own, (), [linked, written, other, replaced, outside]) == []
    assert (cache.entries, os.listdir(cache.folder)) == ({}, [])
    assert at(linked).exists()
    assert at(outside).exists()


def test_a_file_of_another_account_is_not_taken(
    cache: Cache, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a container's root. A copy may be large, and would delay the report of the attempt's end."""
    file, account = left(own, "a.bam"), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: account + 1)
    assert keep(cache, own, (), [file]) == []
    assert at(file).read_text() == "ACGT"
    assert os.listdir(cache.folder) == []


def test_a_dataset_is_durable_and_sealed_before_it_has_its_name(
    cache: Cache, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file and folder is synced before the record. Modes are those of a task's other outputs."""
    fsync, names = os.fsync, list[str]()

    def noted(fd: int) -> None:
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    files = [left(own, "d/1", "one"), left(own, "d/deep/tool", "two")]
    os.chmod(at(files[0]), 0o600)
    os.chmod(at(files[1]), 0o4700)
    monkeypatch.setattr(os, "fsync", noted)
    (entry,) = keep(cache, own, [Delivered("/out/d", "s3://lab/d", True)], files)
    assert {"1", "tool", "deep", "d"} <= set(names[: names.index("meta.json.tmp")])
    top = cache.payload(entry)
    assert [stat.S_IMODE((top / each).stat().st_mode) for each in ("1", "deep/tool", "deep")] == [
        0o444,
        0o555,
        0o755,
    ]


def test_a_cache_takes_no_more_than_it_may_have(cache: Cache, own: Path) -> None:
    """A file beyond the limit stays where it is."""
    large, small = left(own, "large", "x" * 101), left(own, "small", "x" * 100)
    (entry,) = keep(cache, own, (), [large, small], 100)
    assert uri_of(entry.uri) == "s3://lab/small"
    assert at(large).exists()


def test_the_largest_files_of_many_are_taken(cache: Cache, own: Path) -> None:
    """16 of 20: each delays the report of the attempt's end a little."""
    files = [left(own, f"{number}", "x" * (number + 1)) for number in range(20)]
    found = keep(cache, own, (), files)
    assert [entry.size_bytes for entry in found] == list(range(20, 4, -1))


def test_a_copy_on_another_disk_needs_room_there(
    cache: Cache, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied to a disk that would be full after it; a disk with room gets the copy."""
    rename = os.rename

    def moved(source: str, target: str, *, src_dir_fd: int | None = None) -> None:
        if src_dir_fd is not None:
            raise OSError(errno.EXDEV, "another disk")
        rename(source, target)

    monkeypatch.setattr(os, "rename", moved)
    file = left(own, "a.bam")
    with monkeypatch.context() as full:
        full.setattr("flowsched.cluster.node.space.shortage", lambda _folder, size: f"no room for {size}")
        assert keep(cache, own, (), [file]) == []
        assert os.listdir(cache.folder) == []
    (entry,) = keep(cache, own, (), [file])
    assert cache.payload(entry).read_text() == "ACGT"
