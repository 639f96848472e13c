"""The mount plan of a container task: the path of this machine behind each path of the container.

A container task names paths of its own: inputs, outputs, mounts. Where its images are not used (`image_places` is for those that
are), here is decided, by looking only, what lies at each of them: a folder of the attempt (on disk), a file or folder of this
machine, or what this machine has at the same path, since programs come from it. Where every path means the same inside and
outside nothing is mapped at all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from .bounds import STREAMS, Bounds, inside
from .outputs import Refused
from .patterns import fits, fixed_part, is_pattern
from .records import Record
from .safe_paths import Opened, open_file, parent

#: Entries of a folder of this machine that are shown one by one, because a path in it is the task's own.
MOST_SHOWN = 10_000
MOST_LINKS = 40
#: Where a great many entries are simply not shown.
SCRATCH = ("/tmp", "/var/tmp")


class Node:
    """The entry at one path of the container."""

    __slots__ = (
        "base",
        "bound",
        "content",
        "empty",
        "foreign",
        "hidden",
        "private",
        "read_only",
        "results",
        "shown",
        "whole",
    )

    def __init__(self) -> None:
        self.base: str | None = None  #: the file or folder of this machine that is seen here
        self.bound = False  #: the task asked for `base` to be here
        self.whole = False  #: `base` is seen as it is, with all that is in it
        self.private = False  #: a folder of the task's own: no other task sees what it writes here
        self.empty = False  #: nothing of this machine is seen here
        self.results = False  #: an output: nothing is seen here but what the task asked for
        self.read_only = False
        self.foreign = True  #: `base` is there because this machine has it, not because the task asked for it
        self.content: str | None = None  #: text to be written
        self.hidden: list[str] = []  #: names and patterns of `base` that are not shown
        self.shown: frozenset[str] = frozenset()


class Places:
    """The paths of one attempt's container.

    Args:
        room: A folder of the attempt, for what is made.
    """

    same_paths = True  #: whether a path that is not the task's own means the same inside and outside

    def __init__(self, room: str) -> None:
        self.room = room
        self.needed = False  #: whether any path means something else inside
        self.nodes: dict[str, Node] = {}
        self.texts: dict[str, str] = {}  #: path -> what is written there, in folders that are this machine's
        self.bounds = (
            Bounds()
        )  #: which paths of this machine may be written; none is asked before a task's own are set
        self.folders: list[
            str
        ] = []  #: paths of folders that shall be there, in folders that are this machine's

    def canonical(self, path: str) -> str:
        """A path as nodes have it."""
        return canonical(path)

    def host_of(self, path: str) -> str:
        """The path of this machine that a path of the container is. Links are not followed."""
        if not self.needed:
            return path
        above = self.nearest(path)
        node, rest = self.nodes[above], path[len(above) :].strip("/")
        if node.whole:
            return join(node.base or "/", rest)
        if rest and node.base is not None and rest.split("/", 1)[0] in node.shown:
            return join(node.base, rest)
        return join(self.room, path)

    def is_foreign(self, path: str) -> bool:
        """Whether what lies there is this machine's, and none of the task's."""
        if not self.needed:
            return False
        above = self.nearest(path)
        node, rest = self.nodes[above], path[len(above) :].strip("/")
        if not node.foreign or not rest or node.whole:
            return node.whole and node.foreign
        return rest.split("/", 1)[0] in node.shown

    def is_read_only(self, path: str) -> bool:
        """Whether steps cannot write to what a path leads to. Raises OSError where links lead in a circle."""
        if not self.needed:
            return False
        here = self.resolve(path)
        above = self.nearest(here)
        node, rest = self.nodes[above], here[len(above) :].strip("/")
        return node.read_only and (node.whole or not rest or rest.split("/", 1)[0] in node.shown)

    def nearest(self, path: str) -> str:
        """The deepest node at a path or above it."""
        while path not in self.nodes:
            path = os.path.dirname(path)
        return path

    def resolve(self, path: str) -> str:
        """The path of the container that a path leads to, links followed as a step would.

        Raises:
            OSError: They lead in a circle.
        """
        done, rest, links = "/", path.split("/"), 0
        while rest:
            name = rest.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                done = os.path.dirname(done)
                continue
            here = join(done, name)
            try:
                leads = os.readlink(self.host_of(here))
            except OSError:
                done = here
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            rest = leads.split("/") + rest
            done = "/" if leads.startswith("/") else done
        return done

    def real(self, path: str) -> str:
        """The path of this machine that a path of the container leads to."""
        return self.host_of(self.resolve(path))

    def writable(self, path: str) -> str:
        """The path of this machine that a path of the container leads to, if flowsched may write there. Raises Refused, OSError."""
        real = self.real(path)
        return real if real in STREAMS else self.bounds.check(real)

    def opened(self, path: str, flags: int = os.O_RDONLY) -> Opened:
        """Open an ordinary file by its path of the container.

        Raises:
            Unsafe: Something else is there.
            OSError: It cannot be opened.
        """
        real = self.real(path)
        with parent(real) as at:
            return Opened(open_file(at, os.path.basename(real), flags))

    def listed(self, path: str) -> list[str]:
        """The names in a folder of the container, but for what is only there because this machine has it."""
        try:
            names = os.listdir(self.real(path))
        except OSError:
            return []
        top = self.resolve(path)
        return sorted(name for name in names if not self.is_foreign(join(top, name)))


def join(folder: str, rest: str) -> str:
    """A path in a folder; `rest` may begin with a slash, or be empty."""
    rest = rest.strip("/")
    return f"{folder.rstrip('/')}/{rest}" if rest else folder


def canonical(path: str) -> str:
    """A path of the container as its node has it: links of this machine on the way are followed, the last name is not."""
    clean = "/" + os.path.normpath(path).strip("/")
    if clean == "/":
        return clean
    return join(os.path.realpath(os.path.dirname(clean)), os.path.basename(clean))


def is_device(path: str) -> bool:
    """Whether this machine has something there that is neither file nor folder, as /dev/null: it is the same for all."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def plan(room: str, work: str, container: Record, most: int = MOST_SHOWN) -> Places:
    """Decide what lies where.

    Args:
        room: A folder of the attempt, for what is made. Not there yet.
        work: The attempt's working folder, which steps shall see in any case.
        container: The order's part, see `cluster.orders`.
        most: How many entries of a folder may be shown one by one.

    Raises:
        Refused: A file of this machine is not there, or a folder has too many entries to be shown.
    """
    planner = _Planner(Places(room), container, most)
    planner.mounts()
    planner.inputs()
    planner.outputs()
    planner.steps()
    planner.volumes()
    planner.inputs()  # those that were in place before, and are covered by now
    return planner.finished(work)


