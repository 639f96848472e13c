"""The files of a container task in its pod: stage-in puts them where the steps look for them, stage-out takes them out.

The paths of its containers are those of a container task on one machine (`runner.image_places`), and so is the delivery
(`runner.deliver`). This module adds the parts of a pod: its order, how its steps ended, and what to do about a lack of rights.
Standard library only; clients of object stores are imported when needed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowsched.cluster.kubernetes.exit_codes import NOT_LAID
from flowsched.cluster.kubernetes.packing import LARGEST, unpacked
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.deliver import Delivery, code_in, deliver_all, resolved, write_left
from flowsched.cluster.local.runner.image_places import ImagePlaces
from flowsched.cluster.local.runner.outputs import Refused
from flowsched.cluster.local.runner.safe_paths import Opened, Unsafe, open_file, write_all
from flowsched.cluster.local.runner.uploads import Stores, is_s3

# ---- stage-in and stage-out ----


#: No file of a longer list has a place: the agent takes none of them. A request has 2 MiB at most.
_MOST_PLACED: Final = 10_000
#: The message has the last so many bytes of each of a step's files.
TAIL_BYTES: Final = 10 << 10
#: A step that is told to end so shortly before its timeout is taken to have run into it: pods begin before their first step.
_SLACK_S: Final = 30.0
_TRIES: Final = 3
_PAUSE_S: Final = 2.0

#: Answers of an agent that writes no objects, and of one of an earlier version.
_WRITES_NONE: Final = frozenset({401, 501})

Env = Mapping[str, str]
Json = dict[str, Any]
Ask = Callable[[Json], tuple[int, Json]]
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
        if not (os.path.isdir(place) if directory else os.path.isfile(place))
    ]
    if missing:
        shown = ", ".join(missing[:20]) + (" …" if len(missing) > 20 else "")
        message = f"inputs that are not there, or no folder where one was asked for: {shown}"
        return NOT_LAID, {"reason": "InputMissing", "message": message}
    try:
        _places(order, env, stat.S_IMODE(os.stat(_inputs(env)).st_mode) & 0o777 | 0o700).make_folders()
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
        _places(order, env, texts=_contents(env)).fill()
    except OSError as error:
        return NOT_LAID, {
            "reason": "StartFailed",
            "message": f"cannot put the task's files in place: {_why(error)}",
        }
    return 0, {}


#: The remedy for a file that the task's user may not write, or read.
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
    """The error in words; for a lack of rights also the owner of the place, the user who asks, and a remedy."""
    if not isinstance(error, PermissionError) or not error.filename:
        return str(error)
    place = str(error.filename)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    return f"{error}: {_owned(place)}. {_REMEDY}"


def _contents(env: Env) -> list[str]:
    packed, number = "", 0
    while (piece := env.get(f"FLOWSCHED_CONTENT_{number}")) is not None:
        packed, number = packed + piece, number + 1
    if not packed:
        return []
    texts: list[str] = json.loads(zlib.decompress(base64.b64decode(packed), bufsize=LARGEST))
    return texts


# --- stage-out -----------------------------------------------------------------------------------------------


def deliver(env: Env, ask: Ask | None = None) -> Message:
    """Take the outputs out, write the files that shall be left, and return the message about both.

    Args:
        env: The environment.
        ask: Asks the node's agent to write an object; None = there is no agent.

    Returns:
        `delivered` ([path, uri, bytes] of each file; of an object and of a large file that was copied to a shared volume also its
        version, and if the task's own file lies in the pod's volume `inputs`, its path there, inode and time of change), `stdio`
        (the ends of the steps' files), `reason` and `message`.
    """
    order = _order(env)
    places = _places(order, env)
    ending = _ending(order, env)
    too_little = order["fitted"] and ending.killed  # the engine hears it too: the next attempt delivers
    reason = "OOMKilled" if too_little else ""
    message: Message = {"outputs": [], "reason": reason, "message": "", "delivered": []}
    _note_end(order, places, env)
    is_last = order["last"] and not ending.interrupted and not too_little
    outputs = [
        {**output, "local": output["uri"] if output["uri"].startswith("/") else None}
        for output in order["outputs"]
        if output["always"] or ending.well or is_last
    ]
    targets = {each["local"]: resolved(each["local"]) for each in outputs if each["local"]}
    stores = _Stores(f"{places.room}/", ask)
    with Delivery(places, stores.write, targets, whole=ending.well) as delivery:
        failed = deliver_all(
            delivery, outputs, lambda _what, _target, act: _insist(act, _TRIES if ending.well else 1)
        )
        files, room = delivery.files, f"{places.room}/"
        for each in files:
            record = [each["path"], each["uri"], each["size"], *filter(None, [each["version"]])]
            place: Json = each.get("place", {"path": ""})  # type: ignore[assignment]
            if place["path"].startswith(room) and len(files) <= _MOST_PLACED:
                record += [place["path"].removeprefix(room), place["inode"], place["mtime_ns"]]
            message["delivered"].append(record)
    if failed is not None:
        path, error = failed
        reason, why = error.args if isinstance(error, Refused) else ("OutputFailed", _why(error))
        if ending.well:
            message |= {"reason": reason, "message": f"output {path}: {why}"}
        else:  # the failure of its own stays the reason
            message["message"] = f"not all outputs came back: output {path}: {why}"
    if not ending.interrupted:
        leave(env, "OOMKilled" if ending.killed else "")
    if order.get("return_code") and ending.well:
        message["returned"] = code_in(_end_of(places, order["return_code"]))
    message["stdio"] = [
        [_end_of(places, path).decode(errors="replace") if path else "" for path in files]
        for files in order["stdio"]
    ]
    return message


class _Stores:
    """Object stores, as a pod reaches them: by its node's agent, which has a client, else by a client of its own.

    Args:
        room: The pod's own volume: the agent sees no other files.
        ask: See `deliver`.
    """

    def __init__(self, room: str, ask: Ask | None) -> None:
        self._room, self._ask = room, ask
        self._own = Stores({"options": {}})

    def write(self, fd: int, uri: str) -> str:
        """See `Stores.write`."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self._ask is None or not path.startswith(self._room) or not is_s3(uri):
            return self._own.write(fd, uri)
        found, place = os.fstat(fd), path.removeprefix(self._room)
        file = {"place": place, "inode": found.st_ino, "uri": uri, "size_bytes": found.st_size}
        status, answer = self._ask({"file": file})
        if status in _WRITES_NONE:
            self._ask = None
            return self._own.write(fd, uri)
        if "refused" in answer:
            raise Refused(*answer["refused"])
        if status == 403:
            raise Refused("OutputFailed", f"cannot write {uri}: {answer.get('message')}")
        if "version" not in answer:
            why = answer.get("error") or f"cannot write {uri}: the agent answers {status} {answer}"
            raise OSError(errno.EIO, why)
        return str(answer["version"])


def _end_of(places: ImagePlaces, path: str) -> bytes:
    """The end of an ordinary file at a path; nothing where there is none."""
    try:
        with places.opened(path) as fd:
            return os.pread(fd, TAIL_BYTES, max(0, os.fstat(fd).st_size - TAIL_BYTES))
    except (OSError, Unsafe):
        return b""


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
        signalled = os.path.exists(f"{notes}/{number}.term")
        code = _read(f"{notes}/{number}.code").strip()
        if signalled and code != "0" and not _is_late(order, notes):
            return _Ending(interrupted=True)
        if not os.path.exists(f"{notes}/{number}.begun"):
            return _Ending(interrupted=not _is_late(order, notes))
        if not code or (code != "0" and not ignored):
            return _Ending(killed=code in ("", "137") and not signalled)
    return _Ending(well=True)


def _note_end(order: Json, places: ImagePlaces, env: Env) -> None:
    """Add a line to the standard error of a step that did not end by itself: the reason of its end.

    No container is told that the kernel has killed another one for its memory.
    """
    notes = _notes(env)
    for number, _ in enumerate(order["steps"] or ()):
        signalled = os.path.exists(f"{notes}/{number}.term")
        code = _read(f"{notes}/{number}.code").strip()
        if not os.path.exists(f"{notes}/{number}.begun"):
            return
        if signalled and code != "0" and _is_late(order, notes):
            why = f"Timeout: it ran longer than its timeout of {order['timeout_ms'] / 1000:g} s"
        elif code in ("", "137") and not signalled:
            why = "killed by signal 9, as what uses more memory than it may; `flowsched explain` says more"
        else:
            continue
        if path := order["stdio"][number][1]:
            with (
                contextlib.suppress(OSError, Unsafe),
                places.opened(path, os.O_WRONLY | os.O_APPEND) as fd,
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


def _insist(act: Callable[[], None], tries: int) -> None:
    """Do something, again if it fails. Raises OSError."""
    for left in range(tries - 1, -1, -1):
        try:
            act()
        except OSError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


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


def _places(order: Json, env: Env, mode: int = 0o777, texts: Sequence[str] = ()) -> ImagePlaces:
    """The paths of the task's containers.

    Args:
        order: It.
        env: With our place of the volume `inputs`.
        mode: Of folders that are made there.
        texts: The texts of files that the document contains.
    """
    layout = {**order, "mounts": (), "texts": list(zip(order["contents"], texts, strict=False))}
    return ImagePlaces(os.path.realpath(_inputs(env)), layout, Bounds(allowed=["/"]), mode)


def _read(path: str) -> str:
    """The beginning of a note of a step. The task can put anything there."""
    try:
        with Opened(open_file(None, path)) as fd:
            return os.read(fd, 100).decode(errors="replace")
    except (OSError, Unsafe):
        return ""
