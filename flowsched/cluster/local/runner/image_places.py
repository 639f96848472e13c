"""The paths and steps of a container task in images: folders of the attempt and of this machine, mounted into each container.

The service has planned the mounts (`cluster.node.container_paths`); here they are made, and found again when outputs are taken out.
"""

from __future__ import annotations

import errno
import os

from .bounds import Bounds
from .engine import Engine, InImage
from .outputs import Refused
from .places import Places, join
from .records import Record
from .safe_paths import (
    BY_UMASK,
    Opened,
    Unsafe,
    new_file,
    open_file,
    open_mounted,
    parent,
    replace_file,
)
from .steps import Step
from .task import Task
from .trees import copy_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .finishing import Inode


class ImagePlaces(Places):
    """The paths of one attempt's containers, by the view of its layout.

    Args:
        room: A folder of the attempt: the task's own volume.
        layout: The order's part.
        bounds: Which paths of this machine may be written.
    """

    same_paths = False

    def __init__(self, room: str, layout: Record, bounds: Bounds) -> None:
        super().__init__(room)
        self.needed = True
        self.bounds = bounds
        self.layout = layout
        #: Outside links are followed now: later the task can have changed them.
        self.view = [
            (path, os.path.realpath(place) if place.startswith("/") else place)
            for path, place in layout["view"]  # type: ignore[attr-defined]
        ]
        #: (path of this machine, path of the container, whether it may only be read)
        self.mounts: list[tuple[str, str, bool]] = [
            (os.path.realpath(self.at(place)), path, fixed)
            for place, path, fixed in layout["mounts"]  # type: ignore[attr-defined]
        ]
        self.read_only = [path for _, path, fixed in self.mounts if fixed]

    def at(self, place: str) -> str:
        """The path of this machine that a place is: an absolute one itself, another one in the room."""
        return place if place.startswith("/") else join(self.room, place)

    def canonical(self, path: str) -> str:
        """A path as the layout has it: links of this machine mean nothing in an image."""
        return "/" + os.path.normpath(path).lstrip("/")

    def host_of(self, path: str) -> str:
        """The path of this machine that a path of the container is; one that is not there for what is the image's own."""
        for mounted, place in self.view:
            if path == mounted:
                return self.at(place)
            if path.startswith(mounted.rstrip("/") + "/"):
                return join(self.at(place), path[len(mounted.rstrip("/")) :])
        return f"{self.room}/image{path}"

    def is_foreign(self, path: str) -> bool:
        """Nothing is seen here but what the task asked for."""
        return False

    def is_read_only(self, path: str) -> bool:
        """Whether steps cannot write to what a path leads to."""
        here = self.resolve(path)
        return any(here == top or here.startswith(top.rstrip("/") + "/") for top in self.read_only)

    def make(self) -> None:
        """Make what the mounts show.

        Raises:
            Refused: An input is not there, or a folder may not be written to.
            OSError: They cannot be made.
        """
        os.makedirs(self.room)
        for path, source, folder in self.entries("sources"):
            if not (os.path.isdir(source) if folder else os.path.exists(source)):
                raise Refused("InputMissing", f"{source}, an input for {path}, is not there")
        try:
            self.fill()
        except Unsafe as error:
            raise OSError(errno.ELOOP, f"{error}, where a folder was") from None

    def fill(self) -> None:
        """Make folders, files and links in the room and in folders of the user, each over no link that has come since."""
        for place in self.entries("folders"):
            with parent(f"{self.writable_at(place)}/.", make=BY_UMASK):
                pass
        for place in self.entries("files"):
            target = self.writable_at(place)
            with parent(target, make=BY_UMASK) as at:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                os.close(open_file(at, os.path.basename(target), flags, 0o666))
        for place, text in self.entries("texts"):
            replace_file(self.writable_at(place), text)
        for source, place in self.entries("copies"):
            if not os.path.lexists(self.at(place)):
                copy_tree(source, self.writable_at(place))
        for place, leads in self.entries("links"):
            if os.path.lexists(self.at(place)):
                continue
            target = self.writable_at(place)
            with parent(target, make=BY_UMASK) as at:
                os.symlink(leads, os.path.basename(target), dir_fd=at)

    def entries(self, key: str) -> list:  # type: ignore[type-arg]
        """A part of the layout."""
        return self.layout[key]  # type: ignore[return-value]

    def writable_at(self, place: str) -> str:
        """The path of this machine that a place is, links followed, if flowsched may write there. Raises Refused."""
        real = os.path.realpath(self.at(place))
        return self.bounds.check(real) if place.startswith("/") else real


def copy_tree(source: str, target: str) -> None:
    """Copy a file, or a folder with all in it. Raises Unsafe, OSError."""
    if not os.path.isdir(source):
        copy_file(source, target)
        return
    for folder, _, names in os.walk(source):
        there = target + folder[len(source) :]
        with parent(f"{there}/.", make=BY_UMASK):
            pass
        for name in names:
            copy_file(os.path.join(folder, name), os.path.join(there, name))


def copy_file(source: str, target: str) -> None:
    """Copy the bytes of a file, before the task begins."""
    with (
        open(source, "rb") as reading,
        parent(target, make=BY_UMASK) as at,
        Opened(new_file(at, os.path.basename(target))) as writing,
    ):
        copy_bytes(reading.fileno(), writing)


class ImageStep(InImage, Step):
    """One step's process, in the image that it names."""

    def __init__(
        self, task: Task, step: Record, places: ImagePlaces, number: int, opened: set[Inode]
    ) -> None:
        Step.__init__(self, task, step, places, [], opened)
        self.engine = Engine(task.order["engine"])  # type: ignore[arg-type]
        self.container = f"{self.engine.name}-{number}"
        self.image = str(step["image"])
        self.binds = [*task.order["mounts"], *places.mounts]  # type: ignore[misc]
        self.workdir = None if step["workdir"] is None else self.cwd
        if self.workdir is None:
            self.env.pop("PWD", None)

    def open_streams(self) -> None:
        """See `Step`. An engine takes names: first see that none has become a link, by an earlier step say. Raises Refused."""
        for source, path, _ in self.binds:
            try:
                os.close(open_mounted(source))
            except Unsafe as error:
                message = f"{error} now, and is not mounted at {path}"
                raise Refused("ContainerPathsRefused", message) from None
            except OSError:
                pass  # the engine says what it misses
        super().open_streams()

    def reads(self) -> bool:
        """Whether the step names a file for its standard input."""
        return self.stdin >= 0
