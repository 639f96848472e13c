"""The place of a run: namespaces and file systems of its own, a search for processes by their marks, and a clock that can jump.

All files lie below one tmpfs in this run's mount namespace, and every process lives in its PID namespace. The kernel therefore
removes all of it with the harness, however that ends. Only the control groups outlive the harness: `enter` removes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from bench.blackbox.workloads import Folders

#: In the environment of the harness once it is inside: the folder for its mounts.
INSIDE = "BLACKBOX_INSIDE"
_HERE = Path(__file__).parent
_UNSHARE = (
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--ipc",
    "--net",
    "--propagation",
    "private",
)


def now() -> float:
    """Seconds of the machine's monotonic clock: tasks read the same one from `/proc/uptime`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def enter(arguments: list[str]) -> int:
    """Run the harness again inside namespaces of its own; its exit status."""
    if shutil.which("unshare") is None:
        print("blackbox: found no unshare(1), expected the one of util-linux: install it", file=sys.stderr)
        return 2
    rootless = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = [_UNSHARE[0], *rootless, *_UNSHARE[1:], sys.executable, "-m", "bench.blackbox", *arguments]
    base = _mount_point()
    environment = {**os.environ, INSIDE: str(base)}
    process = subprocess.Popen(command, env=environment, preexec_fn=die_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.terminate()
    finally:
        for group in _own_groups(base.name):
            _remove(group)
        with contextlib.suppress(OSError):
            base.rmdir()


def be_init() -> None:
    """Become the first process of the PID namespace. It reaps, and ends with the child, which returns from here."""
    child = os.fork()
    if child == 0:
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def raise_loopback() -> None:
    """`ip link set lo up`, which is down in a new network namespace."""
    request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


class Arena:
    """The folders and file systems of one run.

    Args:
        size_mib: Size of the file system of the service's root.
        inodes: Its inodes.
    """

    def __init__(self, size_mib: int = 1024, inodes: int = 400_000) -> None:
        self.base = Path(os.environ[INSIDE])
        _mount(self.base, "size=90%,mode=755")
        self.size_bytes, self.inodes = size_mib << 20, inodes
        self.cluster = self.base / "cluster"  #: file system of the service's root
        self.root = self.cluster / "root"
        self.temporary = self.base / "tmp"
        self.folders = Folders(
            self.base / "tools", self.base / "journal", self.base / "marks", self.base / "data"
        )
        for folder in (self.cluster, self.folders.tools, self.folders.marks, self.folders.data):
            folder.mkdir(mode=0o755)
        self.temporary.mkdir(mode=0o777)
        self.temporary.chmod(0o1777)
        self.folders.journal.touch(mode=0o666)
        shutil.copy(_HERE / "task.sh", self.folders.tools / "task.sh")
        _mount(self.cluster, f"size={self.size_bytes},nr_inodes={inodes},mode=755")
        _mount(Path("/dev/shm"), "size=50%,mode=1777")  # PostgreSQL's, should it be killed
        self._filler = self.cluster / "filler"
        self._groups = _join(self.base.name)
        self.clock = self._make_clock()

    # ------------------------------------------------------------------------------------------------ faults

    def fill_bytes(self, left: int) -> None:
        """Leave so many bytes free on the cluster's file system."""
        with self._filler.open("ab") as file:
            for _ in range(20):
                free = os.statvfs(self.cluster)
                size = free.f_bavail * free.f_frsize - left
                if size <= 0:
                    return
                with contextlib.suppress(OSError):  # another process took room meanwhile: look again
                    os.posix_fallocate(file.fileno(), self._filler.stat().st_size, size)

    def free_bytes(self) -> None:
        """Remove the filler."""
        self._filler.unlink(missing_ok=True)

    def fill_inodes(self, left: int) -> None:
        """Leave so many inodes free, by the limit of the tmpfs. (400,000 new files would load the machine.)"""
        stat = os.statvfs(self.cluster)
        self._remount(stat.f_files - stat.f_ffree + left)

    def free_inodes(self) -> None:
        """Restore the number of inodes."""
        self._remount(self.inodes)

    def _remount(self, inodes: int) -> None:
        for extra in (0, 20, 200, 2000):  # other processes make files meanwhile
            done = subprocess.run(
                ["mount", "-o", f"remount,nr_inodes={inodes + extra}", str(self.cluster)],
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                return
        raise OSError(f"cannot limit the inodes of {self.cluster}: {done.stderr.strip()}")

    def jump(self, seconds: int) -> None:
        """Put the service's wall clock so many seconds off."""
        with (self.base / "clock").open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds))

    def _make_clock(self) -> dict[str, str]:
        """The environment that gives a process the clock that jumps; empty without a C compiler."""
        (self.base / "clock").write_bytes(struct.pack("q", 0))
        library = self.folders.tools / "clock.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            print("blackbox: found no C compiler: the clock will not jump in this run", flush=True)
            return {}
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_HERE / "clock.c"), "-ldl"]
        subprocess.run(command, check=True)
        return {"LD_PRELOAD": str(library), "BLACKBOX_CLOCK": str(self.base / "clock")}

    # ------------------------------------------------------------------------------------------------ leftovers

    def tasks(self) -> dict[int, str]:
        """Live processes of tasks: pid -> key, from the key in an environment or a command line."""
        found = {}
        for pid, words, environment in _processes():
            for part in environment.split(b"\0"):
                if part.startswith(b"BLACKBOX_KEY="):
                    found[pid] = part[13:].decode()
            for part in words.split(b"\0"):
                if part.startswith(b"blackbox-child:"):
                    found[pid] = part[15:].decode()
        return found

    def runners(self) -> list[int]:
        """Pids of the service's runners."""
        return sorted(runners_of(self.tasks().keys() | self._begun(), _parent) - {os.getpid()})

    def _begun(self) -> set[int]:
        """Pids of START lines without an END line."""
        live = set()
        for line in self.folders.journal.read_text(encoding="utf-8").splitlines():
            what, _, _, pid = line.split("\t")[:4]
            (live.add if what == "START" else live.discard)(int(pid))
        return live

    def strays(self, own: set[int]) -> dict[int, str]:
        """All processes except these, the harness and the first one: pid -> command line."""
        skip = own | {1, os.getpid()}
        return {
            pid: words.replace(b"\0", b" ").decode(errors="replace").strip()
            for pid, words, _ in _processes()
            if pid not in skip and words
        }

    def new_groups(self) -> list[Path]:
        """Control groups that the service has made: all groups below the groups of this run."""
        return [Path(folder) for own in self._groups for folder, _, _ in os.walk(own) if Path(folder) != own]

    def close(self) -> None:
        """Unmount everything. `enter` removes the control groups once nothing lives in them."""
        for path in (Path("/dev/shm"), self.cluster, self.base):
            subprocess.run(["umount", "--lazy", str(path)], capture_output=True)


