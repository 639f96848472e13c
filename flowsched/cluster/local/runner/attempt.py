"""One attempt, from its order to its end: the working folder, refusals, results, usage.

The runner sees a plain task through itself (`plain`). Steps, containers and images need a process of their own (`shim.Apart`),
which does what the runner does for plain tasks.

    work/            where the task works; work/tmp is its TMPDIR
    stdout, stderr   what it says
    release          made by the service: end the task; its text is the grace in ms
    runner.log       what the attempt's own process complains of
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from socket import socket

from . import kin
from .bounds import Bounds
from .contained import Contained
from .deliver import leave, left_at, note
from .engine import ImageTask
from .finishing import inode_of
from .outputs import Refused, collect
from .records import Record, fullness, is_full, json_text, now_ms
from .room import wait_for_folder, with_room
from .safe_paths import Opened, kind_of, open_folder, put_file
from .secret_values import SecretError, read_secrets
from .steps import line_of
from .task import LAST_SIGNAL_CODE, StartError, Task, link_inputs, release_grace_s, states_of, supervise


def is_apart(order: Record) -> bool:
    """Whether an attempt needs a process of its own."""
    return order.get("image") is not None or order.get("container") is not None


def folder_of(order: Record) -> str:
    """The folder of an attempt."""
    return str(order["folder"])


def see_through(order: Record, record: Callable[[Record], None], mailbox: socket | None) -> None:
    """Carry out an attempt in this process, which is its own.

    Args:
        order: See `orders.compose`.
        record: See `Task`.
        mailbox: See `Uploads`.
    """
    wake, _ = listen()
    has_container = order.get("container") is not None
    task = (Task if has_container else ImageTask)(folder_of(order), order, record)
    try:
        end = prepare(task)
        if end is None:
            admit(task)
            end = carry_out(task, wake, Contained(task, mailbox) if has_container else None)
    except Refused as refusal:
        end = refusal_of(task, *refusal.args)
    except OSError as error:  # reported as the task's failure: a fault that stays would be tried for ever
        if task.started_ms:
            raise
        scarce = error.errno in (
            errno.EAGAIN,
            errno.ENOMEM,
            errno.EMFILE,
            errno.ENFILE,
        )  # no fault of the task
        end = void_of(task.order, "NotStarted") if scarce else unprepared(task, error)
    record(end)


def prepare(task: Task) -> Record | None:
    """Lay out the working folder. Returns the end of an attempt that is void: inputs are not here, or it was released."""
    order, folder = task.order, task.folder
    for made in (f"{folder}/work", f"{folder}/work/tmp"):
        os.mkdir(made)
    task.home_inode = inode_of(os.path.dirname(folder))
    if order["outputs"]:
        task.remember_work()
    for parent in order["folders"]:  # type: ignore[attr-defined]
        os.makedirs(f"{folder}/work/{parent}", exist_ok=True)
    lost = link_inputs(f"{folder}/work", order["inputs"])  # type: ignore[arg-type]
    order["seen"] = states_of(order["inputs"])  # type: ignore[arg-type]
    for name in order["gang_files"]:  # type: ignore[attr-defined]
        os.rename(f"{folder}/{name}", f"{folder}/work/{name}")
    for stream in ("stdout", "stderr"):
        os.close(os.open(f"{folder}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
    if lost:
        return void_of(order, "InputLost", lost)
    return void_of(order, "Released") if release_grace_s(folder) is not None else None


def void_of(order: Record, reason: str, lost: list[str] | None = None) -> Record:
    """The record of an attempt that never ran, and never will."""
    return {
        "kind": "void",
        "name": order["name"],
        "reason": reason,
        "started": False,
        "at_ms": now_ms(order),
        "lost_inputs": lost or [],
    }


def unprepared(task: Task, error: OSError) -> Record:
    """The end of an attempt that could not be prepared. No room is no fault of the task, which runs later, as another attempt."""
    if is_full(error):
        return void_of(task.order, "DiskFull")
    return refusal_of(task, "StartFailed", f"cannot lay out the working folder: {error}")


def admit(task: Task) -> None:
    """Refuse what may not run here; give the task its secrets, which are in no file of the attempt."""
    if task.order["refused"]:
        raise Refused(*task.order["refused"])  # type: ignore[misc]
    try:
        task.env |= read_secrets(str(task.order["root"]), task.order["secrets"])  # type: ignore[arg-type]
    except SecretError as error:
        raise Refused("SecretMissing", str(error)) from None


def refusal_of(task: Task, reason: str, message: str) -> Record:
    """The end of an attempt that nothing ran in."""
    if task.order.get("container") is not None:
        bounds = Bounds(**task.order["bounds"], own=task.folder)  # type: ignore[arg-type]
        note(task.order["container"], bounds, line_of(reason, message))  # type: ignore[arg-type]
        leave(None, left_at(task.order["container"], bounds))  # type: ignore[arg-type]
        return end_of(task, 126, reason, message, container={"steps": [], "outputs": []})
    return end_of(task, 126, reason, message)


def carry_out(task: Task, wake: int, container: Contained | None) -> Record:
    """Start the task, see it through, and say how it ended."""
    before = kin.io_counts()
    if container is not None:
        code, reason, message = container.run(wake)
        if code == 0 and not reason:
            message = replaced(task)
            reason = "OutputRefused" if message else ""
        used = usage(task, before) | {"occupied_bytes": occupied(task.folder)}
        return end_of(task, code, reason, message, [], used, container.report)
    try:
        task.start()
        reason, message = supervise(task, wake)
        left = task.kill_everything()
        code, reason, message = task.judged(reason, message)
    except StartError as error:
        code, reason, message = error.exit_code, "StartFailed", str(error)
        left = task.kill_everything() if task.pid else []
    return ended(task, code, reason, message, left, usage(task, before))


def ended(task: Task, code: int, reason: str, message: str, left: list[int], used: Record) -> Record:
    """The end of an attempt whose processes have ended, but for `left`. If it went well, its outputs are in the cache."""
    outputs: list[Record] = []
    if code == 0 and not reason:
        message = replaced(task)
        reason = "OutputRefused" if message else ""
    if code == 0 and not reason:
        outputs, reason, message = published(task)
    elif 128 < code <= LAST_SIGNAL_CODE and not reason:
        message = f"killed by signal {code - 128}"
    if left:
        message += f"; these processes do not die: {left}"
    return end_of(task, code, reason, message, outputs, used)


def end_of(
    task: Task,
    code: int,
    reason: str,
    message: str,
    outputs: list[Record] | None = None,
    used: Record | None = None,
    container: Record | None = None,
) -> Record:
    """The record of how an attempt ended."""
    if code and not reason:
        message = "; ".join(filter(None, (message, no_room(task))))
    changed = changed_inputs(task.order)
    if changed:
        names = ", ".join(dict.fromkeys(changed.values()))
        message = "; ".join(
            filter(
                None,
                (message, f"written to while the task ran: input {names}; no other task takes its result"),
            )
        )
    return {
        "kind": "ended",
        "name": task.name,
        "started_ms": task.started_ms,
        "at_ms": now_ms(task.order),
        "exit_code": code,
        "reason": reason,
        "message": message,
        "outputs": outputs or [],
        "usage": used or {},
        "container": container,
        "images": task.order.get("images") or (),
        "changed": list(changed),
    }


#: Where an attempt's end is found that its runner has not lived to hear: the record of a journal.
END = "end"


def leave_end(folder: str, record: Record) -> None:
    """Leave how an attempt ended in its folder, durable, wholly or not at all. Raises OSError, Unsafe."""
    with Opened(open_folder(None, folder)) as at:
        put_file(at, END, json_text(record), 0o600, durable=True)


def changed_inputs(order: Record) -> dict[str, str]:
    """Dataset -> the input's name, of those that were written to since the attempt began: by its task, or by another program."""
    before: dict[str, object] = order.get("seen") or {}  # type: ignore[assignment]
    if not before:
        return {}
    inputs: list[Record] = order["inputs"]  # type: ignore[assignment]
    now = states_of(inputs)
    names = {uri: str(record["name"]) for record in inputs for uri, _ in record["files"]}  # type: ignore[attr-defined]
    return {uri: names[uri] for uri, state in before.items() if now[uri] != state}


