"""Delivery of a container task's outputs to their targets: files and folders of this machine, objects of a store.

Everything is found by its path in the container, and read where it really lies. The task can change names meanwhile, of what is
read and of the folders that it goes to: none is resolved a second time (`safe_paths`). Files come to be by a rename once their
bytes are on the disk, and so do folders where there is none yet. The next attempt does again a delivery that a
runner's death cut off.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

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
from .trees import Durable, copy_bytes, file_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Writes an object with the bytes of an open file, and returns its version: see `Stores.write`. Called in threads.
Send = Callable[[int, str], str]

#: Files that get their names together: they wait for the disk together. Larger ones gain nothing by that, and need room twice.
_STAGED = 256
_STAGED_BYTES = 64 << 20
#: Tasks read files up to this size where another task delivered them, on a storage that all nodes see (`engine.data.remote_reads`).
_SHARED_BYTES = 32 << 20
#: Files that are uploaded at a time: each waits for the network most of the time. As many are downloaded at a time.
_UPLOADED = 8
#: A write that has failed, and may do better, is tried again after each of these. Twice as long would not outlast more outages.
_PAUSES_S = (1.0, 4.0, 15.0)


class Staging:
    """A new folder in the folder of some targets: files come to be in it, and move out under their names when they are durable.

    Args:
        path: The folder of the targets.
        at: The same, opened.
    """

    def __init__(self, path: str, at: Opened) -> None:
        self.path = path
        self.at = at
        self.name = ""
        self.folder: Opened | None = None
        self.files: dict[str, Record] = {}  #: by name, the record of each

    def open(self, temporary: str) -> int:
        """Its descriptor; made as `temporary`, if it is not there."""
        if self.folder is None:
            os.mkdir(temporary, 0o700, dir_fd=self.at.fd)
            self.name = temporary
            self.folder = Opened(open_folder(self.at.fd, temporary))
        return self.folder.fd

    def move_out(self) -> Iterator[Record]:
        """Give the files their names; each is reported when it has its own."""
        if self.folder is None:
            return
        for name in list(self.files):
            before = os.stat(name, dir_fd=self.folder.fd, follow_symlinks=False)
            try:
                os.rename(name, name, src_dir_fd=self.folder.fd, dst_dir_fd=self.at.fd)
                after = os.stat(name, dir_fd=self.at.fd, follow_symlinks=False)
            except OSError as error:
                error.filename = join(self.path, name)
                raise
            record = self.files.pop(name)
            place, same = record.pop("place", None), (before.st_ino, before.st_size, before.st_mtime_ns)
            if place is not None and same == (after.st_ino, after.st_size, after.st_mtime_ns):
                record |= {"version": file_version(after), "place": place}
            yield record

    def close(self) -> None:
        """Remove what is left of it."""
        if self.folder is not None:
            os.close(self.folder.fd)
            remove(self.at.fd, self.name)
        os.close(self.at.fd)


class Delivery:
    """The outputs of one attempt. A `with` closes it.

    Args:
        places: Of its container.
        send: Writes an object.
        targets: Targets of this machine, and their real paths before the task began, links followed (see `resolved`).
        progress: Called for each file that is at its target, or only waits for the disk.
        whole: The first output that cannot be delivered ends the delivery. Otherwise the others are still delivered, but
            none to a store that has failed: it may be away.
    """

    def __init__(
        self,
        places: Places,
        send: Send,
        targets: dict[str, str],
        progress: Callable[[], None] = lambda: None,
        *,
        whole: bool = True,
    ) -> None:
        self.places = places
        self.whole = whole
        self._refused: Refused | None = None  #: of the first upload that failed
        self._away: set[str] = set()  #: stores that have failed
        self.progress = progress
        self.targets = targets
        self._found: dict[tuple[str, str], None] = {}  #: (path, uri) of files, in the order of the outputs
        self._noted: dict[tuple[str, str], Record] = {}
        self._send = send
        self._senders: ThreadPoolExecutor | None = None
        #: Uploads under way: (what `_sent` returns, path, path of this machine, uri).
        self._sent: deque[tuple[Future[tuple[os.stat_result, str]], str, str, str]] = deque()
        self._durable = Durable()  #: of what is staged
        self._staged: dict[str, Staging] = {}  #: by the folder of the targets
        self._room_left = _STAGED, _STAGED_BYTES  #: files and bytes that may still be staged
        self._source: tuple[str, Opened] | None = None  #: the folder that the last file came from

    def __enter__(self) -> Delivery:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what is only staged. Uploads under way end."""
        if self._senders is not None:
            self._senders.shutdown()
        for staging in self._staged.values():
            staging.close()
        self._durable.__exit__()
        if self._source is not None:
            os.close(self._source[1].fd)

    @property
    def files(self) -> list[Record]:
        """Path, uri, size and version of each file that was delivered, in the order of the outputs.

        The version is that of an object, as its store names it (`object_version`), or of a large file that is on another disk now
        (`file_version`); else "". With a version comes the place of the task's own file with the same bytes: its path, inode and
        time of change.
        """
        return [self._noted[key] for key in self._found if key in self._noted]

    def deliver(self, output: Record) -> None:
        """Deliver one output; nothing, if it is not there. Its last files have their names after `flush`.

        Raises:
            Refused: An object store took it not, or the task has put something else on its way.
            OSError: It cannot be written. It can be taken again: files that are whole stay, and are not told twice.
        """
        try:
            self.bring_out(output)
        except Unsafe as error:
            raise Refused("OutputRefused", f"the output {output['path']} was replaced: {error}") from None
        except OSError as error:
            if isinstance(error.filename, str) and not error.filename.startswith("/"):
                error.filename = str(output["local"] or output["uri"])  # it names a step of the way
            raise

    def flush(self) -> None:
        """Make what is staged durable, give it its names, and wait for uploads. It can be called again after an error.

        Raises:
            Refused: An object store took a file not.
            OSError: A file cannot have its name.
        """
        self._durable.settle()
        for staging in self._staged.values():
            for record in staging.move_out():
                self.note(record)
            self._durable.add(staging.at.fd)
        self._durable.settle()
        for staging in self._staged.values():
            staging.close()
        self._staged, self._room_left = {}, (_STAGED, _STAGED_BYTES)
        while self._sent:
            self.end_upload()
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused

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
            if self.is_there(clean) and not self.put(
                clean, uri.rstrip("/"), local=output["local"] is not None
            ):
                what = kind_of(None, self.places.real(clean))
                raise Refused("OutputRefused", f"the output {path} is {what}, neither a file nor a folder")
            return
        prefix = self.places.canonical(str(output["prefix"])) if output["prefix"] is not None else "/"
        for match in matches(clean, self.places.listed, self.is_plain_folder):
            if not self.is_there(match):
                continue
            relative = match[len(prefix) :] if match.startswith(prefix.rstrip("/") + "/") else match
            self.put(match, join(uri, relative), local=output["local"] is not None)

    def in_place(self, path: str) -> None:
        """Record an output that lies at its target: the path is the same inside and outside. Its files give no rights any more."""
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
        self.note(self.delivered(path, path, status.st_size))

    def is_there(self, path: str) -> bool:
        """Whether the task has something there: this machine's own files do not count."""
        if self.places.is_foreign(path):
            return False
        try:
            real = self.places.real(path)
            with parent(real) as at:
                os.stat(os.path.basename(real) or "/", dir_fd=at, follow_symlinks=False)
        except OSError:
            return False
        return True

    def is_plain_folder(self, path: str) -> bool:
        """Whether a path is a folder, and no link to one."""
        real = self.places.host_of(path)
        return os.path.isdir(real) and not os.path.islink(real)

    def open(self, path: str) -> Opened | None:
        """Open the file or folder that a path of the container leads to; None if there is neither.

        Raises:
            Refused: No output may come from there.
            Unsafe: It has been replaced since its links were followed.
            OSError: It cannot be opened.
        """
        try:
            real = self.places.real(path)
            at, name = self.source(real), os.path.basename(real) or "/"
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        except OSError:
            return None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            return None
        bounds = self.places.bounds
        if stat.S_ISREG(mode) and not any(inside(real, staged) for staged in bounds.granted):
            why = bounds.never(real)
            if why:
                raise Refused("PathRefused", f"the output {path}: {why}")
        return Opened(open_any(at, name))

    def source(self, real: str) -> int:
        """The folder that a file of this machine lies in, opened; until another one is asked for. Raises Unsafe, OSError."""
        folder = os.path.dirname(real)
        if self._source is None or self._source[0] != folder:
            opened = parent(real)
            if self._source is not None:
                os.close(self._source[1].fd)
            self._source = folder, opened
        return self._source[1].fd

    def put(self, path: str, uri: str, *, local: bool) -> bool:
        """Deliver a file or folder. Returns whether it is one."""
        opened = self.open(path)
        if opened is None:
            return False
        with opened as fd:
            if not local:
                for inner, file in self.walk(path):
                    self.upload(inner, file, uri + inner[len(path) :])
            elif stat.S_ISDIR(os.fstat(fd).st_mode):
                self.folder(path, fd, uri)
            else:
                self.file(path, fd, uri)
        return True

    def target(self, uri: str) -> str:
        """Where a file or folder goes, as its path was before the task could change it."""
        top = uri
        while top not in self.targets:
            above = os.path.dirname(top)
            if above == top:
                return uri
            top = above
        return join(self.targets[top], uri[len(top) :])

    def into(self, target: str) -> Opened:
        """The folder of a target, made where it is missing. Raises OSError, also where the task has put something on the way."""
        try:
            return parent(target, make=BY_UMASK)
        except Unsafe as error:
            raise NotADirectoryError(errno.ENOTDIR, f"{error}, on the way to {target}") from None

    def staging(self, target: str) -> Staging:
        """Where a file becomes whole before it is at its target."""
        folder, name = os.path.split(target)
        if min(self._room_left) <= 0 or (folder in self._staged and name in self._staged[folder].files):
            self.flush()
        if folder not in self._staged:
            self._staged[folder] = Staging(folder, self.into(target))
        return self._staged[folder]

    def file(self, path: str, fd: int, uri: str) -> None:
        """Deliver one file of this machine, once `flush` is called."""
        target = self.places.bounds.check(self.target(uri))
        status, name, staging = os.fstat(fd), os.path.basename(target), self.staging(target)
        if self.is_same(path, status, staging.at.fd, name):
            self.note(self.delivered(path, uri, status.st_size))
            return
        into = staging.open(temporary_name())
        try:
            is_copy = self.bring(path, fd, into, name, self._durable)
        except OSError:
            remove(into, name)
            raise
        staging.files[name] = self.delivered(path, uri, status.st_size)
        if is_copy and status.st_size > _SHARED_BYTES:
            staging.files[name]["place"] = place_of(self.places.real(path), status)
        files, size = self._room_left
        self._room_left = files - 1, size - status.st_size

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
                    self.note(self.delivered(inner, uri + inner[len(path) :], os.fstat(file).st_size))
                return
            try:
                os.close(open_folder(at, name))
            except FileNotFoundError:
                temporary = temporary_name()
                try:
                    os.mkdir(temporary, dir_fd=at)
                    with Opened(open_folder(at, temporary)) as into, Durable() as durable:
                        found = list(self.fill(path, into, uri, durable))
                        durable.settle()
                    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
                except OSError:
                    if kind_of(at, name) != "a folder":  # which another process has made meanwhile
                        raise
                else:
                    os.fsync(at)
                    for record in found:
                        self.note(record)
                    return
                finally:
                    remove(at, temporary)
        for inner, file in self.walk(path):
            self.file(inner, file, uri + inner[len(path) :])

    def fill(
        self, path: str, into: int, uri: str, durable: Durable, above: tuple[str, ...] = ()
    ) -> Iterator[Record]:
        """Copy a folder of the container, links followed; a link that leads back to a folder above is left out."""
        here = self.places.resolve(path)
        for name in self.places.listed(path):
            inner = join(path, name)
            opened = self.open(inner)
            if opened is None:
                continue
            with opened as fd:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode):
                    self.bring(inner, fd, into, name, durable)
                    yield self.delivered(inner, join(uri, name), status.st_size)
                elif self.places.resolve(inner) not in (*above, here):
                    os.mkdir(name, dir_fd=into)
                    with Opened(open_folder(into, name)) as deeper:
                        yield from self.fill(inner, deeper, join(uri, name), durable, (*above, here))
        durable.add(into)

    def walk(self, path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
        """(path in the container, descriptor) of every file of a file or folder. The descriptor is closed after its turn."""
        opened = self.open(path)
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

    def bring(self, path: str, fd: int, at: int, name: str, durable: Durable) -> bool:
        """Make a new file with the bytes of another; a hard link if the task wrote them, and they have no other
        name and give no rights. Returns whether it is a copy.
        """
        status, real = os.fstat(fd), self.places.real(path)
        if inside(real, self.places.room) and status.st_nlink == 1 and not gives_rights(fd):
            try:
                there = self.source(real)
                os.link(os.path.basename(real), name, src_dir_fd=there, dst_dir_fd=at, follow_symlinks=False)
                made = os.stat(name, dir_fd=at, follow_symlinks=False)
            except OSError:
                pass  # another disk
            else:
                if (made.st_dev, made.st_ino) == (status.st_dev, status.st_ino):
                    durable.add(fd)
                    return False
                remove(at, name)  # the name is another file's by now
        with Opened(new_file(at, name)) as writing:
            copy_bytes(fd, writing)
            os.fchmod(writing, plain_mode(status.st_mode) | 0o600)
            durable.add(writing)
        return True

    def upload(self, path: str, fd: int, uri: str) -> None:
        """Deliver one file to an object store, beside others; it is there after `flush`. Raises Refused, also for one before it."""
        self._found.setdefault((printable(path), printable(uri)))
        if self._senders is None:
            from concurrent.futures import (
                ThreadPoolExecutor,  # loads logging, and most attempts upload nothing
            )

            self._senders = ThreadPoolExecutor(_UPLOADED)
        if len(self._sent) >= _UPLOADED:
            self.end_upload()
        if self._refused is not None and self.whole:
            raise self._refused
        if store_of(uri) in self._away and not self.whole:
            return
        sent = self._senders.submit(_sent, os.dup(fd), uri, self._send, _PAUSES_S if self.whole else ())
        self._sent.append((sent, path, self.places.real(path), uri))

    def end_upload(self) -> None:
        """Wait for the oldest upload, and remember the first that failed."""
        sent, path, real, uri = self._sent.popleft()
        try:
            status, version = sent.result()
        except Refused as refused:
            self._refused = self._refused or refused
        except OSError as error:
            self._away.add(store_of(uri))
            why = error.strerror or f"cannot write {uri}: {error}"
            self._refused = self._refused or Refused("OutputFailed", why)
        else:
            record = self.delivered(path, uri, status.st_size) | {"version": version}
            self.note(record | {"place": place_of(real, status)} if version else record)

    def delivered(self, path: str, uri: str, size: int) -> Record:
        """The record of a file that is at its target, or only waits for the disk."""
        self.progress()
        record: Record = {"path": printable(path), "uri": printable(uri), "size": size, "version": ""}
        self._found.setdefault((printable(path), printable(uri)))
        return record

    def note(self, record: Record) -> None:
        """Remember a file that was delivered."""
        self._noted[str(record["path"]), str(record["uri"])] = record


def place_of(path: str, status: os.stat_result) -> Record:
    """Where a file lies that was delivered: another program may have replaced it since."""
    return {"path": path, "inode": status.st_ino, "mtime_ns": status.st_mtime_ns}


def _sent(fd: int, uri: str, send: Send, pauses_s: Iterable[float]) -> tuple[os.stat_result, str]:
    """Write an object with the bytes of a file, which is closed. Raises Refused, OSError.

    Returns:
        The file's status from before: a program that writes to it meanwhile changes its time. The object's version.
    """
    with Opened(fd):
        for pause_s in (*pauses_s, None):
            try:
                return os.fstat(fd), send(fd, uri)
            except OSError:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
    raise AssertionError


def deliver_all(
    delivery: Delivery, outputs: list[Record], insist: Callable[[str, str, Callable[[], None]], None]
) -> tuple[str, OSError | Refused] | None:
    """Deliver all outputs. Files that were delivered before a failure are whole.

    Args:
        delivery: It.
        outputs: As they were ordered.
        insist: Calls what delivers one output, given that output in words and its target; perhaps more than once.

    Returns:
        The path of the output that failed first, and why; None: all are delivered.
    """
    failed: tuple[str, OSError | Refused] | None = None
    path = ""
    for output in outputs:
        path = str(output["path"])
        try:
            insist(f"output {path}", target_of(output), lambda output=output: delivery.deliver(output))  # type: ignore[misc]
        except (Refused, OSError) as error:
            failed = failed or (path, error)
            if delivery.whole:
                break
    try:
        if outputs:
            insist("outputs", target_of(outputs[-1]), delivery.flush)
    except (Refused, OSError) as error:
        failed = failed or (path, error)
    return failed


def store_of(uri: str) -> str:
    """The bucket of an object, with its scheme."""
    return "/".join(uri.split("/", 3)[:3])


def target_of(output: Record) -> str:
    """The path that an output is delivered to; for object stores its uri, which is never full."""
    return str(output["local"] or output["uri"])


def resolved(path: str) -> str:
    """A path of this machine before a task can change it: the links on its way are followed, and the last one to a folder."""
    return os.path.realpath(path) if os.path.isdir(path) else canonical(path)


def count(places: Places, outputs: Iterable[Record]) -> int:
    """All files of some outputs."""
    files = 0
    for output in outputs:
        path = places.canonical(str(output["path"]))
        found = matches(path, places.listed, lambda each: os.path.isdir(places.host_of(each)))
        for real in map(places.real, found if is_pattern(path) else [path]):
            files += sum(len(names) for _, _, names in os.walk(real)) if os.path.isdir(real) else 1
    return files


#: (path of the container, its files of this machine, text, reason of the end that alone leaves it) of a file to be left.
Left = tuple[str, "list[str] | None", str, "str | None"]


def left_at(container: Record, bounds: Bounds) -> list[Left]:
    """The paths that must exist after an end. The task has not begun.

    Args:
        container: The order's part, see `cluster.orders`.
        bounds: Where it may be written.
    """
    found: list[Left] = []
    for left in container["leave"]:  # type: ignore[attr-defined]
        path = canonical(str(left["path"]))
        targets = dict.fromkeys((*mounted_at(path, container), *delivered_to(path, container)))
        # The attempt ends all the same if one may not be written, and the reason of its end was reported.
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
            with suppress(OSError, Unsafe):  # the end must be reported all the same
                write_left(target, text)


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with (
            suppress(OSError, Unsafe),  # the end must be reported all the same
            parent(target) as at,
            Opened(open_file(at, os.path.basename(target), flags)) as fd,
        ):
            write_all(fd, line.encode(errors="replace"))


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


#: A file with more bytes holds no return code.
CODE_BYTES = 16


def code_in(content: bytes) -> int | None:
    """The return code in a file that a task leaves for its client to judge by, as Cromwell's scripts do: they always end with 0.

    Returns:
        A whole number from 0 to 999,999,999 with white space around it; None if the content is anything else.
    """
    digits = content.strip()
    if len(content) > CODE_BYTES or not digits.isdigit() or len(digits) > 9:
        return None
    return int(digits)


def printable(text: str) -> str:
    """Text that JSON can hold."""
    return os.fsencode(text).decode(errors="replace")
