"""The files of a container task in its pod: stage-in puts them where the steps look for them, stage-out takes them out.

Paths of the container are not ours: `Sight` says where each of them really is (see `container_paths`), and a link that a task
has left is followed as the task would see it, never as we do. Standard library only; clients of object stores are imported when
needed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import stat
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowsched.cluster.kubernetes.exit_codes import NOT_LAID
from flowsched.cluster.kubernetes.packing import LARGEST, unpacked
from flowsched.cluster.local.runner import patterns
from flowsched.cluster.local.runner.deliver import write_left
from flowsched.cluster.local.runner.patterns import is_pattern
from flowsched.cluster.local.runner.records import sync
from flowsched.cluster.local.runner.return_code import code_in
from flowsched.cluster.local.runner.safe_paths import (
    Opened,
    Unsafe,
    folder,
    kind_of,
    new_file,
    open_file,
    parent,
    plain_mode,
    remove,
    temporary_name,
    write_all,
)
from flowsched.cluster.local.runner.trees import copy_bytes
from flowsched.cluster.node.container_view import place_in, tidy

_MOST_LINKS: Final = 40
#: Folders in each other: a tree is walked by recursion, and links may lead round in a circle.
_DEEPEST: Final = 100


class Sight:
    """Follows paths of a container.

    Args:
        view: (path of the container, place), the longest path first.
        inputs: Where we have the volume that relative places are in.
    """

    def __init__(self, view: Sequence[Sequence[str]], inputs: str) -> None:
        self._view = [
            (path, os.path.realpath(place) if place.startswith("/") else place) for path, place in view
        ]
        self._inputs = os.path.realpath(inputs)

    def real(self, path: str) -> str | None:
        """Where we find what the task finds at a path, all links followed; None if it is not there, or the image's own."""
        reached, links = "", 0
        ahead = deque(part for part in tidy(path).split("/") if part)
        while ahead:
            name = ahead.popleft()
            if name == "..":
                reached = os.path.dirname(reached).rstrip("/")
                continue
            here = f"{reached}/{name}"
            found = self._at(here)
            if found is None:
                if not self._leads_to_volume(here):
                    return None
            elif os.path.islink(found):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = os.readlink(found)
                reached = "" if target.startswith("/") else reached
                ahead.extendleft(part for part in reversed(target.split("/")) if part not in ("", "."))
                continue
            elif not os.path.lexists(found):
                return None
            reached = here
        return self._at(reached or "/")

    def read_end(self, path: str, limit: int) -> bytes:
        """The end of an ordinary file at a path; nothing where there is none."""
        real = self.real(path)
        if real is None:
            return b""
        try:
            with opened(real) as fd:
                return os.pread(fd, limit, max(0, os.fstat(fd).st_size - limit))
        except (OSError, Unsafe):
            return b""

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at a path."""
        real = self.real(path)
        return real is not None and os.path.isdir(real)

    def files_below(self, folder: str, depth: int = 0) -> Iterator[str]:
        """The paths of all files in a folder and below it, in the order of their names."""
        for name in self._names(folder):
            path = f"{folder.rstrip('/')}/{name}"
            real = self.real(path)
            if real is None:
                continue
            mode = os.stat(real).st_mode
            if stat.S_ISDIR(mode) and depth < _DEEPEST:
                yield from self.files_below(path, depth + 1)
            elif stat.S_ISREG(mode):
                yield path

    def matches(self, pattern: str) -> list[str]:
        """The paths that fit a pattern (see `running.patterns`), in the order of their names."""
        found = patterns.matches(tidy(pattern), self._names, self._is_plain_folder)
        return [path for path in found if self.real(path) is not None]

    def _is_plain_folder(self, path: str) -> bool:
        real = self._at(path)
        return real is not None and os.path.isdir(real) and not os.path.islink(real)

    def _names(self, folder: str) -> list[str]:
        real = self.real(folder)
        try:
            return sorted(os.listdir(real)) if real is not None else []
        except OSError:
            return []

    def _at(self, path: str) -> str | None:
        place = place_in(self._view, path)
        if not place:
            return None
        return place if place.startswith("/") else f"{self._inputs}/{place}"

    def _leads_to_volume(self, path: str) -> bool:
        return any(mounted.startswith(f"{path}/") for mounted, _ in self._view)


def opened(real: str) -> Opened:
    """Open an ordinary file, whose path has been followed over links before: none may lie on it now.

    Raises:
        Unsafe: Something else is there.
        OSError: It cannot be opened.
    """
    with parent(real) as at:
        return Opened(open_file(at, os.path.basename(real)))


# ---- stage-in and stage-out ----


#: Of each of a step's files, the end of so many bytes is told.
TAIL_BYTES: Final = 10 << 10
#: A step that is told to end so shortly before its timeout is taken to have run into it: pods begin before their first step.
_SLACK_S: Final = 30.0
#: How many files are delivered at a time.
_AT_A_TIME: Final = 8
_TRIES: Final = 3
_PAUSE_S: Final = 2.0

Env = Mapping[str, str]
Json = dict[str, Any]
Message = dict[str, Any]


# --- stage-in ------------------------------------------------------------------------------------------------


def prepare(env: Env) -> tuple[int, Message]:
    """Make the folders before another container writes into them, and check the inputs that are used in place.

    Returns:
        0, or an exit code and the message that says why the task cannot run.
    """
    order = _order(env)
    missing = [
        f"{path} (from {place}{_hidden(place)})"
        for path, place, directory in order["sources"]
        if not _is_there(place, directory)
    ]
    if missing:
        shown = ", ".join(missing[:20]) + (" …" if len(missing) > 20 else "")
        message = f"inputs that are not there, or no folder where one was asked for: {shown}"
        return NOT_LAID, {"reason": "InputMissing", "message": message}
    try:
        own = os.stat(_inputs(env))
        for place in order["folders"]:
            mode = 0o775 if place.startswith("/") else stat.S_IMODE(own.st_mode) | 0o700
            _make_folder(_real(env, place), mode)
        os.makedirs(_notes(env), exist_ok=True)
        with open(f"{_notes(env)}/started", "w") as file:
            file.write(str(_elapsed_s()))
    except OSError as error:
        return NOT_LAID, {
            "reason": "StartFailed",
            "message": f"cannot make the task's folders: {_why(error)}",
        }
    barred = [why for place in order.get("writes", ()) if (why := _barred(place))]
    if barred:
        message = f"the task may not write {'; nor '.join(barred[:3])}. {_REMEDY}"
        return NOT_LAID, {"reason": "StartFailed", "message": message}
    return 0, {}


def fill(env: Env) -> tuple[int, Message]:
    """Write the files that the document gives the text of, and bring to shared volumes what belongs there.

    Returns:
        0, or an exit code and the message that says why the task cannot run.
    """
    order = _order(env)
    try:
        for place, text in zip(order["contents"], _contents(env), strict=True):
            _write(_real(env, place), text)
        for source, place in order["copies"]:
            _copy(_real(env, source), _real(env, place))
        for place, path in order["links"]:
            if not os.path.lexists(_real(env, place)):
                os.symlink(path, _real(env, place))
        for place in order["files"]:
            _touch(_real(env, place))
    except OSError as error:
        return NOT_LAID, {
            "reason": "StartFailed",
            "message": f"cannot put the task's files in place: {_why(error)}",
        }
    return 0, {}


#: What to do about a file that the task's user may not write, or read.
_REMEDY: Final = (
    "Let that user do so (chown, chmod, or a group of the task), or run tasks as the owner: FLOWSCHED_RUN_AS_USER, "
    "with Helm tasks.runAsUser"
)


def _barred(place: str) -> str | None:
    """Why the task's user may not write a file, or make it where there is none yet; None if it may."""
    asked = place
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    wanted = os.W_OK | (os.X_OK if os.path.isdir(place) else 0)
    by_effective = os.access in os.supports_effective_ids
    if os.access(place, wanted, effective_ids=by_effective):
        return None
    return f"{asked}: {_owned(place)}"


