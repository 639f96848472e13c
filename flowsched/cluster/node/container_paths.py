"""The real places of a container task's paths: folders of the pod's own, or of volumes that every node shares.

A container has its paths by mounts, so what is mounted has to be a folder that nothing of the image is needed of:

    below a shared volume       it is there already, at the same path in every task's pod
    below one of `mounts`       a folder of a shared volume, mounted at a path of the task's choice
    anywhere else               the smallest folders that hold what is asked for are mounted, empty, from the task's own
                                volume (`d/<n>` of it); in a folder of the system a file is mounted alone (`f/<n>/<name>`)

On Kubernetes that volume is the pod's `inputs`, on one machine a folder of the attempt; there every folder of the machine is as
a shared volume that a task sees only what it asks for of.

A *place* is a text: absolute = of a shared volume, where stage-in and stage-out have it too; relative = in the volume `inputs`.
"""

from __future__ import annotations

import os.path
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from flowsched.cluster.local.runner.image_places import place_in, tidy
from flowsched.cluster.local.runner.patterns import fixed_part, is_pattern
from flowsched.workflow.document.uris import file_path
from flowsched.workflow.spec import Container, Delivered, Placed, Step

#: Folders that an image needs: a mount there would hide its programs, or its own settings.
SYSTEM: Final = frozenset(
    {
        "/",
        *(
            f"/{name}"
            for name in (
                "bin",
                "boot",
                "etc",
                "home",
                "lib",
                "lib32",
                "lib64",
                "libx32",
                "opt",
                "run",
                "sbin",
            )
        ),
    }
    | {
        f"/usr{name}"
        for name in ("", "/bin", "/include", "/lib", "/lib32", "/lib64", "/libexec", "/sbin", "/share")
    }
    | {f"/usr/local{name}" for name in ("", "/bin", "/lib", "/sbin", "/share")}
    | {"/var", "/var/lib", "/var/run"}
)
#: The kernel's folders, and ours: nothing is mounted at them or below.
TAKEN: Final = ("/dev", "/flowsched", "/proc", "/sys")
#: Inputs beyond so many mounts are symbolic links: each mount is work for a kubelet, and text in every container of the pod.
MOST_MOUNTS: Final = 200
#: The path that means no file at all.
NOWHERE: Final = "/dev/null"
#: Where the reason of a refusal is found in the documentation: see docs/kubernetes.md, Container tasks.
NOT_SHARED: Final = "PathNotShared"
REFUSED: Final = "ContainerPathsRefused"


class SharedVolume(NamedTuple):
    """A claim that every task sees, at the same place."""

    claim: str
    path: str
    read_only: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """Why there can never be such a pod: `reason` as of a pod that ended, `message` for its owner."""

    reason: str
    message: str


class Bind(NamedTuple):
    """One mount of a task's containers.

    Args:
        path: Of the container.
        inner: The path within the volume that is mounted there.
        shared: The number of the shared volume; None = the task's own volume.
        read_only: Whether the task may only read it.
    """

    path: str
    inner: str
    shared: int | None = None
    read_only: bool = False


class _Refused(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message)


