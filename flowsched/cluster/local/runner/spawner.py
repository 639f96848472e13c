"""The process that all runners are forked from: they start in a millisecond, since nothing is left to be imported.

It reads folders from its standard input, a line each, and answers with the runner's pid and start time. It ends with the
service (its input ends); the runners, each in a session of its own, go on.
"""

from __future__ import annotations

import os
import select
import sys
import traceback

from . import kin
from .attempt import main
from .kin import signal


def serve() -> None:
    """Fork a runner per line, until there are no more."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    rest = b""
    while True:
        wait_for_input(wake_read)
        block = os.read(0, 65536)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                become_runner(os.fsdecode(line), (wake_read, wake_write))
            answer(b"%d %d\n" % (pid, kin.start_time(pid)))


def answer(line: bytes) -> None:
    """Tell the service. If it is gone, the end of the input comes next."""
    try:  # noqa: SIM105 - see kin
        os.write(1, line)
    except BrokenPipeError:
        pass


def wait_for_input(wake: int) -> None:
    """Reap runners until the service has something to say."""
    while True:
        ready = select.select([0, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
        if 0 in ready:
            return


def become_runner(folder: str, pipes: tuple[int, int]) -> None:
    """In the child: forget the spawner, then run the attempt. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for fd in pipes:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{folder}/runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream, fd in enumerate((null, null, errors)):
            os.dup2(fd, stream)
        os.close(null)
        os.close(errors)
        main(folder)
        code = 0
    except BaseException:  # noqa: BLE001 - written down where people look, then the process ends
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    finally:
        os._exit(code)