def _owned(path: str) -> str:
    """Whose a file is, and who asks."""
    try:
        found = os.stat(path)
    except OSError as error:
        return f"{path} cannot be looked at by user {os.geteuid()}, group {os.getegid()} ({error.strerror})"
    kind = "folder" if stat.S_ISDIR(found.st_mode) else "file"
    return (
        f"the {kind} {path} belongs to user {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}; "
        f"tasks run as user {os.geteuid()}, groups {', '.join(map(str, sorted({os.getegid(), *os.getgroups()})))}"
    )


def _hidden(place: str) -> str:
    """Why the task's user cannot see whether there is a file; "" if it can."""
    try:
        os.stat(place)
    except PermissionError as error:
        return f": {_why(error)}"
    except OSError:
        pass
    return ""


def _why(error: Exception) -> str:
    """What went wrong; of a lack of rights also whose the place is, who asks, and what to do."""
    if not isinstance(error, PermissionError) or not error.filename:
        return str(error)
    place = str(error.filename)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    return f"{error}: {_owned(place)}. {_REMEDY}"


def _is_there(place: str, directory: bool) -> bool:
    return os.path.isdir(place) if directory else os.path.isfile(place)


def _make_folder(path: str, mode: int) -> None:
    """Make it and what is above it; those that we make are as open as the volume itself. Raises OSError."""
    names = [name for name in os.path.realpath(path).split("/") if name]
    with _naming(path), folder(None, names, make=mode & 0o777):
        pass


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let an error name the whole path, and not the part that was opened. A link that has come on the way is an OSError."""
    try:
        yield
    except Unsafe as error:
        raise OSError(errno.ELOOP, str(error), path) from error
    except OSError as error:
        if not os.path.isabs(str(error.filename or path)):
            error.filename = path
        raise


def _contents(env: Env) -> list[str]:
    packed, number = "", 0
    while (piece := env.get(f"FLOWSCHED_CONTENT_{number}")) is not None:
        packed, number = packed + piece, number + 1
    if not packed:
        return []
    texts: list[str] = json.loads(zlib.decompress(base64.b64decode(packed), bufsize=LARGEST))
    return texts


def _write(path: str, text: str) -> None:
    """Write a file of the document. All users may execute it, since the document does not say whether it is a program."""
    with _replacing(path) as fd:
        write_all(fd, text.encode("utf-8", "surrogatepass"))
        os.fchmod(fd, 0o755)


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[int]:
    """Yield the descriptor of a new file, which takes its place when all of it is there. Other accounts may write to its folder.

    Raises:
        OSError: It cannot be written, or a link has come on the way.
    """
    real, temporary = os.path.realpath(os.path.dirname(path)), temporary_name()
    with _naming(path), parent(f"{real}/{temporary}") as at:
        try:
            with Opened(new_file(at, temporary)) as fd:
                yield fd
            os.replace(temporary, os.path.basename(path), src_dir_fd=at, dst_dir_fd=at)
        finally:
            remove(at, temporary)


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source):
        shutil.copytree(source, target, copy_function=_copy_file, dirs_exist_ok=True)
    else:
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    """Copy the bytes of a file, durably. The copy gives no account the rights of its owner."""
    with opened(os.path.realpath(source)) as reading, _replacing(target) as writing:
        copy_bytes(reading, writing)
        os.fchmod(writing, plain_mode(os.fstat(reading).st_mode) | 0o600)
        os.fsync(writing)


def _touch(path: str) -> None:
    """An empty file to be mounted alone, older than everything, so that one sees whether it has been written."""
    if os.path.exists(path):
        return
    with _replacing(path) as fd:
        os.fchmod(fd, 0o666)
        os.utime(fd, (0, 0))


# --- stage-out -----------------------------------------------------------------------------------------------


def deliver(env: Env) -> Message:
    """Take the outputs out, write what shall be left, and tell of both.

    Returns:
        `delivered` ([path, uri, bytes] of each file), `stdio` (the ends of the steps' files), `reason` and `message`.
    """
    order = _order(env)
    sight = Sight(order["view"], _inputs(env))
    ending = _ending(order, env)
    told: Message = {"outputs": [], "reason": "", "message": "", "delivered": []}
    _note_end(order, sight, env)
    try:
        for output in order["outputs"]:
            if ending.well or output["always"]:
                told["delivered"] += _take(output, sight, env)
    except (OSError, Unsafe, _NotDelivered) as error:
        told |= {"reason": "OutputFailed", "message": f"output {output['path']}: {_why(error)}"}
    if not ending.interrupted:
        leave(env, "OOMKilled" if ending.killed else "")
    if order.get("return_code") and ending.well:
        told["returned"] = code_in(sight.read_end(order["return_code"], TAIL_BYTES))
    told["stdio"] = [
        [sight.read_end(path, TAIL_BYTES).decode(errors="replace") if path else "" for path in files]
        for files in order["stdio"]
    ]
    return told


class _Ending(NamedTuple):
    """How the steps of a pod ended.

    Args:
        well: All of them have ended well.
        interrupted: The pod was told to end before that, and not by its timeout: it was released or evicted, or its node is
            drained. The attempt then has no end of its own, unless its last step has ended well all the same.
        killed: A step was killed that was not told to end. No container knows why; a kernel does so to free memory.
    """

    well: bool = False
    interrupted: bool = False
    killed: bool = False


def _ending(order: Json, env: Env) -> _Ending:
    """How the steps ended, by the notes that they left."""
    if order["steps"] is None:
        return _Ending(well=True)
    notes = _notes(env)
    for number, ignored in enumerate(order["steps"]):
        told = os.path.exists(f"{notes}/{number}.term")
        code = _read(f"{notes}/{number}.code").strip()
        if told and code != "0" and not _is_late(order, notes):
            return _Ending(interrupted=True)
        if not os.path.exists(f"{notes}/{number}.begun"):
            return _Ending(interrupted=not _is_late(order, notes))
        if not code or (code != "0" and not ignored):
            return _Ending(killed=code in ("", "137") and not told)
    return _Ending(well=True)


def _note_end(order: Json, sight: Sight, env: Env) -> None:
    """Add a line to the standard error of a step that did not end by itself: what has ended it.

    No container is told that the kernel has killed another one for its memory.
    """
    notes = _notes(env)
    for number, _ in enumerate(order["steps"] or ()):
        told = os.path.exists(f"{notes}/{number}.term")
        code = _read(f"{notes}/{number}.code").strip()
        if not os.path.exists(f"{notes}/{number}.begun"):
            return
        if told and code != "0" and _is_late(order, notes):
            why = f"Timeout: it ran longer than its timeout of {order['timeout_ms'] / 1000:g} s"
        elif code in ("", "137") and not told:
            why = "killed by signal 9, as what uses more memory than it may; `flowsched explain` says more"
        else:
            continue
        real = sight.real(order["stdio"][number][1]) if order["stdio"][number][1] else None
        if real is not None:
            flags = os.O_WRONLY | os.O_APPEND
            with (
                contextlib.suppress(OSError, Unsafe),
                parent(real) as at,
                Opened(open_file(at, os.path.basename(real), flags)) as fd,
            ):
                write_all(fd, f"flowsched: {why}\n".encode())
        return


def _elapsed_s() -> float:
    """Seconds since the node's boot: the same in all containers of a pod, whatever the wall clock is set to."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _is_late(order: Json, notes: str) -> bool:
    """Whether the timeout is over, or nearly."""
    timeout_s: float = order["timeout_ms"] / 1000
    if not timeout_s:
        return False
    now = _elapsed_s()
    lasted_s = now - float(_read(f"{notes}/started") or now)
    return lasted_s >= timeout_s - min(_SLACK_S, timeout_s / 2)


def _take(output: Json, sight: Sight, env: Env) -> list[list[Any]]:
    """Deliver one output: every file that it stands for."""
    found = [(path, sight.real(path), uri) for path, uri in _matches(output, sight)]
    special = [real for path, real, _ in found if path == output["path"] and real and _is_special(real)]
    if special:
        raise _NotDelivered(f"it is {kind_of(None, special[0])}, neither a file nor a folder")
    there = [
        (path, real, uri)
        for path, real, uri in found
        if real is not None and os.path.isfile(real) and not _is_untouched(real)
    ]
    moving = [(number, real, uri) for number, (_, real, uri) in enumerate(there) if real != uri]
    _put_all(moving, env)
    for target in {os.path.dirname(uri) for _, _, uri in moving if uri.startswith("/")}:
        sync(target)
    return [[path, uri, os.stat(real).st_size] for path, real, uri in there]


def _matches(output: Json, sight: Sight) -> Iterator[tuple[str, str]]:
    """The files of an output: path of the container, and where each goes."""
    path, uri = output["path"], output["uri"]
    if not is_pattern(path) or (output["prefix"] is None and sight.real(path) is not None):
        yield from _files(path, uri, sight)
        return
    prefix = (output["prefix"] or "").rstrip("/")
    for match in sight.matches(path):
        inner = match.removeprefix(prefix) if match.startswith(f"{prefix}/") else match
        yield from _files(match, f"{uri.rstrip('/')}/{inner.lstrip('/')}", sight)


def _files(path: str, uri: str, sight: Sight) -> Iterator[tuple[str, str]]:
    """A file, or all that a folder holds."""
    if not sight.is_folder(path):
        yield path, uri
        return
    for file in sight.files_below(path):
        yield file, f"{uri.rstrip('/')}/{file[len(path) :].lstrip('/')}"


def _is_special(real: str) -> bool:
    """Whether something is there that is neither a file nor a folder."""
    mode = os.lstat(real).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_untouched(real: str) -> bool:
    """Whether it is a file that stage-in has made to be mounted, and that no step has written."""
    found = os.stat(real)
    return (found.st_size, found.st_mtime_ns) == (0, 0)


class _NotDelivered(Exception):
    pass


def _put_all(moving: Sequence[tuple[int, str, str]], env: Env) -> None:
    if len(moving) < 2:
        for number, real, uri in moving:
            _put(number, real, uri, env)
        return
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # each file waits for a disk or a network most of the time

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(lambda each: _put(each[0], each[1], each[2], env), moving))


