"""Paths in folders that strangers write to: what is reached is inside, whatever is changed meanwhile."""

from __future__ import annotations

import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.kubernetes.agent.trees import unpack
from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner import trees as left
from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.node.origins import Body

NAMES = st.sampled_from(["a", "b", "c"])
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)
ENTRIES = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=3),
        st.sampled_from(["file", "folder", "link", "absolute", "mounted"]),
        TARGETS,
    ),
    max_size=12,
)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def grow(top: Path, entries: list[tuple[list[str], str, str]]) -> None:
    """Make what can be made of them."""
    for way, kind, target in entries:
        path = top.joinpath(*way)
        with suppress(OSError):
            match kind:
                case "file":
                    path.write_text("x")
                case "folder":
                    path.mkdir()
                case "link":
                    path.symlink_to(target)
                case "absolute":
                    path.symlink_to(f"{top.parent}/{target}")
                case _:
                    path.symlink_to(f"{top}/{target}")


@given(entries=ENTRIES, path=TARGETS)
def test_what_a_path_means_is_what_the_system_says_if_that_is_inside(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[list[str], str, str]], path: str
) -> None:
    """In random trees of folders and links: never a name outside, and inside the same one as `realpath`."""
    top = tmp_path_factory.mktemp("tree") / "top"
    top.mkdir()
    grow(top, entries)
    try:
        real = os.path.realpath(top / path, strict=True)
    except OSError:
        real = None
    with opened(top) as fd:
        try:
            found = safe_paths.resolve(fd, path, (str(top),))
        except Unsafe:
            return
    if found is None:
        assert real is None
    else:
        assert real == f"{top}/{'/'.join(found)}"


@given(entries=ENTRIES)
def test_a_tree_that_can_be_measured_can_be_copied_linked_and_sealed(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[list[str], str, str]]
) -> None:
    """And has the same bytes, links and folders each time; one that cannot be is refused by all that look."""
    base = tmp_path_factory.mktemp("tree")
    (base / "top").mkdir()
    grow(base / "top", entries)
    with opened(base) as fd:
        try:
            size = left.measure(fd, "top").size_bytes
        except Unsafe:
            with pytest.raises(Unsafe):
                left.seal(str(base / "top"))
            return
        left.copy(fd, "top", str(base / "copy"))
        trees.place(str(base / "top"), fd, "linked")
    assert left.seal(str(base / "copy")) == size
    looks = [_look(base / name) for name in ("top", "copy", "linked")]
    assert looks[0] == looks[1] == looks[2]


def _look(top: Path) -> dict[str, str]:
    found = {}
    for path in top.rglob("*"):
        name = path.relative_to(top).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "/"
    return found


def test_a_folder_that_becomes_a_link_while_it_is_used(tmp_path: Path) -> None:
    """Somebody exchanges it as fast as he can: what is read is the folder's or nothing, never what the link leads to."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    top = tmp_path / "top"
    top.mkdir()
    (top / "real").mkdir()
    (top / "real" / "x").write_text("harmless")
    (top / "link").symlink_to("../outside")
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                os.rename(top / name, top / "d")
                os.rename(top / "d", top / name)

    thread = threading.Thread(target=exchange)
    thread.start()
    seen = set()
    try:
        with opened(top) as fd:
            for _ in range(3000):
                with suppress(Unsafe, FileNotFoundError), safe_paths.folder(fd, ("d",)) as inner:
                    file = safe_paths.open_file(inner, "x")
                    seen.add(os.read(file, 20))
                    os.close(file)
    finally:
        over.set()
        thread.join()
    assert seen <= {b"harmless"}


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "socket", "device"])
def test_only_ordinary_files_are_opened(tmp_path: Path, kind: str) -> None:
    """And none that would make the reader wait."""
    path = tmp_path / "x"
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case _:
            path.symlink_to("/dev/zero")
    with opened(tmp_path) as fd:
        with pytest.raises(Unsafe):
            safe_paths.open_file(fd, "x")
        if kind != "folder":
            with pytest.raises(Unsafe):
                left.measure(fd, "x")


def test_a_new_file_takes_the_place_of_whatever_is_there(tmp_path: Path) -> None:
    """A link is replaced, and not written through; a tree goes whole."""
    (tmp_path / "outside").write_text("keep")
    (tmp_path / "x").symlink_to("outside")
    (tmp_path / "y" / "deep").mkdir(parents=True)
    with opened(tmp_path) as fd:
        for name in ("x", "y", "z"):
            os.close(safe_paths.write_file(fd, name, "new", 0o640))
        safe_paths.remove(fd, "none")
    assert (tmp_path / "outside").read_text() == "keep"
    for name in ("x", "y", "z"):
        assert ((tmp_path / name).read_text(), (tmp_path / name).stat().st_mode & 0o777) == ("new", 0o640)


@pytest.mark.parametrize("path", ["a\ud800b", "/", ".", "./.", "a/../b", "a//..", "x" * 256])
def test_paths_that_are_none(path: str) -> None:
    """Refused by their text."""
    with pytest.raises(Unsafe):
        safe_paths.parts_of(path)


def test_paths_that_are_unusual() -> None:
    """Empty parts and dots say nothing; names need not be ASCII."""
    assert safe_paths.parts_of("./a//b/./ü") == ("a", "b", "ü")
    assert safe_paths.parts_of("..a/b..") == ("..a", "b..")


Kind = Literal["empty", "no-tar", "only-a-file"]


@pytest.mark.parametrize("kind", ["empty", "no-tar", "only-a-file"])
def test_streams_that_hold_no_folder(tmp_path: Path, kind: Kind) -> None:
    """None of them becomes a dataset."""
    made = BytesIO()
    if kind == "no-tar":
        made.write(b"x" * 10_000)
    else:
        with tarfile.open(fileobj=made, mode="w") as tar:
            if kind == "only-a-file":
                tar.addfile(tarfile.TarInfo("top"))
    made.seek(0)
    body = Body(made, "made")
    with pytest.raises((Unsafe, tarfile.TarError)):
        list(unpack(body, tmp_path / "x"))
