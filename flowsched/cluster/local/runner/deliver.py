"""Delivery of a container task's outputs to their targets: files and folders of this machine, objects of a store.

Everything is found by its path in the container, and read where it really lies. Files come to be by a rename, folders too where
there is none yet; what was half done when a runner died is done again by the next attempt.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from .bounds import Bounds, inside
from .outputs import Refused, remove
from .patterns import is_pattern, matches
from .places import Places, canonical, join
from .records import Record, sync

_BLOCK = 1 << 20


class Delivery:
    """The outputs of one attempt.

    Args:
        places: Of its container.
        upload: How object stores are reached, see `cluster.orders`; None if none is asked for.
    """

    def __init__(self, places: Places, upload: Record | None) -> None:
        self.places = places
        self.files: list[Record] = []  #: path, uri and size of each file that was delivered
        self._upload = upload
        self._stores: dict[str, object] = {}
        self._numbers = 0

    def take(self, output: Record) -> None:
        """Deliver one output; nothing, if it is not there.

        Raises:
            Refused: An object store took it not.
            OSError: It cannot be written. It can be taken again: files that are whole stay, and are not told twice.
        """
        known = len(self.files)
        try:
            self.bring_out(output)
        except OSError:
            del self.files[known:]
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
        """Tell what the task left where it shall be: the path is the same inside and outside."""
        if os.path.isfile(path):
            self.note(path, path, os.stat(path).st_size)
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if os.path.isfile(file):
                    self.note(file, file, os.stat(file).st_size)

    def is_there(self, path: str) -> bool:
        """Whether the task has something there: what only this machine has does not count."""
        return not self.places.is_foreign(path) and self.real_of(path) is not None

    def is_plain_folder(self, path: str) -> bool:
        """Whether a path is a folder, and no link to one."""
        real = self.places.host_of(path)
        return os.path.isdir(real) and not os.path.islink(real)

    def put(self, path: str, uri: str, *, local: bool) -> None:
        """Deliver a file or folder."""
        real = self.places.real(path)
        mode = os.stat(real).st_mode
        if not local:
            for inner, file in self.walk(path):
                self.upload(inner, file, uri + inner[len(path) :])
        elif stat.S_ISREG(mode):
            self.file(path, real, uri)
        elif stat.S_ISDIR(mode):
            self.folder(path, real, self.places.bounds.check(uri))

    def file(self, path: str, real: str, target: str) -> None:
        """Deliver one file of this machine."""
        size = os.stat(real).st_size
        if not same(real, target):
            folder = os.path.dirname(self.places.bounds.check(target))
            os.makedirs(folder, exist_ok=True)
            temporary = self.temporary(target)
            try:
                self.bring(real, temporary)
                os.rename(temporary, target)
            finally:
                remove(temporary)
            sync(folder)
        self.note(path, target, size)

    def folder(self, path: str, real: str, target: str) -> None:
        """Deliver a folder: whole by one rename, or file by file into one that is there."""
        if same(real, target):
            for inner, file in self.walk(path):
                self.note(inner, target + inner[len(path) :], os.stat(file).st_size)
            return
        if os.path.isdir(target):
            for inner, file in self.walk(path):
                self.file(inner, file, target + inner[len(path) :])
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary, known = self.temporary(target), len(self.files)
        try:
            self.fill(path, temporary, target)
            os.rename(temporary, target)
        except OSError:
            if not os.path.isdir(target):
                raise
            del self.files[known:]  # another process has made it meanwhile
            self.folder(path, real, target)
        finally:
            remove(temporary)
        sync(os.path.dirname(target))

    def fill(self, path: str, folder: str, target: str, above: tuple[str, ...] = ()) -> None:
        """Copy a folder of the container, links followed; what leads back to where it came from is left out."""
        os.mkdir(folder)
        here = self.places.resolve(path)
        for name in self.places.listed(path):
            inner = join(path, name)
            real = self.real_of(inner)
            if real is None:
                continue
            if os.path.isdir(real):
                if self.places.resolve(inner) not in (*above, here):
                    self.fill(inner, join(folder, name), join(target, name), (*above, here))
            elif os.path.isfile(real):
                self.bring(real, join(folder, name))
                self.note(inner, join(target, name), os.stat(real).st_size)
        sync(folder)

    def walk(self, path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
        """(path in the container, real path) of every file of a file or folder."""
        real = self.real_of(path)
        if real is None:
            return
        if os.path.isfile(real):
            yield path, real
        elif os.path.isdir(real):
            here = self.places.resolve(path)
            if here not in above:
                for name in self.places.listed(path):
                    yield from self.walk(join(path, name), (*above, here))

    def real_of(self, path: str) -> str | None:
        """The real path that a path leads to; None if it leads nowhere."""
        try:
            real = self.places.real(path)
        except OSError:
            return None
        if not os.path.exists(real):
            return None
        bounds = self.places.bounds
        if any(inside(real, staged) for staged in bounds.granted):
            return real
        why = bounds.never(real) if os.path.isfile(real) else ""
        if why:
            raise Refused("PathRefused", f"the output {path}: {why}")
        return real

    def bring(self, real: str, target: str) -> None:
        """Make a new file with the bytes of another; a hard link if the task wrote them and they have no other name."""
        status = os.stat(real)
        ours = real.startswith(self.places.room + "/") and status.st_nlink == 1
        if ours and not os.path.islink(real):
            try:
                os.link(real, target)
            except OSError:
                pass  # another disk
            else:
                sync(target)
                return
        copy_file(real, target)
        os.chmod(target, stat.S_IMODE(status.st_mode) | 0o600)
        sync(target)

    def upload(self, path: str, real: str, uri: str) -> None:
        """Deliver one file to an object store."""
        store, key = self.store(uri)
        try:
            with open(real, "rb") as reading, store.open(key, "wb") as writing:  # type: ignore[attr-defined]
                while block := reading.read(8 * _BLOCK):
                    writing.write(block)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise Refused("OutputFailed", f"cannot write {uri}: {type(error).__name__}: {error}") from None
        self.note(path, uri, os.stat(real).st_size)

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

    def temporary(self, target: str) -> str:
        """A name beside a target."""
        self._numbers += 1
        return f"{os.path.dirname(target)}/.flowsched-{os.getpid()}-{self._numbers}"

    def note(self, path: str, uri: str, size: int) -> None:
        """Remember what was delivered."""
        self.files.append({"path": printable(path), "uri": printable(uri), "size": size})


def leave(places: Places | None, container: Record, bounds: Bounds) -> None:
    """Write the files that must exist after every end, unless the task wrote them: an outside program waits for them.

    Args:
        places: Of the container; None if it did not come to that.
        container: The order's part, see `cluster.orders`.
        bounds: Where it may be written.
    """
    for left in container["leave"]:  # type: ignore[attr-defined]
        path = canonical(str(left["path"]))
        targets = [*mounted_at(path, container), *delivered_to(path, container)]
        if not targets and places is not None:
            targets = [places.real(path)]
        for target in dict.fromkeys(targets):
            if not bounds.refusal(target):  # the attempt ends all the same, and what it ended by was said
                write_left(target, str(left["content"]))


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
    for target in dict.fromkeys([*mounted_at(path, container), *delivered_to(path, container)]):
        if bounds.refusal(target):
            continue
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(target, flags, 0o644), "w", encoding="utf-8", errors="replace") as file:
                file.write(line)
        except OSError:
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
    """Write a file unless there is one: whole or not at all. A folder that is gone is not made again."""
    temporary = f"{os.path.dirname(target)}/.flowsched-left-{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        sync(temporary)
        try:
            os.link(temporary, target)  # unlike a rename it never takes the place of what is there
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not os.path.lexists(target):
                os.rename(temporary, target)
        sync(os.path.dirname(target))
    except OSError:
        pass  # the end must be told all the same
    finally:
        remove(temporary)


def same(one: str, other: str) -> bool:
    """Whether two paths are one file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def copy_file(source: str, target: str) -> None:
    """Copy bytes, inside of the kernel where it can."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        try:
            while os.copy_file_range(reading.fileno(), writing.fileno(), 1 << 30):
                pass
        except (OSError, AttributeError):  # from another file system, or no Linux
            writing.truncate(0)
            os.lseek(reading.fileno(), 0, os.SEEK_SET)
            os.lseek(writing.fileno(), 0, os.SEEK_SET)
        while block := os.read(reading.fileno(), _BLOCK):
            writing.write(block)


def printable(text: str) -> str:
    """Text that JSON can hold."""
    return os.fsencode(text).decode(errors="replace")