def _put(number: int, real: str, uri: str, env: Env) -> None:
    for left in range(_TRIES - 1, -1, -1):
        try:
            if uri.startswith("/"):
                _put_file(real, uri)
            else:
                _put_object(real, uri)
        except OSError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _put_file(real: str, target: str) -> None:
    """Copy it beside its target, and rename it there when it is whole and on the disk."""
    _make_folder(os.path.realpath(os.path.dirname(target)), 0o775)
    _copy_file(real, target)


def _put_object(real: str, uri: str) -> None:
    from flowsched.cluster.node.origins import NotFetched, put

    try:
        with opened(real):  # by its path all the same: object stores tell the type of an object by the name
            put(real, uri)
    except NotFetched as error:
        if error.permanent:
            raise _NotDelivered(str(error)) from error
        raise OSError(str(error)) from error


def leave(env: Env, reason: str = "") -> None:
    """Write the files that must exist after an end for a reason, unless they are there. Also if no step of it ran."""
    for place, text, only in _order(env)["leave"]:
        if only not in (None, reason):
            continue
        try:
            write_left(os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place)), text)
        except (OSError, Unsafe) as error:
            print(f"cannot leave {place}: {error}", flush=True)


# --- what both know ------------------------------------------------------------------------------------------


def _order(env: Env) -> Json:
    order: Json = json.loads(unpacked(env["FLOWSCHED_CONTAINER"]))
    return order


def _inputs(env: Env) -> str:
    return env.get("FLOWSCHED_INPUTS") or "/flowsched/inputs"


def _notes(env: Env) -> str:
    return f"{env.get('FLOWSCHED_WORK') or '/flowsched/work'}/steps"


def _real(env: Env, place: str) -> str:
    return place if place.startswith("/") else f"{_inputs(env)}/{place}"


def _read(path: str) -> str:
    """The beginning of a note of a step. The task can put anything there."""
    try:
        with Opened(open_file(None, path)) as fd:
            return os.read(fd, 100).decode(errors="replace")
    except (OSError, Unsafe):
        return ""
