"""One attempt, from its lock to its exit record.

It outlives the service that started it. What it knows lies in its folder (`cluster.attempts` is the other side):

    lock       taken first and held to the end; the task inherits it: it stays held while anything of it lives
    order      what to do (marshal: read at once by the same interpreter, needs no import); removed once read
    release    made by the service: end the task; its text is the grace in ms
    started    written, with fsync, before the task's first instruction
    exit.json  how it ended; void: it never ran and never will. Exactly one of the two comes last
"""

from __future__ import annotations

import marshal
import os
import resource
import sys
import time

from . import kin
from .kin import signal
from .outputs import Refused, collect
from .records import Record, follow_clock, fullness, is_full, poke, wall_ms, write_end
from .room import with_room
from .secret_values import SecretError, read_secrets
from .task import LAST_SIGNAL_CODE, StartError, Task, link_inputs, release_grace_s, supervise, take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .contained import Contained


def main(folder: str) -> None:
    """Run the attempt in a folder, unless another process has run it, runs it now, or has voided it."""
    wake = listen()  # before other processes can learn whom to wake
    lock = take_lock(folder)
    if lock is None:
        return
    if any(os.path.exists(f"{folder}/{name}") for name in ("void", "started", "exit.json", "ended.json")):
        return
    with open(f"{folder}/order", "rb") as file:
        order: Record = marshal.load(file)
    if order.get("clock_base_ms") is not None:  # an older service wrote none
        follow_clock(order["clock_base_ms"])  # type: ignore[arg-type]
    os.unlink(f"{folder}/order")  # it holds the environment, and that may hold secrets
    task = made(folder, order, lock)
    container = None
    try:
        ready = prepare(folder, order)
        if ready:
            admit(task)
            container = contained(task)
    except Refused as refusal:
        reason, message = refusal.args
        refuse(task, reason, message)
    except OSError as error:  # told as the task's failure, or a fault that stays would be tried for ever
        if is_full(error):
            give_up(folder)
        else:
            refuse(task, "StartFailed", f"cannot lay out the working folder: {error}")
    else:
        if ready:
            run(task, wake, container)
    poke(str(order["root"]), str(order["name"]))


def made(folder: str, order: Record, lock: int) -> Task:
    """The attempt's process: in an image, if its stage names one that is used."""
    if order.get("image") is None or order["container"] is not None:
        return Task(folder, order, lock)
    from .engine import ImageTask

    return ImageTask(folder, order, lock)


def prepare(folder: str, order: Record) -> bool:
    """Lay out the working folder. False: it is void (inputs are not here, or it was released)."""
    os.makedirs(f"{folder}/work/tmp", exist_ok=True)
    for parent in order["folders"]:  # type: ignore[attr-defined]
        os.makedirs(f"{folder}/work/{parent}", exist_ok=True)
    lost = link_inputs(f"{folder}/work", order["inputs"])  # type: ignore[arg-type]
    if order["hostfile"] is not None:
        with open(f"{folder}/work/hostfile", "w") as file:
            file.write(str(order["hostfile"]))
    for stream in ("stdout", "stderr"):
        open(f"{folder}/{stream}", "a").close()
    if not lost and release_grace_s(folder) is None:
        return True
    reason = "InputLost" if lost else "Released"
    record: Record = {"reason": reason, "started": False, "at_ms": wall_ms(), "lost_inputs": lost}
    write_end(folder, "void", record)
    return False


def give_up(folder: str) -> None:
    """There is no room to begin: that is no fault of the task, which runs later, as another attempt."""
    record: Record = {"reason": "DiskFull", "started": False, "at_ms": wall_ms(), "lost_inputs": []}
    write_end(folder, "void", record)


def admit(task: Task) -> None:
    """Refuse what may not run here; give the task its secrets, which are in no file of the attempt."""
    if task.order["refused"]:
        raise Refused(*task.order["refused"])  # type: ignore[misc]
    try:
        task.env |= read_secrets(str(task.order["root"]), task.order["secrets"])  # type: ignore[arg-type]
    except SecretError as error:
        raise Refused("SecretMissing", str(error)) from None


def contained(task: Task) -> Contained | None:
    """The container of a task that has one, with its paths laid out."""
    if task.order.get("container") is None:
        return None
    # Imported only for container tasks: every import delays the start of a runner by milliseconds.
    from .contained import Contained

    return Contained(task)


