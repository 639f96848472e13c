"""A container's paths made real: a private mount namespace in which they are what `places` says.

Only a step's own process enters it, between fork and exec; its runner stays outside. Nothing outside sees the mounts, and they
are gone with the step. Linux only, by system calls through ctypes: no program and no package is needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys

from .outputs import Refused
from .places import Places, join
from .safe_paths import Opened, Unsafe, open_mounted, replace_file, write_text

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384
MS_UNBINDABLE, MS_SLAVE = 1 << 17, 1 << 19
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SYS_MOUNT_SETATTR = 442  #: the same on every architecture but alpha

WHAT_TO_DO = (
    "allow private mounts: run flowsched as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container a seccomp profile that lets unshare and mount pass), or let "
    "every path of the task be the same inside and outside, or run it on Kubernetes"
)


REFUSED = "the task has paths of its own, which need private mounts, and this system permits none"


class Mount:
    """One thing to be seen at another place. Both are paths of this machine.

    Args:
        found: The task did not ask for it; it was found on the machine, and may be gone by now.
    """

    __slots__ = ("found", "read_only", "source", "target")

    def __init__(self, source: str, target: str, read_only: bool, *, found: bool = False) -> None:
        self.source, self.target, self.read_only, self.found = source, target, read_only, found


def make(places: Places) -> list[Mount]:
    """Make the folders and files that a container's paths need, and say what is to be mounted on them, in this order.

    Raises:
        OSError: They cannot be made.
    """
    mounts: list[Mount] = []
    if places.needed:
        os.mkdir(places.room)
    for path in sorted(places.nodes):
        node, target = places.nodes[path], join(places.room, path)
        if node.content is not None:
            write_content(target, node.content)
        elif node.whole:
            if node.bound:
                make_mount_point(behind(places, path), os.path.isdir(node.base or "/"))
                mounts.append(Mount(node.base or "/", target, node.read_only))
        else:
            if path != "/":
                os.makedirs(target, exist_ok=True)
            if node.base is not None:
                os.chmod(target, os.stat(node.base).st_mode & 0o7777 | 0o700)
                mounts += show(node.base, target, node.shown, node.read_only)
    for path in places.folders:
        os.makedirs(places.writable(path), exist_ok=True)
    for path, text in places.texts.items():
        try:
            write_content(places.writable(path), text)
        except Unsafe as error:
            raise OSError(errno.ELOOP, str(error)) from None
    return mounts


def write_content(path: str, text: str) -> None:
    """Write a file that the document gives the text of. Raises Unsafe, OSError."""
    replace_file(path, lambda fd: write_text(fd, text))


def behind(places: Places, path: str) -> str:
    """Where the thing lies that a mount at a path hides: in the room, or in a folder that is mounted above."""
    above = os.path.dirname(path)
    return join(places.host_of(above), os.path.basename(path))


def make_mount_point(path: str, directory: bool) -> None:
    """Make something that can be mounted on, if nothing is there."""
    try:
        if directory:
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path))
        make_mount_point(path, directory)


def show(base: str, target: str, names: frozenset[str], read_only: bool) -> list[Mount]:
    """Let entries of a folder of this machine be seen in one of the attempt."""
    mounts: list[Mount] = []
    for name in sorted(names):
        source, there = f"{base.rstrip('/')}/{name}", f"{target}/{name}"
        try:
            mode = os.lstat(source).st_mode
            leads = os.readlink(source) if stat.S_ISLNK(mode) else None
        except OSError:  # gone, or another thing, since it was looked at
            continue
        if leads is not None:
            os.symlink(leads, there)
        else:
            make_mount_point(there, stat.S_ISDIR(mode))
            mounts.append(Mount(source, there, read_only, found=True))
    return mounts


def enter(places: Places, mounts: list[Mount]) -> None:
    """Let this process, and what it starts, see the container's paths. It must have one thread, and exec soon.

    Raises:
        Refused: This system permits no private mounts.
        OSError: A mount failed.
    """
    if not places.needed:
        return
    libc = System()
    try:
        libc.separate()
        libc.mount(None, "/", MS_REC | MS_SLAVE)
        libc.mount(places.room, places.room, MS_BIND | MS_REC)
        libc.mount(
            None, places.room, MS_UNBINDABLE
        )  # or every mount of a folder above it would hold it again
    except OSError as error:
        why = f"{error.strerror}, errno {error.errno}"
        raise Refused("ContainerPathsRefused", f"{REFUSED} ({why}): {WHAT_TO_DO}") from None
    for mount in mounts:
        if mount.found:
            try:
                libc.mount(mount.source, mount.target, MS_BIND | MS_REC)
            except OSError as error:  # others' files in /tmp come and go
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise
                continue
        else:  # an earlier step may have put a link there
            try:
                source = Opened(open_mounted(mount.source))
            except Unsafe as error:
                raise Refused("ContainerPathsRefused", f"{error} now, and no step sees it") from None
            except OSError as error:
                raise OSError(error.errno, f"mount: {error.strerror}", mount.source) from None
            with source as fd:
                libc.mount(f"/proc/self/fd/{fd}", mount.target, MS_BIND | MS_REC)
        if mount.read_only:
            libc.protect(mount.target)
    libc.change_root(places.room)


class System:
    """The system calls, with errors as OSError."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise Refused("ContainerPathsRefused", f"{REFUSED} ({sys.platform} has none): {WHAT_TO_DO}")
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _check(self, result: int, call: str, path: str = "") -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{call}: {os.strerror(number)}", path or None)

    def separate(self) -> None:
        """Get mounts of one's own: as root, or as the only user of a namespace of users."""
        if os.geteuid() == 0 and self._libc.unshare(CLONE_NEWNS) == 0:
            return
        uid, gid = os.geteuid(), os.getegid()
        self._check(self._libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def mount(self, source: str | None, target: str, flags: int) -> None:
        """Mount, or change a mount, without a type and data."""
        there = None if source is None else os.fsencode(source)
        made = self._libc.mount(there, os.fsencode(target), None, ctypes.c_ulong(flags), None)
        self._check(made, "mount", target)

    def protect(self, target: str) -> None:
        """Make what is mounted there, and in it, read-only."""
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
        path = os.fsencode(target)
        if self._libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, attributes, 32) == 0:
            return
        flags = (
            os.statvfs(target).f_flag & 0xC0E
        )  # nosuid, nodev, noexec and the times: they may not be dropped
        self.mount(None, target, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)

    def change_root(self, root: str) -> None:
        """Let `/` be a folder, and nothing else be reachable."""
        os.chdir(root)
        if self._libc.pivot_root(b".", b".") == 0:  # the old root lies on top now
            self._check(self._libc.umount2(b".", MNT_DETACH), "umount")
        else:  # the old root is the kernel's first file system, which cannot be moved
            os.chroot(".")
        os.chdir("/")


def refusal(folder: str) -> str:
    """Why private mounts are not permitted here, "" if they are. Tried in a process of its own.

    Args:
        folder: An empty one, to be tried with.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = b"?"
        try:
            os.close(read)
            places = Places(folder)
            places.needed = True
            enter(places, [])
            words = b""
        except Refused as error:
            words = error.args[1].removeprefix(REFUSED).removesuffix(f": {WHAT_TO_DO}").strip(" ()").encode()
        except OSError as error:
            words = str(error).encode()
        finally:
            os.write(write, words)
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return text
