"""A task that tries to leave something behind: `python escape.py WAY HOW FOLDER`.

Its fugitives bear FOLDER in their command line, by which a test finds them whatever else they change. WAY: see `WAYS`. HOW the task
goes on when its fugitive is there: `end` ends it, `memory` takes more and more memory, all else waits.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

MINUTES = 600
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_PARENT, CLONE_NEWUSER, CLONE_NEWPID, SYS_CLONE = 0x8000, 0x10000000, 0x20000000, 56
FUGITIVE = """
import sys, time
try:
    open(f'{sys.argv[1]}/there-{sys.argv[2]}', 'w').close()
except OSError:
    pass
time.sleep(600)
"""


def fugitive(**more):
    """Become a program that does nothing for long, with no environment and no open files."""
    os.closerange(0, 3)
    os.open(os.devnull, os.O_RDWR)
    os.dup(0)
    os.dup(0)
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", FUGITIVE, FOLDER, WAY], more)


def lower_limits():
    resource.setrlimit(resource.RLIMIT_RTTIME, (777_777_777, 777_777_777))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def leave_groups():
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        if "cgroup.procs" in names and folder.count("/") <= 4 and "flowsched" not in folder:
            try:
                with open(f"{folder}/cgroup.procs", "w") as file:
                    file.write("0")
            except OSError:
                pass


def daemon(change=lambda: None):
    """Fork twice, in a session of its own."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    change()
    fugitive()


def signal_parent(number):
    os.kill(os.getppid(), number)


def orphan_signals(number):
    def act():
        time.sleep(0.2)  # until its own parent is gone
        signal_parent(number)

    daemon(act)


def runs_away():
    """Each process lives for a moment, and the last of them is as long as the first."""

    def act():
        last_way()
        open(f"{FOLDER}/there-{WAY}", "w").close()
        while True:
            if os.fork():
                os._exit(0)
            time.sleep(0.0005)

    if os.fork():
        return
    os.setsid()
    act()


def sibling():
    if LIBC.syscall(SYS_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.setsid()
        fugitive()


def own_subreaper():
    if os.fork():
        return
    LIBC.prctl(36, 1, 0, 0, 0)
    daemon(lower_limits)
    os.setsid()
    time.sleep(MINUTES)


def own_space():
    """A space of process numbers of its own, where it may."""
    open(f"{FOLDER}/there-{WAY}", "w").close()
    if os.fork():
        return
    os.setsid()
    if LIBC.unshare(CLONE_NEWPID) and LIBC.unshare(CLONE_NEWUSER | CLONE_NEWPID):
        daemon()
        os._exit(0)
    if os.fork():
        os._exit(0)
    fugitive()


def forks_at_term():
    if os.fork():
        return
    os.setsid()

    def again(*_):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, again)

    signal.signal(signal.SIGTERM, again)
    open(f"{FOLDER}/there-{WAY}", "w").close()
    while True:
        time.sleep(1)


def from_a_thread():
    thread = threading.Thread(target=daemon)
    thread.start()
    thread.join()


def stops_itself():
    daemon(lambda: (open(f"{FOLDER}/there-{WAY}", "w").close(), os.kill(os.getpid(), signal.SIGSTOP)))


def bomb():
    """Sixty daemons, each of which has sixty."""
    for _ in range(60):
        if os.fork() == 0:
            os.setsid()
            for _ in range(2):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    lower_limits()
                    fugitive()
            os._exit(0)


def other_user():
    def change():
        os.setgroups([])
        os.setresgid(65533, 65533, 65533)
        os.setresuid(65533, 65533, 65533)

    open(f"{FOLDER}/there-{WAY}", "w").close()
    daemon(change if os.geteuid() == 0 else lambda: None)


def popen():
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FUGITIVE, FOLDER, WAY],
        start_new_session=True,
        env={},
        close_fds=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def last_way():
    lower_limits()
    leave_groups()
    os.nice(10)


WAYS = {
    "daemon": daemon,
    "new session, no environment": popen,
    "limits, group and priority": lambda: daemon(last_way),
    "kills its parent": lambda: (daemon(last_way), there(), signal_parent(signal.SIGKILL)),
    "its orphan kills its parent": lambda: orphan_signals(signal.SIGKILL),
    "stops its parent": lambda: (daemon(last_way), there(), signal_parent(signal.SIGSTOP)),
    "its orphan stops its parent": lambda: orphan_signals(signal.SIGSTOP),
    "asks its parent to end": lambda: (daemon(last_way), there(), signal_parent(signal.SIGTERM)),
    "runs away": runs_away,
    "a sibling": sibling,
    "a subreaper of its own": own_subreaper,
    "a space of process numbers": own_space,
    "forks when asked to end": forks_at_term,
    "from a thread": from_a_thread,
    "stops itself": stops_itself,
    "another user": other_user,
    "many": bomb,
}


def there():
    while not os.path.exists(f"{FOLDER}/there-{WAY}"):
        time.sleep(0.01)


if __name__ == "__main__":
    WAY, HOW, FOLDER = sys.argv[1:4]
    WAYS[WAY]()
    there()
    taken = []
    while HOW == "memory":
        taken.append(bytearray(os.urandom(1 << 20)) * 16)
    if HOW != "end":
        time.sleep(MINUTES)
