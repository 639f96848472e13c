"""The paths of this machine that may be inputs and outputs. The service checks inputs, and a runner checks outputs.

    never         /proc, /sys, /dev (also a second mount of them), and the service's own entries in its root
    --allow-paths  given: only paths below one of its folders; not given: every path but those in the system's own folders

`Bounds` follows links and `..` before it compares a path. It bounds the paths that flowsched reads and writes for a document. It
does not bound a task's program, which runs as the service's user. Standard library alone.
"""

from __future__ import annotations

import os

from .outputs import Refused

KERNEL = ("/proc", "/sys", "/dev")
SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/usr")
_REAL = tuple((folder, os.path.realpath(folder)) for folder in SYSTEM)
#: The system mounts users' disks here, in a folder of `SYSTEM`.
SPARED = ("/run/media",)
#: A step's streams may be these.
STREAMS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: The service's entries in its root. All other entries are the user's: a root may be a home folder.
RESERVED = ("in-use", "nodes", "poke.sock", "runner.log", "runners", "secret", "secrets", "token")


class Bounds:
    """The rules of one service.

    Args:
        root: The service's folder; "" = it has none on this machine.
        allowed: Folders of `--allow-paths`; None = not given.
        own: The attempt's folder in the root. flowsched may read and write it all the same.

    Attributes:
        granted: Real paths of the attempt's staged inputs in the root. The runner may read them all the same.
    """

    def __init__(self, root: str = "", allowed: list[str] | None = None, own: str = "") -> None:
        self.root = os.path.realpath(root) if root else ""
        self.allowed = None if allowed is None else [os.path.realpath(folder) for folder in allowed]
        self.own = os.path.realpath(own) if own else ""
        self.granted: list[str] = []

    def record(self) -> dict[str, object]:
        """The arguments from which a runner makes its `Bounds`."""
        return {"root": self.root, "allowed": self.allowed}

    def refusal(self, path: str, *, whole: bool = False) -> str:
        """Why a path may be neither input nor output; "" if it may.

        Args:
            path: Absolute. It need not exist.
            whole: Whether the caller also copies everything below the path.
        """
        real, hard = os.path.realpath(path), self.never(path, whole=whole)
        if hard or self.is_own(real):
            return hard
        if self.allowed is not None:
            if any(inside(real, folder) for folder in self.allowed):
                return ""
            described, there = _described(path, real), ", ".join(self.allowed) or "none"
            return f"{described} is not below any folder that inputs may come from and outputs go to ({there}): see --allow-paths"
        system = "/" if real == "/" else next((top for top, leads in _REAL if inside(real, leads)), "")
        if not system or any(inside(real, spared) for spared in SPARED):
            return ""
        return f"{_described(path, real)} is in {system}, a folder of the system: allow it by --allow-paths, or use another folder"

    def never(self, path: str, *, whole: bool = False) -> str:
        """Why a path may be neither input nor output whatever `allowed` says; "" if it may so far."""
        real = os.path.realpath(path)
        if self.is_own(real):
            return ""
        described = _described(path, real)
        kernel = next((top for top in KERNEL if inside(real, top) or inside(os.path.normpath(path), top)), "")
        kernel = kernel or _mounted_again(real)
        if kernel:
            return f"{described} is in {kernel}, which belongs to the kernel: no input comes from there, and no output goes there"
        if not self.root:
            return ""
        name = real[len(self.root) :].strip("/").split("/")[0] if inside(real, self.root) else None
        if name is not None and (name in ("", *RESERVED) or name.startswith("flowsched.db")):
            return f"{described} is what the service keeps in its root, {self.root}: name an output by `from`, not by its path"
        if whole and inside(self.root, real):
            return f"{described} holds the service's root, {self.root}: name the folders in it that are meant"
        return ""

    def is_own(self, real: str) -> bool:
        """Whether a real path lies in the attempt's own folder."""
        return bool(self.own) and inside(real, self.own)

    def check(self, path: str, *, whole: bool = False) -> str:
        """Return a path unchanged if it may be an input or output.

        Raises:
            Refused: It may not be one.
        """
        why = self.refusal(path, whole=whole)
        if why:
            raise Refused("PathRefused", why)
        return path


def inside(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies in it."""
    return path == folder or folder == "/" or path.startswith(folder + "/")


def _mounted_again(real: str) -> str:
    """The kernel's file system that holds a path under another name; "" if there is none."""
    there = real
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        device, top = os.stat(there).st_dev, os.stat("/").st_dev
        return next((each for each in KERNEL if os.stat(each).st_dev == device != top), "")
    except OSError:
        return ""


def _described(path: str, real: str) -> str:
    return path if os.path.normpath(path) == real else f"{path} (it leads to {real})"