def no_room(task: Task) -> str:
    """Which file system that the task writes to is full, in words; "" if none is."""
    container: Record = task.order.get("container") or {}  # type: ignore[assignment]
    mounts: list[Record] = container.get("mounts") or []  # type: ignore[assignment]
    paths = [task.work, *(str(mount["source"]) for mount in mounts if not mount["read_only"])]
    return next(filter(None, map(fullness, paths)), "")


def replaced(task: Task) -> str:
    """Which of its logs a task has replaced by something else than a file, in words; "" if none.

    The task's output is lost then, and its end must not hide that.
    """
    for stream in ("stdout", "stderr"):
        path = f"{task.folder}/{stream}"
        try:
            is_file = stat.S_ISREG(os.lstat(path).st_mode)
        except OSError:  # it may do without a log
            continue
        if not is_file:
            return f"the task has replaced its {stream}: {path} is {kind_of(None, path)} now, and what it said is lost"
    return ""


def published(task: Task) -> tuple[list[Record], str, str]:
    """The outputs in the node's cache, or the reason and message why there are none."""
    outputs: list[Record] = task.order["outputs"]  # type: ignore[assignment]
    if not outputs:
        return [], "", ""
    wait_for_folder(task)
    try:
        with task.open_work() as work:
            return collect(work, outputs, task.work, lambda *what: with_room(task, *what)), "", ""
    except Refused as refusal:
        reason, message = refusal.args
        return [], reason, message
    except OSError as error:
        if is_full(error) and release_grace_s(task.folder) is not None:
            return [], "Released", ""
        return [], "OutputFailed", f"cannot publish: {error}"


