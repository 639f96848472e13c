"""The process that holds the listening sockets of a service, and starts the service again when it dies.

    flowsched serve ── binds the port, forks ──► the service (first life, in the process that was forked)
           │                                            │ dies by a signal, or with an error
           └─ becomes this program: waits ◄─────────────┘
                     └── starts `flowsched serve --no-supervise` anew, with the same sockets (LISTEN_FDS)

While the service is down, the kernel completes connections and queues requests; the next life answers them. This program reads
nothing from the sockets. It runs as a script on the standard library alone (10 MB), so it does not fail when the service does.

Rules:
    1. A life that ends with an error code before the configuration of any life is accepted ends the supervisor, with the same
       code: the command is wrong. A life that is killed there is followed by the next one, since a kill shows nothing about the
       command: perhaps the life waited for its database. Once a configuration was accepted (the port is open, the root and
       the database are the service's own) each life that dies is followed by the next one.
    2. A life that ends with 0, or by a signal of rule 3, ends the supervisor: this is an orderly stop.
    3. SIGTERM, SIGINT and SIGHUP go to the service; the supervisor ends as the service does. One that comes before this
       program runs waits for it.
    4. After any other end the next life begins: after `FIRST_WAIT_S`, then after waits that double up to `LONGEST_WAIT_S`. A life
       of `STEADY_S` resets them.
    5. When the supervisor is killed, the kernel kills the service (PR_SET_PDEATHSIG): `kill -9` of the process that the user
       started ends the service, as it does without a supervisor. Running tasks go on in each of these cases.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 30.0
#: A life that lasts so long has another cause of death than the one before. Doubling it delays only the reset of the wait.
STEADY_S: Final = 60.0
#: The variable that names the descriptor on which a life reports that its configuration is accepted.
ACCEPTED_FD: Final = "FLOWSCHED_ACCEPTED_FD"

#: The variable with the descriptor of the credentials (`credentials.CREDENTIALS_FD`; it imports nothing of flowsched).
CREDENTIALS_FD: Final = "FLOWSCHED_CREDENTIALS_FD"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_FIRST_FD: Final = 3
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Life(NamedTuple):
    """One process of the service."""

    pid: int
    accepted_fd: int  #: something can be read from it once the configuration is accepted
    begun: float


def keep(
    sockets: Sequence[socket.socket], command: Sequence[str], *, credentials_fd: int, log_json: bool = False
) -> None:
    """Fork: the child returns, and is the first life of the service. The parent becomes the supervisor, and never returns.

    Args:
        sockets: The service listens on them.
        command: Starts a later life, which finds the sockets by `LISTEN_FDS`.
        credentials_fd: A later life reads its credentials from it, see `credentials`.
        log_json: Whether the supervisor logs JSON.
    """
    supervisor = os.getpid()
    reading, writing = os.pipe()
    # The service may be ready before this process is the supervisor. The kernel keeps a signal to this process until then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _waited_for())
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reading)
        os.environ[ACCEPTED_FD] = str(writing)
        _end_with(supervisor)
        return
    os.close(writing)
    for fd in (reading, credentials_fd, *(sock.fileno() for sock in sockets)):
        os.set_inheritable(fd, True)
    order = {
        "command": list(command),
        "sockets": [sock.fileno() for sock in sockets],
        "pid": pid,
        "accepted_fd": reading,
        "credentials_fd": credentials_fd,
        "log_json": log_json,
    }
    script = [sys.executable, "-I", "-S", "-X", "utf8", __file__, json.dumps(order)]
    os.execv(script[0], script)


def accepted() -> None:
    """Report to the supervisor that the configuration of this life is accepted. Without one, or a second time, it does nothing."""
    text = os.environ.pop(ACCEPTED_FD, "")
    if text:
        os.write(int(text), b"1")
        os.close(int(text))


def supervise(order: dict[str, Any]) -> NoReturn:
    """Wait for the end of each life, and begin the next one (rules 1 to 4)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _waited_for())
    _close_process()
    life = Life(order["pid"], order["accepted_fd"], time.monotonic())
    for fd in (life.accepted_fd, order["credentials_fd"], *order["sockets"]):
        os.set_inheritable(fd, False)
    wait_s, ever_accepted = FIRST_WAIT_S, False
    while True:
        status, stopping = _ended(life)
        ever_accepted = os.read(life.accepted_fd, 1) == b"1" or ever_accepted
        os.close(life.accepted_fd)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or -code in _PASSED_ON or stopping or (code > 0 and not ever_accepted):
            _end_as(code)
        if time.monotonic() - life.begun >= STEADY_S:
            wait_s = FIRST_WAIT_S
        _log_death(order, life.pid, code, wait_s)
        if signal.sigtimedwait(_waited_for() - {signal.SIGCHLD}, wait_s) is not None:
            sys.exit(0)  # a signal of rule 3 came while there is no service
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        life = _begin(order)


def _waited_for() -> set[signal.Signals]:
    """The signals that matter. Under `nohup` the end of the terminal does not."""
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    return {signal.SIGCHLD, *_PASSED_ON} - ignored


def _ended(life: Life) -> tuple[int, bool]:
    """Wait for the end of a life, and pass on signals meanwhile: its status, and whether a signal asked it to stop."""
    stopping = False
    while True:
        pid, status = os.waitpid(life.pid, os.WNOHANG)
        if pid:
            return status, stopping
        number = signal.sigwait(_waited_for())
        if number != signal.SIGCHLD:
            stopping = True
            os.kill(life.pid, number)


def _begin(order: dict[str, Any]) -> Life:
    """Start the service anew, with the sockets as its descriptors from 3 on."""
    supervisor = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Life(pid, reading, time.monotonic())
    try:
        _end_with(supervisor)
        fds = [*order["sockets"], writing, order["credentials_fd"]]
        first_free = max(_FIRST_FD + len(fds), *fds) + 1
        # First out of the way: they may overlap with their targets.
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first_free) for fd in fds]
        for target, fd in enumerate(copies, _FIRST_FD):
            os.dup2(fd, target)
        environment = os.environ | {
            "LISTEN_FDS": str(len(order["sockets"])),
            "LISTEN_PID": str(os.getpid()),
            ACCEPTED_FD: str(_FIRST_FD + len(order["sockets"])),
            CREDENTIALS_FD: str(_FIRST_FD + len(order["sockets"]) + 1),
        }
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _waited_for())
        os.execve(order["command"][0], order["command"], environment)
    except BaseException as error:  # noqa: BLE001 - it is printed, and the child ends
        print(f"flowsched: the service cannot be started: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _end_with(supervisor: int) -> None:
    """In the child: let the kernel kill this process when the supervisor ends, however it ends (rule 5)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != supervisor:  # it ended before the call
        os._exit(1)


def _close_process() -> None:
    """Keep other processes of this user from reading the credentials through /proc/PID/fd. Root still can."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _end_as(code: int) -> NoReturn:
    """End as the service ended: with its exit code, or by its signal."""
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _waited_for())
        os.kill(os.getpid(), -code)
        signal.pause()
    sys.exit(code)


def _log_death(order: dict[str, Any], pid: int, code: int, wait_s: float) -> None:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    text = "the service died and is started again"
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")  # as in the service's log
    if order["log_json"]:
        life = {"pid": pid, "how": how, "wait_s": wait_s}
        line = json.dumps({"event": text, "level": "warning", "timestamp": now} | life)
    else:
        line = f"{now} flowsched: {text} in {wait_s:g} s: process {pid} {how}"
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    supervise(json.loads(sys.argv[1]))