def runners_of(tasks: Collection[int], parent_of: Callable[[int], int]) -> set[int]:
    """The parent of each task's highest process.

    In the moment of an exec a process has no environment, so a process in the middle of a task may not be known as one of it. A
    process with a task's process above it is therefore never a runner.
    """
    found = set()
    for pid in tasks:
        line = [pid]
        while line[-1] > 1:
            line.append(parent_of(line[-1]))
        highest = max(at for at, each in enumerate(line) if each in tasks)
        found.add(line[highest + 1])
    return {pid for pid in found if pid > 1}


def _own_groups(name: str) -> list[Path]:
    """The path of a run's group below the group of this process, in each hierarchy. The group may not exist."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for fields in mounts:
            kind = fields[fields.index("-") + 1]
            same = kind == "cgroup2" if not controllers else controllers in fields[-1] and kind == "cgroup"
            if same and fields[3] == "/":
                found.append(Path(fields[4] + path.rstrip("/"), name))
                break
    return found


def _join(name: str) -> list[Path]:
    """Move this process, and so all its children, into groups of its own, where it may."""
    joined = []
    for group in _own_groups(name):
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text("0")
        except OSError:  # the controller needs more settings, or this process lacks the right
            _remove(group)
        else:
            joined.append(group)
    return joined


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _mount_point() -> Path:
    """A fresh folder. Not below /tmp, because each task has a /tmp of its own."""
    for parent in (Path("/mnt"), Path("/srv"), Path("/var/tmp")):
        folder = parent / f"blackbox-{time.time_ns():x}"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755)
            return folder
    raise OSError("cannot make a folder in /mnt, /srv or /var/tmp")


def _mount(where: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "blackbox", str(where)], check=True)


def _processes() -> Iterator[tuple[int, bytes, bytes]]:
    """Pid, command line and environment of every process of this namespace, threads and zombies aside."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "cmdline").read_bytes()
                yield int(entry), words, Path("/proc", entry, "environ").read_bytes()


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    found, unseen = [], [pid]
    while unseen:
        with contextlib.suppress(OSError):  # the process may end meanwhile
            for task in Path(f"/proc/{unseen.pop()}/task").glob("*/children"):
                more = [int(word) for word in task.read_text().split()]
                found += more
                unseen += more
    return found


def die_with_parent() -> None:
    """For `preexec_fn`: let the kernel kill this process with the harness."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
