"""The paths of a container task in images: folders of a room of its own and of shared volumes, mounted into each container.

The service has planned them (`cluster.node.container_paths`); here they are made, and found again when outputs are taken out. On
this machine the room is a folder of the attempt, and every folder is a shared volume. In a pod the room is the volume `inputs`.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Mapping

from .bounds import Bounds
from .outputs import Refused
from .places import Places, join
from .records import Record
from .safe_paths import (
    BY_UMASK,
    Opened,
    Unsafe,
    folder,
    new_file,
    open_file,
    parent,
    plain_mode,
    replace_file,
    write_text,
)
from .trees import copy_bytes


def place_in(view: Mapping[str, str], path: str) -> str:
    """The place of a path of the container, by the nearest path above it in the view; "" if it is the image's own."""
    above = path = tidy(path)
    while above not in view:
        if above == "/":
            return ""
        above = posixpath.dirname(above)
    return view[path] if above == path else f"{view[above]}/{path[len(above.rstrip('/')) + 1 :]}"


def tidy(path: str) -> str:
    """An absolute path without what it need not have."""
    return "/" + posixpath.normpath(path).lstrip("/")


class ImagePlaces(Places):
    """The paths of one attempt's containers, by the view of its layout.

    Args:
        room: A folder that is there: the task's own volume.
        layout: The order's part.
        bounds: Which paths of this machine may be written.
        mode: Of folders that are made in the room.
    """

    same_paths = False

    def __init__(self, room: str, layout: Record, bounds: Bounds, mode: int = BY_UMASK) -> None:
        super().__init__(room)
        self.needed = True
        self.bounds = bounds
        self.layout = layout
        self.mode = mode
        #: Outside links are followed now: later the task can have changed them.
        self.view = {
            path: os.path.realpath(place) if place.startswith("/") else place
            for path, place in self.entries("view")
        }
        #: (path of this machine, path of the container, whether it may only be read)
        self.mounts: list[tuple[str, str, bool]] = [
            (os.path.realpath(self.at(place)), path, fixed) for place, path, fixed in self.entries("mounts")
        ]
        self.alone = {self.at(place) for place in self.entries("files")}  #: files to be mounted alone

    def at(self, place: str) -> str:
        """The path of this machine that a place is: an absolute one itself, another one in the room."""
        return place if place.startswith("/") else join(self.room, place)

    def canonical(self, path: str) -> str:
        """A path as the layout has it: links of this machine mean nothing in an image."""
        return tidy(path)

    def host_of(self, path: str) -> str:
        """The path of this machine that a path of the container is; one that is not there for what is the image's own."""
        return self.at(place_in(self.view, path) or f"image{path}")

    def is_foreign(self, path: str) -> bool:
        """Whether it is an empty file that was made to be mounted alone, and that no step has written."""
        real = self.host_of(path)
        if real not in self.alone:
            return False
        try:
            found = os.stat(real)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (0, 0)

    def is_read_only(self, path: str) -> bool:
        """Whether steps cannot write to what a path leads to."""
        here = self.resolve(path)
        return place_in({top: top for _, top, fixed in self.mounts if fixed}, here) != ""

    def check_sources(self) -> None:
        """Check that the files which are used in place are there. Raises Refused."""
        for path, source, is_folder in self.entries("sources"):
            if not (os.path.isdir(source) if is_folder else os.path.exists(source)):
                raise Refused("InputMissing", f"{source}, an input for {path}, is not there")

    def make_folders(self) -> None:
        """Make the folders that steps write to.

        Raises:
            Refused: One may not be written to.
            OSError: One cannot be made; also if another account has put a link where a folder was.
        """
        for place in self.entries("folders"):
            real = os.path.realpath(self.at(place))
            outside = place.startswith("/")
            make_folder(self.bounds.check(real) if outside else real, BY_UMASK if outside else self.mode)

    def fill(self) -> None:
        """Put texts of the document, copies, links, and the empty files to be mounted alone in place. Raises as `make_folders`."""
        for place, text in self.entries("texts"):
            write_program(self.target_of(place), text)
        for source, place in self.entries("copies"):
            copy(self.at(source), self.target_of(place))
        for place, leads in self.entries("links"):
            link(self.target_of(place), leads)
        for place in self.entries("files"):
            touch(self.target_of(place))

    def entries(self, key: str) -> list:  # type: ignore[type-arg]
        """A part of the layout."""
        return self.layout[key]  # type: ignore[return-value]

    def target_of(self, place: str) -> str:
        """The path of this machine where something is put, its folder's links followed. Raises Refused where it may not be."""
        above, name = os.path.split(self.at(place))
        real = join(os.path.realpath(above), name)
        return self.bounds.check(real) if place.startswith("/") else real


def named(path: str, act: Callable[[], object]) -> None:
    """Do something at a path. An error names all of the path, and not a step of the way. A link on the way is an OSError."""
    try:
        act()
    except Unsafe as error:
        raise OSError(errno.ELOOP, f"{error}, where a folder was", path) from None
    except OSError as error:
        if not os.path.isabs(str(error.filename or path)):
            error.filename = path
        raise


def make_folder(path: str, mode: int) -> None:
    """Make a folder, and what is above it. Raises OSError."""
    names = [name for name in path.split("/") if name]
    named(path, lambda: os.close(folder(None, names, make=mode).fd))


def replace(path: str, fill: Callable[[int], object]) -> None:
    """Make a file that takes its place when all of it is there. Raises OSError."""
    named(path, lambda: replace_file(path, fill))


def unless_there(path: str, make: Callable[[int, str], object]) -> None:
    """Make something, by its folder and name, where nothing is. Raises OSError."""

    def act() -> None:
        with parent(path, make=BY_UMASK) as at:
            make(at, os.path.basename(path))

    if not os.path.lexists(path):
        named(path, act)


def write_program(path: str, text: str) -> None:
    """Write a text of the document. All users may execute it, since the document does not say whether it is a program."""

    def fill(fd: int) -> None:
        write_text(fd, text)
        os.fchmod(fd, 0o755)

    replace(path, fill)


def link(path: str, leads: str) -> None:
    """Make a link, unless something is there."""
    unless_there(path, lambda at, name: os.symlink(leads, name, dir_fd=at))


def touch(path: str) -> None:
    """Make an empty file unless something is there: older than everything, so that one sees whether it has been written."""

    def make(at: int, name: str) -> None:
        with Opened(new_file(at, name)) as fd:
            os.fchmod(fd, 0o666)
            os.utime(fd, (0, 0))

    unless_there(path, make)


def copy(source: str, target: str) -> None:
    """Copy a file, or a folder with all in it, links followed. Raises OSError."""
    if not os.path.isdir(source):
        copy_file(source, target)
        return
    for top, _, names in os.walk(source, followlinks=True):
        there = target + top[len(source) :]
        make_folder(there, BY_UMASK)
        for name in names:
            copy_file(join(top, name), join(there, name))


def copy_file(source: str, target: str) -> None:
    """Copy the bytes of a file, durably. The copy gives no account the rights of its owner. Raises OSError."""
    real = os.path.realpath(source)

    def fill(writing: int) -> None:
        with parent(real) as at, Opened(open_file(at, os.path.basename(real))) as reading:
            copy_bytes(reading, writing)
            os.fchmod(writing, plain_mode(os.fstat(reading).st_mode) | 0o600)
        os.fsync(writing)

    replace(target, fill)
