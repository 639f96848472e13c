"""Attempts of an earlier version, which kept records in their folders: taken over once, as the journal of a dead runner.

    lock        `pid start boot` of the attempt's own runner
    started     what the journal says under that name
    exit.json   how it ended; void: it never ran. Or both in ended.json, with the name of the file as the key

What still runs is ended: its runner now, its task when the service looks at it. It is told as RunnerLost, and runs again as the
next attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from flowsched.cluster.local.runner.journal import DONE, line_of
from flowsched.cluster.local.runner.kin import boot_id
from flowsched.cluster.local.runner.records import sync
from flowsched.cluster.local.runners import is_running

_RECORDS: Final = (
    "exit.json",
    "void",
    "ended.json",
    "started",
    "pod.json",
    "lock",
    "order",
    "reserve",
    "waits",
    "spawner.log",
)


def take_over(root: Path, folders: Iterable[Path]) -> int:
    """Write the journal of what an earlier version has left, unless there are journals already.

    Args:
        root: Of the cluster.
        folders: Of all attempts.

    Returns:
        How many attempts still ran.
    """
    if (root / "runners").exists() or not (taken := list(folders)):
        return 0
    made, ran = root / "runners.tmp", 0
    shutil.rmtree(made, ignore_errors=True)
    (made / "0-earlier").mkdir(parents=True, mode=0o700)
    paths = [made / "0-earlier" / name for name in (f"000001{DONE}", "000002")]
    with open(paths[0], "wb") as ended, open(paths[1], "wb") as open_:
        for folder in taken:
            ran += _end_runner(folder)
            for kind, record in _records(folder):
                file = open_ if kind == "started" else ended
                file.write(line_of({**record, "kind": kind, "name": folder.name}))
        for file in (ended, open_):
            file.flush()
            os.fsync(file.fileno())
    sync(str(made / "0-earlier"))
    made.rename(root / "runners")
    sync(str(root))
    for folder in taken:
        for name in _RECORDS:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    return ran


def _end_runner(folder: Path) -> bool:
    """Kill the runner of an attempt; whether it lived."""
    try:
        pid, start, boot = (folder / "lock").read_text().split()
    except (OSError, ValueError):
        return False
    if boot != boot_id() or not is_running(int(pid), int(start)):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    return True


def _records(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """What a folder says, by the kinds of the journal."""
    packed = _read(folder / "ended.json") or {}
    for name, kind in (("exit.json", "ended"), ("void", "void")):
        record = _read(folder / name) or packed.get(name)
        if record is not None:
            return [(kind, record)]
    record = _read(folder / "started")
    if record is None:
        return []
    return [("started", {**record, "runner": 0})]


def _read(path: Path) -> dict[str, Any] | None:
    """A record; None if it is missing or unreadable: another program may have written there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
