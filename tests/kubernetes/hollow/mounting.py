"""The mounts of a hollow container, made real: a private view of this machine's files in which they lie at their paths.

It runs as a program of its own, by its path, before the container's command, and becomes that command:

    python mounting.py FILE PROGRAM ARGUMENT…     FILE is JSON: root, cwd, mounts ([source, path, read only])

The rest of the machine's files stays where it is, since there are no images. A path of which this machine has nothing is made in
a skeleton of the folders above it; what lies beside it there is mounted into the skeleton. Needs root, or user namespaces.
Standard library only, and nothing of flowsched.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from typing import Any, Final

_NEW_NAMESPACE: Final = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
#: The program could not be started, as a shell has it.
_NOT_FOUND: Final = 127


def main(arguments: list[str]) -> int:
    """Make the view and become the command; returns only if that is not possible."""
    with open(arguments[0]) as file:
        told: dict[str, Any] = json.load(file)
    mounts = sorted(told["mounts"], key=lambda each: each[1].count("/"))
    if os.geteuid() == 0:
        _unshare()
        root = _view(told["root"], [path for _, path, _ in mounts])
        for source, path, read_only in mounts:
            _mount(source, root + path, read_only)
        os.chroot(root)
    os.makedirs(told["cwd"], exist_ok=True)
    os.chdir(told["cwd"])
    try:
        os.execvp(arguments[1], arguments[1:])
    except OSError as error:
        print(f'exec: "{arguments[1]}": {error}', file=sys.stderr)
    return _NOT_FOUND


def _view(root: str, paths: list[str]) -> str:
    """A folder that shows this machine's files, and has folders above all paths, so that they can be made there."""
    made = {"/"}
    for path in paths:
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        while folder != "/" and not os.path.lexists(path):
            made.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(made, key=lambda each: (each.count("/"), each)):
        os.makedirs(root + folder, exist_ok=True)
        for name in os.listdir(folder):
            path = f"{folder.rstrip('/')}/{name}"
            if path not in made:
                _show(path, root + path)
    return root


def _show(path: str, at: str) -> None:
    """Let something of this machine be seen."""
    if os.path.lexists(at):
        return
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(path), at)
            return
        if stat.S_ISDIR(mode):
            os.mkdir(at)
        else:
            os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o600))
        _call("mount", path.encode(), at.encode(), None, _BIND | _RECURSIVE, None)
    except OSError:  # what goes away meanwhile, or cannot be shown, is not seen
        return


def _mount(source: str, at: str, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(at, exist_ok=True)
    elif not os.path.exists(at):
        os.makedirs(os.path.dirname(at), exist_ok=True)
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o666))
    _call("mount", source.encode(), at.encode(), None, _BIND, None)
    if read_only:
        _call("mount", None, at.encode(), None, _BIND | _REMOUNT | _READ_ONLY, None)


def _unshare() -> None:
    _call("unshare", _NEW_NAMESPACE)
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)


def _call(name: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}: {arguments[:2]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