def refuse(task: Task, reason: str, message: str) -> None:
    """End an attempt that nothing ran in."""
    if task.order.get("container") is not None:
        from .bounds import Bounds
        from .deliver import leave

        leave(None, task.order["container"], Bounds(**task.order["bounds"], own=task.folder))  # type: ignore[arg-type]
        end(task, 126, reason, message, container={"steps": [], "outputs": []})
        return
    end(task, 126, reason, message)


def run(task: Task, wake: int, container: Contained | None) -> None:
    """Start the task, see it through, and write down how it ended."""
    try:
        carry_out(task, wake, container)
    except OSError as error:
        if not is_full(error) or os.path.exists(f"{task.folder}/started"):
            raise
        if task.pid:
            task.kill_everything()
        give_up(task.folder)


def carry_out(task: Task, wake: int, container: Contained | None) -> None:
    """Start the task, and see it through."""
    kin.become_subreaper()
    before = kin.io_counts()

    def begun() -> None:
        poke(str(task.order["root"]), str(task.order["name"]))

    if container is not None:
        code, reason, message = container.run(wake, begun)
        end(task, code, reason, message, [], usage(task, before), container.report)
        return
    try:
        task.start()
        begun()
        reason, message = supervise(task, wake)
        left = task.kill_everything()
        code, reason, message = task.judged(reason, message)
    except StartError as error:
        code, reason, message = error.exit_code, "StartFailed", str(error)
        left = task.kill_everything() if task.pid else []
    outputs: list[Record] = []
    used = usage(task, before)
    if code == 0 and not reason:
        outputs, reason, message = published(task)
    elif 128 < code <= LAST_SIGNAL_CODE and not reason:
        message = f"killed by signal {code - 128}"
    if left:
        message += f"; these processes do not die: {left}"
    end(task, code, reason, message, outputs, used)


def end(
    task: Task,
    code: int,
    reason: str,
    message: str,
    outputs: list[Record] | None = None,
    used: Record | None = None,
    container: Record | None = None,
) -> None:
    """Write down how the attempt ended."""
    record: Record = {
        "started_ms": task.started_ms,
        "at_ms": wall_ms(),
        "exit_code": code,
        "reason": reason,
        "message": message,
        "outputs": outputs or [],
        "usage": used or {},
        "container": container,
        "images": task.order.get("images") or (),
    }
    if code and not reason:
        record["message"] = "; ".join(filter(None, (message, no_room(task))))
    while True:
        try:
            write_end(task.folder, "exit.json", record)
            return
        except OSError as error:
            if not is_full(
                error
            ):  # longer than what was reserved: the end waits for room, and the service with it
                raise
            time.sleep(1)


def no_room(task: Task) -> str:
    """Which file system that the task writes to is full, in words; "" if none is."""
    container: Record = task.order.get("container") or {}  # type: ignore[assignment]
    mounts: list[Record] = container.get("mounts") or []  # type: ignore[assignment]
    paths = [task.work, *(str(mount["source"]) for mount in mounts if not mount["read_only"])]
    return next(filter(None, map(fullness, paths)), "")


def published(task: Task) -> tuple[list[Record], str, str]:
    """The outputs in the node's cache, or the reason and message why there are none."""
    try:
        outputs: list[Record] = task.order["outputs"]  # type: ignore[assignment]
        return collect(task.work, outputs, lambda *what: with_room(task, *what)), "", ""
    except Refused as refusal:
        reason, message = refusal.args
        return [], reason, message
    except OSError as error:
        if is_full(error) and release_grace_s(task.folder) is not None:
            return [], "Released", ""
        return [], "OutputFailed", f"cannot publish: {error}"


def usage(task: Task, before: dict[str, int]) -> Record:
    """The usage of the attempt: of all its processes, since all have been reaped by now."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    read, written, disk = kin.io_since(before, kin.io_counts())
    return {
        "cpu_ms": round((used.ru_utime + used.ru_stime) * 1000) + task.outside_cpu_ms,
        "max_rss_bytes": task.most_bytes(used.ru_maxrss * unit),
        "read_bytes": read or used.ru_inblock * 512,
        "written_bytes": written or used.ru_oublock * 512,
        "bytes_local": task.order["bytes_local"],
        "bytes_moved": task.order["bytes_moved"],
        "disk_bytes": disk or (used.ru_inblock + used.ru_oublock) * 512,
    }


def listen() -> int:
    """A descriptor that becomes readable when a signal comes. SIGTERM only wakes: `release` decides."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read