class _Planner:
    def __init__(self, places: Places, container: Record, most: int) -> None:
        self.places = places
        self.container = container
        self.most = most
        self.same: set[str] = set()  #: paths that mean the same inside and outside
        self.mounted = {canonical(str(mount["path"])) for mount in self.entries("mounts")}
        self.works = {canonical(str(s["workdir"])) for s in self.entries("steps") if s["workdir"] is not None}

    def entries(self, key: str) -> Iterator[Record]:
        records: list[Record] = self.container[key]  # type: ignore[assignment]
        yield from records

    def node(self, path: str) -> Node:
        self.places.needed = True
        return self.places.nodes.setdefault(path, Node())

    def mounts(self) -> None:
        for mount in self.entries("mounts"):
            path, source = canonical(str(mount["path"])), os.path.realpath(str(mount["source"]))
            if not os.path.exists(source):
                raise Refused(
                    "InputMissing", f"{mount['source']}, to be mounted at {mount['path']}, is not there"
                )
            if os.path.realpath(path) == source:
                self.same.add(path)
                continue
            self.put(path, source, whole=True, read_only=bool(mount["read_only"]))

    def inputs(self) -> None:
        for entry in self.entries("inputs"):
            path = canonical(str(entry["path"]))
            if entry["content"] is not None:
                if self.under_mount(path):
                    self.refuse_read_only(path)
                    self.places.texts[path] = str(entry["content"])
                else:
                    self.node(path).content = str(entry["content"])
                continue
            source = str(entry["source"])
            if not os.path.exists(source):
                raise Refused(
                    "InputMissing", f"{entry['uri']}, an input for {path}, is not there: looked for {source}"
                )
            if self.real_path_of(path) == os.path.realpath(source):
                self.same.add(path)
            else:
                if not os.path.lexists(self.real_path_of(path) or path):
                    self.refuse_read_only(path)
                self.put(path, os.path.realpath(source), read_only=True)

    def put(self, path: str, source: str, *, read_only: bool, whole: bool = False) -> None:
        node = self.node(path)
        node.base, node.read_only, node.bound, node.foreign = source, read_only, True, False
        node.whole = whole or not os.path.isdir(source)

    def outputs(self) -> None:
        for output in self.entries("outputs"):
            path, local = canonical(str(output["path"])), output["local"]
            if is_device(path):
                continue
            work = self.workdir_above(path if output["directory"] else fixed_part(path))
            if work is not None:
                if local is not None and canonical(str(local)) == path and not is_pattern(path):
                    self.same.add(path)
                elif not self.under_mount(path):
                    self.own(work, path[len(work) :].strip("/").split("/")[0])
                continue
            if self.under_mount(path):
                self.make_folder(fixed_part(path))
                continue
            if local is not None and canonical(str(local)) == path and not is_pattern(path):
                self.same.add(path)
                self.places.folders.append(os.path.dirname(path))
            elif is_pattern(path):
                self.own(fixed_part(path), path[len(fixed_part(path)) :].strip("/").split("/")[0])
            elif output["directory"]:
                self.own(path).results = True
            else:
                self.own(os.path.dirname(path), os.path.basename(path))

    def workdir_above(self, folder: str) -> str | None:
        """The folder that a step works in, if another folder lies in it: the program makes that one by itself, as `mkdir out`."""
        above = (work for work in self.works if work not in ("/", folder) and inside(folder, work))
        return max(above, key=len, default=None)

    def steps(self) -> None:
        for step in self.entries("steps"):
            for key in ("stdout", "stderr"):
                path = canonical(str(step[key])) if step[key] is not None else None
                if path is None or path in self.same or is_device(path):
                    continue
                if self.under_mount(path):
                    self.make_folder(os.path.dirname(path))
                else:
                    self.own(os.path.dirname(path), os.path.basename(path))
            if step["workdir"] is not None:
                work = canonical(str(step["workdir"]))
                if self.under_mount(work) or self.holds_same(work):
                    self.make_folder(work)
                else:
                    self.own(work)

    def volumes(self) -> None:
        for path in self.container["volumes"]:  # type: ignore[attr-defined]
            if self.under_mount(canonical(path)):
                self.make_folder(canonical(path))
            else:
                self.own(canonical(path)).empty = True

    def own(self, folder: str, hidden: str | None = None) -> Node:
        """A folder that is the task's own; it shows this machine's entries of that path, but for the hidden ones."""
        node = self.node(folder)
        node.private = True
        if hidden is not None:
            node.hidden.append(hidden)
        if folder in SCRATCH and count(folder) > self.most:
            node.results = True  # others' leavings: nothing is lost without them
        return node

    def real_path_of(self, path: str) -> str:
        """The real path of this machine, as the plan is so far."""
        above = path
        while above != "/" and above not in self.places.nodes:
            above = os.path.dirname(above)
        node = self.places.nodes.get(above)
        if node is None or node.base is None:
            return os.path.realpath(path) if node is None or not node.private else ""
        return os.path.realpath(join(node.base, path[len(above) :]))

    def under_mount(self, path: str) -> bool:
        """Whether a path lies in a folder that is mounted."""
        while path not in self.mounted:
            node = self.places.nodes.get(path)
            if node is not None and node.whole and os.path.isdir(node.base or "/"):
                return True
            if path == "/":
                return False
            path = os.path.dirname(path)
        return True

    def make_folder(self, path: str) -> None:
        """A folder that shall be there, in a folder of this machine."""
        if not os.path.isdir(self.real_path_of(path) or path):
            self.refuse_read_only(path)
        self.places.folders.append(path)

    def refuse_read_only(self, path: str) -> None:
        """Nothing is made in a folder of this machine that the task may only read. Raises Refused."""
        mounts = {canonical(str(mount["path"])): mount for mount in self.entries("mounts")}
        deepest = max((top for top in mounts if inside(path, top)), key=len, default=None)
        if deepest is not None and mounts[deepest]["read_only"]:
            raise Refused(
                "ContainerPathsRefused",
                f"{path} would have to be made in {mounts[deepest]['source']}, which is mounted read-only at {deepest}: mount "
                "it for writing, or put the input somewhere else",
            )

    def holds_same(self, folder: str) -> bool:
        """Whether a folder is the task's own outside too: it has, or is in a folder that has, such a file."""
        return any(inside(path, folder) or inside(folder, os.path.dirname(path)) for path in self.same)

    def finished(self, work: str) -> Places:
        places = self.places
        if not places.needed:
            return places
        for mount in self.entries(
            "mounts"
        ):  # also those that are the same: a folder above may be the task's own by now
            path = canonical(str(mount["path"]))
            if path not in places.nodes:
                self.put(
                    path,
                    os.path.realpath(str(mount["source"])),
                    whole=True,
                    read_only=bool(mount["read_only"]),
                )
        work = os.path.realpath(work)
        if any(
            inside(work, path)
            for path, node in places.nodes.items()
            if node.whole or node.empty or node.results
        ):
            self.put(work, work, whole=True, read_only=False)
        children: dict[str, set[str]] = {"/": set()}
        for path in list(places.nodes):
            while path != "/":
                above = os.path.dirname(path)
                children.setdefault(above, set()).add(os.path.basename(path))
                places.nodes.setdefault(above, Node())
                path = above
        for path in sorted(places.nodes):
            self.show(path, places.nodes[path], children.get(path, set()))
        return places

    def show(self, path: str, node: Node, children: set[str]) -> None:
        """Settle what is seen at a node through what is seen above it, and which names of a folder are."""
        above = self.places.nodes.get(os.path.dirname(path)) if path != "/" else None
        if node.empty or node.content is not None:
            node.base = None
        elif above is None:
            node.base = node.base or "/"
        elif not node.bound and above.base is not None:
            node.base = os.path.realpath(join(above.base, os.path.basename(path)))
            node.foreign, node.read_only = above.foreign, above.read_only
            node.whole = above.whole and not node.private
            node.results = (
                node.results or above.results
            )  # nor is anything shown on the way to what lies deeper
        if node.bound and not node.private and not children:
            node.whole = True
        if node.base is None or node.whole:
            return
        if not os.path.isdir(node.base):
            node.base = None
        elif not (node.results and node.foreign):
            node.shown = shown(path, node, children, self.most)


def count(folder: str) -> int:
    """Entries of a folder of this machine."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def shown(path: str, node: Node, children: set[str], most: int) -> frozenset[str]:
    """The names in a folder's `base` that are seen in it.

    Raises:
        Refused: They are too many.
    """
    try:
        there = os.listdir(node.base)
    except (PermissionError, FileNotFoundError):
        return frozenset()  # nor could the task have listed it; or it has just gone
    names = set(there) - children - set(node.hidden)
    patterns = [hidden for hidden in node.hidden if is_pattern(hidden)]
    if patterns:
        names = {name for name in names if not any(fits(name, pattern) for pattern in patterns)}
    if len(names) > most:
        raise Refused(
            "ContainerPathsRefused",
            f"{path} has {len(names)} entries on this machine, and a path in it is the task's own: more than {most} "
            "cannot be shown beside it; use another path, or a mount",
        )
    return frozenset(names)
