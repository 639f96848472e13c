"""Delivery of a container task's outputs to their targets: files and folders of this machine, objects of a store.

Everything is found by its path in the container, and read where it really lies. The task can change names meanwhile, of what is
read and of the folders that it goes to: none is resolved a second time (`safe_paths`). Files come to be by a rename, folders too
where there is none yet; what was half done when a runner died is done again by the next attempt.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator

from .bounds import Bounds, inside
from .outputs import Refused
from .patterns import is_pattern, matches
from .places import Places, canonical, join
from .records import Record
from .safe_paths import (
    BY_UMASK,
    GONE,
    Opened,
    Unsafe,
    drop_rights,
    gives_rights,
    kind_of,
    new_file,
    open_any,
    open_file,
    open_folder,
    parent,
    plain_mode,
    remove,
    temporary_name,
    write_all,
    write_file,
)
from .trees import copy_bytes


class Delivery:
    """The outputs of one attempt.

    Args:
        places: Of its container.
        upload: How object stores are reached, see `cluster.orders`; None if none is asked for.
        targets: Targets of this machine, and what they were before the task began, links followed (see `resolved`).
    """

    def __init__(self, places: Places, upload: Record | None, targets: dict[str, str]) -> None:
        self.places = places
        self.targets = targets
        self.files: list[Record] = []  #: path, uri and size of each file that was delivered
        self._upload = upload
        self._stores: dict[str, object] = {}

    def take(self, output: Record) -> None:
        """Deliver one output; nothing, if it is not there.

        Raises:
            Refused: An object store took it not, or the task has put something else on its way.
            OSError: It cannot be written. It can be taken again: files that are whole stay, and are not told twice.
        """
        known = len(self.files)
        try:
            self.bring_out(output)
        except Unsafe as error:
            del self.files[known:]
            raise Refused("OutputRefused", f"the output {output['path']} was replaced: {error}") from None
        except OSError as error:
            del self.files[known:]
            if isinstance(error.filename, str) and not error.filename.startswith("/"):
                error.filename = str(output["local"] or output["uri"])  # it names a step of the way
            raise

    def bring_out(self, output: Record) -> None:
        """Deliver one output, and remember its files."""
        path, uri = str(output["path"]), str(output["local"] or output["uri"])
        clean, same_paths = (
            self.places.canonical(path),
            self.places.same_paths and output["local"] is not None,
        )
        if same_paths and not is_pattern(clean) and canonical(uri.rstrip("/")) == clean:
            self.in_place(clean)
            return
        if not is_pattern(clean) or (output["prefix"] is None and self.is_there(clean)):
            if self.is_there(clean):
                self.put(clean, uri.rstrip("/"), local=output["local"] is not None)
            return
        prefix = self.places.canonical(str(output["prefix"])) if output["prefix"] is not None else "/"
        for match in matches(clean, self.places.listed, self.is_plain_folder):
            if not self.is_there(match):
                continue
            relative = match[len(prefix) :] if match.startswith(prefix.rstrip("/") + "/") else match
            self.put(match, join(uri, relative), local=output["local"] is not None)

    def in_place(self, path: str) -> None:
        """Tell what the task left where it shall be: the path is the same inside and outside. Its files give no rights any more."""
        if os.path.isfile(path):
            self.note_in_place(path)
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if os.path.isfile(file):
                    self.note_in_place(file)

    def note_in_place(self, path: str) -> None:
        """Remember a file that needs no copy."""
        status, real = os.stat(path), os.path.realpath(path)
        if status.st_uid == os.geteuid() and gives_rights(path):
            with parent(real) as at, Opened(open_file(at, os.path.basename(real))) as fd:
                drop_rights(fd)
        self.note(path, path, status.st_size)

    def is_there(self, path: str) -> bool:
        """Whether the task has something there: what only this machine has does not count."""
        return not self.places.is_foreign(path) and self.look(path) is not None

    def is_plain_folder(self, path: str) -> bool:
        """Whether a path is a folder, and no link to one."""
        real = self.places.host_of(path)
        return os.path.isdir(real) and not os.path.islink(real)

    def look(self, path: str) -> os.stat_result | None:
        """What a path of the container leads to; None if it leads nowhere."""
        try:
            real = self.places.real(path)
            with parent(real) as at:
                return os.stat(os.path.basename(real) or "/", dir_fd=at, follow_symlinks=False)
        except OSError:
            return None

    def open(self, path: str) -> Opened | None:
        """What a path of the container leads to, opened; None if that is neither a file nor a folder.

        Raises:
            Refused: No output may come from there.
            Unsafe: It has been replaced since its links were followed.
            OSError: It cannot be opened.
        """
        real = self.places.real(path)
        with parent(real) as at:
            name = os.path.basename(real) or "/"
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                return None
            bounds = self.places.bounds
            if stat.S_ISREG(mode) and not any(inside(real, staged) for staged in bounds.granted):
                why = bounds.never(real)
                if why:
                    raise Refused("PathRefused", f"the output {path}: {why}")
            return Opened(open_any(at, name))

    def put(self, path: str, uri: str, *, local: bool) -> None:
        """Deliver a file or folder."""
        opened = self.open(path)
        if opened is None:
            real = self.places.real(path)
            raise Refused(
                "OutputRefused", f"the output {path} is {kind_of(None, real)}, neither a file nor a folder"
            )
        with opened as fd:
            if not local:
                for inner, file in self.walk(path):
                    self.upload(inner, file, uri + inner[len(path) :])
                return
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                self.folder(path, fd, uri)
            else:
                self.file(path, fd, uri)

    def target(self, uri: str) -> str:
        """Where a file or folder goes, as its path was before the task could change it."""
        top = max((each for each in self.targets if inside(uri, each)), key=len, default=None)
        return uri if top is None else join(self.targets[top], uri[len(top) :])

    def into(self, target: str) -> Opened:
        """The folder of a target, made where it is missing. Raises OSError, also where the task has put something on the way."""
        try:
            return parent(target, make=BY_UMASK)
        except Unsafe as error:
            raise NotADirectoryError(errno.ENOTDIR, f"{error}, on the way to {target}") from None

    def file(self, path: str, fd: int, uri: str) -> None:
        """Deliver one file of this machine."""
        target = self.target(uri)
        status, name = os.fstat(fd), os.path.basename(self.places.bounds.check(target))
        with self.into(target) as at:
            if not self.is_same(path, status, at, name):
                temporary = temporary_name()
                try:
                    self.bring(path, fd, at, temporary)
                    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
                finally:
                    remove(at, temporary)
                os.fsync(at)
        self.note(path, uri, status.st_size)

    def is_same(self, path: str, status: os.stat_result, at: int, name: str) -> bool:
        """Whether a file or folder is at its target already. A link to the attempt's own folder is not: it goes."""
        try:
            there = os.stat(name, dir_fd=at)
            is_link = stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
        except OSError:
            return False
        own = is_link and inside(self.places.real(path), self.places.room)
        return (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino) and not own

    def folder(self, path: str, fd: int, uri: str) -> None:
        """Deliver a folder: whole by one rename, or file by file into one that is there."""
        target = self.target(uri)
        name = os.path.basename(self.places.bounds.check(target))
        with self.into(target) as at:
            if self.is_same(path, os.fstat(fd), at, name):
                for inner, file in self.walk(path):
                    self.note(inner, uri + inner[len(path) :], os.fstat(file).st_size)
                return
            try:
                os.close(open_folder(at, name))
            except FileNotFoundError:
                temporary, known = temporary_name(), len(self.files)
                try:
                    os.mkdir(temporary, dir_fd=at)
                    with Opened(open_folder(at, temporary)) as into:
                        self.fill(path, into, uri)
                    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
                except OSError:
                    if kind_of(at, name) != "a folder":
                        raise
                    del self.files[known:]  # another process has made it meanwhile
                else:
                    os.fsync(at)
                    return
                finally:
                    remove(at, temporary)
        for inner, file in self.walk(path):
            self.file(inner, file, uri + inner[len(path) :])

    def fill(self, path: str, into: int, uri: str, above: tuple[str, ...] = ()) -> None:
        """Copy a folder of the container, links followed; what leads back to where it came from is left out."""
        here = self.places.resolve(path)
        for name in self.places.listed(path):
            inner = join(path, name)
            opened = self.open(inner) if self.look(inner) is not None else None
            if opened is None:
                continue
            with opened as fd:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode):
                    self.bring(inner, fd, into, name)
                    self.note(inner, join(uri, name), status.st_size)
                elif self.places.resolve(inner) not in (*above, here):
                    os.mkdir(name, dir_fd=into)
                    with Opened(open_folder(into, name)) as deeper:
                        self.fill(inner, deeper, join(uri, name), (*above, here))
        os.fsync(into)

    def walk(self, path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
        """(path in the container, descriptor) of every file of a file or folder. The descriptor is closed after its turn."""
        opened = self.open(path) if self.look(path) is not None else None
        if opened is None:
            return
        with opened as fd:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                yield path, fd
                return
        here = self.places.resolve(path)
        if here not in above:
            for name in self.places.listed(path):
                yield from self.walk(join(path, name), (*above, here))

    def bring(self, path: str, fd: int, at: int, name: str) -> None:
        """Make a new file with the bytes of another; a hard link if the task wrote them, and they have no other
        name and give no rights.
        """
        status, real = os.fstat(fd), self.places.real(path)
        if inside(real, self.places.room) and status.st_nlink == 1 and not gives_rights(fd):
            try:
                with parent(real) as there:
                    os.link(
                        os.path.basename(real), name, src_dir_fd=there, dst_dir_fd=at, follow_symlinks=False
                    )
                made = os.stat(name, dir_fd=at, follow_symlinks=False)
            except OSError:
                pass  # another disk
            else:
                if (made.st_dev, made.st_ino) == (status.st_dev, status.st_ino):
                    os.fsync(fd)
                    return
                remove(at, name)  # the name is another file's by now
        with Opened(new_file(at, name)) as writing:
            copy_bytes(fd, writing)
            os.fchmod(writing, plain_mode(status.st_mode) | 0o600)
            os.fsync(writing)

    def upload(self, path: str, fd: int, uri: str) -> None:
        """Deliver one file to an object store."""
        store, key = self.store(uri)
        try:
            with store.open(key, "wb") as writing:  # type: ignore[attr-defined]
                while block := os.read(fd, 8 << 20):
                    writing.write(block)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise Refused("OutputFailed", f"cannot write {uri}: {type(error).__name__}: {error}") from None
        self.note(path, uri, os.fstat(fd).st_size)

    def store(self, uri: str) -> tuple[object, str]:
        """The store of a uri, and its key there."""
        scheme = uri.partition(":")[0]
        if self._upload is None:
            raise Refused("OutputFailed", f"nothing is known of {scheme}: in the order of this attempt")
        os.environ.update(self._upload["env"])  # type: ignore[call-overload]
        sys.path[:] = [*sys.path, *(p for p in self._upload["path"] if p not in sys.path)]  # type: ignore[attr-defined]
        try:
            import fsspec

            if scheme not in self._stores:
                self._stores[scheme] = fsspec.filesystem(scheme, **self._upload["options"].get(scheme, {}))  # type: ignore[attr-defined]
        except (ImportError, ValueError) as error:
            hint = (
                "pip install flowsched[objectstore]"
                if scheme in ("s3", "s3a")
                else "fsspec knows no such scheme"
            )
            raise Refused("OutputFailed", f"cannot write {uri}: {hint} ({error})") from None
        return self._stores[scheme], uri.partition("://")[2]

    def note(self, path: str, uri: str, size: int) -> None:
        """Remember what was delivered."""
        self.files.append({"path": printable(path), "uri": printable(uri), "size": size})


def resolved(path: str) -> str:
    """A path of this machine before a task can change it: the links on its way are followed, and the last one to a folder."""
    return os.path.realpath(path) if os.path.isdir(path) else canonical(path)


#: (path of the container, its files of this machine, text, reason of the end that alone leaves it) of a file to be left.
Left = tuple[str, "list[str] | None", str, "str | None"]


def left_at(container: Record, bounds: Bounds) -> list[Left]:
    """What must exist after an end. The task has not begun.

    Args:
        container: The order's part, see `cluster.orders`.
        bounds: Where it may be written.
    """
    found: list[Left] = []
    for left in container["leave"]:  # type: ignore[attr-defined]
        path = canonical(str(left["path"]))
        targets = dict.fromkeys((*mounted_at(path, container), *delivered_to(path, container)))
        # The attempt ends all the same if one may not be written, and what it ended by was said.
        allowed = [canonical(target) for target in targets if not bounds.refusal(target)]
        found.append((path, allowed if targets else None, str(left["content"]), left["reason"]))
    return found


def leave(places: Places | None, left: list[Left], reason: str = "") -> None:
    """Write the files that must exist after an end, unless the task wrote them: an outside program waits for them.

    Args:
        places: Of the container; None if it did not come to that.
        left: See `left_at`.
        reason: Of the end.
    """
    for path, targets, text, only in left:
        if only not in (None, reason):
            continue
        if targets is None and places is not None:
            real = places.real(path)
            targets = [] if places.bounds.refusal(real) else [real]
        for target in targets or ():
            try:  # noqa: SIM105 - see kin
                write_left(target, text)
            except (OSError, Unsafe):
                pass  # the end must be told all the same


def note(container: Record, bounds: Bounds, line: str) -> None:
    """Add a line to the file for the first step's standard error: no step of the attempt has run, or will.

    Args:
        container: The order's part, see `cluster.orders`.
        bounds: Where it may be written.
        line: With its end.
    """
    stderr = container["steps"][0]["stderr"]  # type: ignore[index]
    if stderr is None:
        return
    path = canonical(str(stderr))
    for target in dict.fromkeys(
        map(canonical, (*mounted_at(path, container), *delivered_to(path, container)))
    ):
        if bounds.refusal(target):
            continue
        try:
            with parent(target) as at:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                with Opened(open_file(at, os.path.basename(target), flags)) as fd:
                    write_all(fd, line.encode(errors="replace"))
        except (OSError, Unsafe):
            pass  # the end must be told all the same


def mounted_at(path: str, container: Record) -> list[str]:
    """The path of this machine that a mount shows at a path of the container; none, or the one of the deepest mount."""
    mounts: list[Record] = container["mounts"]  # type: ignore[assignment]
    tops = {canonical(str(mount["path"])): str(mount["source"]) for mount in mounts}
    above = [top for top in tops if inside(path, top)]
    deepest = max(above, key=len, default=None)
    return [] if deepest is None else [join(tops[deepest], path[len(deepest) :])]


def delivered_to(path: str, container: Record) -> list[str]:
    """The files of this machine that an output puts what is at a path."""
    outputs: list[Record] = container["outputs"]  # type: ignore[assignment]
    mine = (output for output in outputs if canonical(str(output["path"])) == path)
    return [str(output["local"]) for output in mine if output["local"] is not None]


def write_left(target: str, text: str) -> None:
    """Write a file unless there is one: whole or not at all. A folder that is gone is not made again.

    Raises:
        Unsafe: A link lies on the way: the caller has followed those that may be there.
        OSError: It cannot be written.
    """
    name, temporary = os.path.basename(target), temporary_name()
    with parent(target) as at:
        try:
            with Opened(write_file(at, temporary, text, 0o644)) as fd:
                os.fsync(fd)
            try:  # unlike a rename a link never takes the place of a file
                os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                if kind_of(at, name) == GONE:
                    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)
        finally:
            remove(at, temporary)


def printable(text: str) -> str:
    """Text that JSON can hold."""
    return os.fsencode(text).decode(errors="replace")