#: The space of more files and folders than these is not measured: the attempt's end would wait for it.
_MOST_FILES = 20_000


def occupied(folder: str) -> int:
    """The bytes that the files below a folder occupy; 0 where there are too many to count, or too many folders."""
    total = found = 0
    for at, _, names in os.walk(folder):
        found += 1 + len(names)
        if found > _MOST_FILES:
            return 0
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{at}/{name}").st_blocks * 512
    return total


def usage(task: Task, before: dict[str, int]) -> Record:
    """The usage of the attempt: of all processes that this one has reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage_of(
        task,
        round((used.ru_utime + used.ru_stime) * 1000),
        used.ru_maxrss,
        (used.ru_inblock, used.ru_oublock),
        kin.io_since(before, kin.io_counts()),
    )


def usage_of(
    task: Task, cpu_ms: int, max_rss: int, blocks: tuple[int, int], moved: tuple[int, int, int]
) -> Record:
    """The usage of an attempt, as it is recorded.

    Args:
        task: It.
        cpu_ms: Of its processes.
        max_rss: The most of one of them, as the kernel counts.
        blocks: Blocks of 512 bytes that they have read from and written to disks: where the kernel tells no bytes.
        moved: Bytes read, written, and of both from and to disks.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    read, written, disk = moved
    return {
        "cpu_ms": cpu_ms + task.outside_cpu_ms,
        "max_rss_bytes": task.most_bytes(max_rss * unit),
        "read_bytes": read or blocks[0] * 512,
        "written_bytes": written or blocks[1] * 512,
        "bytes_local": task.order["bytes_local"],
        "bytes_moved": task.order["bytes_moved"],
        "disk_bytes": disk or sum(blocks) * 512,
    }


def listen() -> tuple[int, int]:
    """A descriptor that becomes readable when a signal comes, and the one that is written to then. SIGTERM only wakes: `release`
    decides.
    """
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read, write