class Layout(msgspec.Struct, frozen=True):
    """Where everything of one container task is.

    Args:
        view: Path of the container -> place, the longest path first: how a path becomes a place.
        mounts: Of the task's containers, beside those that every task has.
        folders: Places to be made before the task starts.
        files: Places of files that are mounted alone and must be there, though they are empty.
        sources: (path of the container, place) of inputs that are used where they are: they must be there.
        copies: (place, place): what has to be brought to a shared volume by stage-in.
        links: (place, path): inputs of a shared volume that stage-in links, since there are too many to mount.
        inputs: Name of an input of the stage -> its place in the volume `inputs`.
    """

    view: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sources: tuple[tuple[str, str, bool], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    inputs: Mapping[str, str] = msgspec.field(default_factory=dict)

    def place(self, path: str) -> str:
        """The place of a path; "" if it is the image's own."""
        return place_in(self.view, path)


def local_path(uri: str) -> str | None:
    """The path that a uri names on shared volumes, as far as this process sees them; None if it is no path."""
    path = file_path(uri, os.path.lexists)
    return None if path is None else tidy(path)


def lay_out(container: Container, shared: Sequence[SharedVolume], *, shown: bool = True) -> Layout | Refusal:
    """Find a place for every path of a container task.

    Args:
        container: The container task.
        shared: The installation's volumes that every task sees.
        shown: Whether a task sees these volumes at their own paths, whatever it asks for.

    Returns:
        The layout, or why there is none: a path that no other node sees, a folder that cannot be mounted.
    """
    try:
        return _Planner(container, shared, shown=shown).plan()
    except _Refused as refused:
        return refused.refusal


class _Planner:
    def __init__(self, container: Container, shared: Sequence[SharedVolume], *, shown: bool) -> None:
        self._at_own_paths = shown
        self._container = container
        self._shared = sorted(
            ((tidy(each.path), number, each.read_only) for number, each in enumerate(shared)),
            key=lambda each: -len(each[0]),
        )
        self._mounts: dict[str, Bind] = {}
        self._view: dict[str, str] = {path: path for path, _, _ in self._shared} if shown else {}
        self._wanted: dict[str, str] = {}  #: folder that has to be mounted -> for what
        self._alone: dict[str, str] = {}  #: file that is mounted alone -> its place
        self._folders: set[str] = set()
        self._files: list[str] = []
        self._sources: list[tuple[str, str, bool]] = []
        self._copies: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []
        self._inputs: dict[str, str] = {}

    def plan(self) -> Layout:
        for mount in self._container.mounts:
            self._mount(tidy(mount.path), tidy(mount.source), mount.read_only)
        for path, what in _files_of(self._container):
            self._file(path, what)
        for path, what in _folders_of(self._container):
            self._folder(path, what)
        for placed in self._container.inputs:
            if placed.directory:
                self._input_folder(tidy(placed.path), f"the input {placed.path}")
        self._mount_folders()
        for number, placed in enumerate(self._container.inputs):
            self._input(number, placed)
        self._make_folders()
        for output in self._container.outputs:
            self._check_target(output)
        return Layout(
            dict(sorted(self._view.items(), key=lambda each: (-len(each[0]), each[0]))),
            tuple(self._mounts[path] for path in sorted(self._mounts)),
            tuple(sorted(self._folders)),
            tuple(self._files),
            tuple(self._sources),
            tuple(self._copies),
            tuple(self._links),
            self._inputs,
        )

    # --- what is shared --------------------------------------------------------------------------------------

    def _claim(self, source: str, what: str, *, writes: bool) -> tuple[int, str]:
        """The volume that a path of the file system lies on, and the path within it."""
        for path, number, read_only in self._shared:
            if source == path or source.startswith(path.rstrip("/") + "/"):
                if writes and read_only:
                    raise _Refused(
                        NOT_SHARED, f"{what}: {source} lies on the volume {path}, which is read only"
                    )
                return number, source[len(path) :].strip("/")
        there = ", ".join(path for path, _, _ in self._shared) or "none is configured"
        raise _Refused(
            NOT_SHARED,
            f"{what}: {source} lies on no volume that every task sees ({there}); an administrator adds one "
            "with FLOWSCHED_SHARED, or use an s3:// uri",
        )

    def _mount(self, path: str, source: str, read_only: bool) -> None:
        volume, inner = self._claim(source, f"the mount at {path}", writes=not read_only)
        self._check_folder(path, f"the mount of {source}")
        if path == source and self._at_own_paths:
            return
        self._mounts[path] = Bind(path, inner, volume, read_only)
        self._view[path] = source
        self._sources.append((path, source, True))

    # --- what is the pod's own -------------------------------------------------------------------------------

    def _file(self, path: str, what: str) -> None:
        """A file that the task reads or writes: its folder is mounted, or it alone where that is the system's."""
        folder = posixpath.dirname(path)
        if self._is_visible(path):
            return
        self._check(path, what)
        if folder in SYSTEM and not is_pattern(path):
            self._single(path)
        else:
            self._folder(fixed_part(path), what)

    def _single(self, path: str, *, directory: bool = False) -> None:
        if path not in self._alone:
            self._check_name(path, path)
            self._alone[path] = f"f/{len(self._alone)}/{posixpath.basename(path)}"
            if not directory:
                self._files.append(self._alone[path])

    def _folder(self, path: str, what: str) -> None:
        if self._is_visible(path):
            return
        while ":" in path:  # no mount path may have a colon; the folder above does as well
            path = posixpath.dirname(path[: path.index(":")])
        self._check_folder(path, what)
        self._wanted.setdefault(path, what)

    def _mount_folders(self) -> None:
        """Only folders that lie in no other one are mounted."""
        tops: dict[str, str] = {}
        for path in sorted(self._wanted):
            if not place_in(tops, path):
                tops[path] = f"d/{len(tops)}"
        for path, place in tops.items():
            self._own(path, place)
            self._folders.add(place)
        for path, place in self._alone.items():
            self._own(path, place)

    def _own(self, path: str, place: str, *, read_only: bool = False) -> None:
        self._mounts[path] = Bind(path, place, read_only=read_only)
        self._view[path] = place

    def _make_folders(self) -> None:
        """Make the folders that the task writes to, and those of its inputs, before it starts.

        But for folders of outputs in one that a step works in: the program makes these by itself, as `mkdir out`.
        """
        placed = [
            tidy(each.path)
            for each in self._container.inputs
            if each.source is None or each.input is not None
        ]
        unmade = _made_by_the_program(self._container)
        for path in (*placed, *(path for path, _ in _written(self._container))):
            if path in unmade:
                continue
            self._make(
                self._place(fixed_part(path)) if is_pattern(path) else posixpath.dirname(self._place(path))
            )
        for path, _ in _folders_of(self._container):
            if path not in unmade:
                self._make(self._place(path))

    def _make(self, place: str) -> None:
        if place.strip("/"):
            self._folders.add(place)

    # --- inputs ----------------------------------------------------------------------------------------------

    def _input_folder(self, path: str, what: str) -> None:
        """A folder that is given as a whole is put, or mounted, into the one above it."""
        if self._is_visible(path):
            return
        self._check_folder(path, what)
        if posixpath.dirname(path) in SYSTEM:
            self._single(path, directory=True)
        else:
            self._folder(posixpath.dirname(path), what)

    def _input(self, number: int, placed: Placed) -> None:
        path = tidy(placed.path)
        is_full = self._is_visible(path) and len(self._mounts) >= MOST_MOUNTS
        if placed.source is not None and (placed.input is None or is_full):
            self._source(path, local_path(placed.source) or placed.source, placed.directory)
            return
        place = self._place(path)
        if placed.input is None:
            return
        if place.startswith("/"):
            apart = f"f/{number}-shared/{posixpath.basename(path)}"
            self._inputs[placed.input] = apart
            if placed.source is not None:  # the copy covers the file, which stays as it is
                self._own(path, apart, read_only=True)
            else:  # agents see no shared volume: stage-in brings it there
                self._copies.append((apart, place))
        else:
            self._inputs[placed.input] = place

    def _source(self, path: str, source: str, directory: bool) -> None:
        volume, inner = self._claim(source, f"the input {path}", writes=False)
        self._sources.append((path, source, directory))
        place = self._place(path)
        if place == source:
            return
        if place.startswith("/") and (len(self._mounts) >= MOST_MOUNTS or not self._mounted(path)):
            self._copies.append((source, place))
            return
        if len(self._mounts) >= MOST_MOUNTS and path not in self._alone:
            self._links.append((place, source))  # seen by the task too, at the volume's own path
            return
        self._mounts[path] = Bind(path, inner, volume, read_only=True)
        self._view[path] = source

    def _mounted(self, path: str) -> bool:
        """Whether it lies in a folder that the document mounts: a task that works in place uses its inputs in place, not copies."""
        return any(path.startswith(tidy(mount.path).rstrip("/") + "/") for mount in self._container.mounts)

    # --- questions -------------------------------------------------------------------------------------------

    def _place(self, path: str) -> str:
        return place_in(self._view, path)

    def _is_visible(self, path: str) -> bool:
        """Whether a path lies on something shared."""
        return self._place(path).startswith("/")

    def _check_target(self, output: Delivered) -> None:
        path = local_path(output.uri)
        if path is not None:
            self._claim(path, f"the output {output.path}", writes=True)
        elif not output.uri.startswith("s3://"):
            raise _Refused(
                REFUSED,
                f"the output {output.path}: nothing can be written to {output.uri}; use a path or s3://",
            )

    def _check(self, path: str, what: str) -> None:
        if _is_taken(path):
            raise _Refused(
                REFUSED,
                f"{what}: {path} lies below {' '.join(TAKEN)}: nothing can be put there; use another folder",
            )

    def _check_folder(self, path: str, what: str) -> None:
        self._check(path, what)
        self._check_name(path, what)
        if path in SYSTEM:
            raise _Refused(
                REFUSED,
                f"{what}: its folder {path} would be mounted over the image's own; use a folder of its own, such as /data",
            )

    def _check_name(self, path: str, what: str) -> None:
        if ":" in path:
            raise _Refused(REFUSED, f"{what}: nothing can be mounted at {path}, which has a colon in it")


def _files_of(container: Container) -> Iterator[tuple[str, str]]:
    """Files that a task reads or writes, and the words for each."""
    for placed in container.inputs:
        if not placed.directory:
            yield tidy(placed.path), f"the input {placed.path}"
    yield from _written(container)


def _written(container: Container) -> Iterator[tuple[str, str]]:
    for output in container.outputs:
        if not output.directory:
            yield tidy(output.path), f"the output {output.path}"
    for step in container.steps:
        for path in stdio_of(step):
            yield tidy(path), f"the file {path} of a step"
    for left in container.leave:
        yield tidy(left.path), f"the file {left.path}"


def _folders_of(container: Container) -> Iterator[tuple[str, str]]:
    """Folders that a task writes to."""
    for output in container.outputs:
        if output.directory:
            yield _top(output), f"the output {output.path}"
    for step in container.steps:
        if step.workdir is not None and tidy(step.workdir) not in SYSTEM and not _is_taken(step.workdir):
            yield tidy(step.workdir), f"the workdir {step.workdir}"
    for volume in container.volumes:
        yield tidy(volume), f"the volume {volume}"


def _made_by_the_program(container: Container) -> set[str]:
    """Paths of outputs in a folder below a step's working folder, except the files of a step's standard streams."""
    works = [f"{tidy(step.workdir)}/" for step in container.steps if step.workdir is not None]
    streams = {tidy(path) for step in container.steps for path in stdio_of(step)}
    found = set()
    for output in container.outputs:
        path = _top(output) if output.directory else tidy(output.path)
        folder = path if output.directory else fixed_part(path)
        if path not in streams and any(folder.startswith(work) for work in works if work != "//"):
            found.add(path)
    return found


def _top(output: Delivered) -> str:
    path = tidy(output.path)
    return fixed_part(path) if is_pattern(path) else path


def _is_taken(path: str) -> bool:
    return any(tidy(path) == taken or tidy(path).startswith(f"{taken}/") for taken in TAKEN)


def stdio_of(step: Step) -> tuple[str, ...]:
    """The files that a step's output goes to."""
    return tuple(path for path in (step.stdout, step.stderr) if path is not None and path != NOWHERE)
