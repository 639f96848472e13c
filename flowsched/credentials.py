"""The secrets in a service's environment and command line: the service reads them once and removes them from there.

    FLOWSCHED_TOKEN, FLOWSCHED_DATABASE, FLOWSCHED_AGENT_KEY    settings
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …                  for object stores; staging and delivery get them as options

`/proc/PID/environ` shows the first environment of a process for as long as it lives, to root and to every process of the same
user: tasks too. The service therefore removes the variables *and* overwrites their memory. The supervisor keeps them for later
lives in a file that exists in memory alone (memfd). Both processes close themselves to others of their user (`PR_SET_DUMPABLE`).
Standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

#: The variable that names the descriptor from which a later life reads the secrets of the first one.
CREDENTIALS_FD: Final = "FLOWSCHED_CREDENTIALS_FD"
SETTINGS: Final = ("FLOWSCHED_TOKEN", "FLOWSCHED_DATABASE", "FLOWSCHED_AGENT_KEY")
#: The schemes of S3, which have the same client. `runner.uploads` imports nothing of flowsched, and has them again.
S3: Final = ("s3", "s3a")
#: variable -> schemes of fsspec, and the option by which their file systems take it.
STORES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "AWS_ACCESS_KEY_ID": (S3, "key"),
    "AWS_SECRET_ACCESS_KEY": (S3, "secret"),
    "AWS_SESSION_TOKEN": (S3, "token"),
    "AZURE_STORAGE_ACCOUNT_KEY": (("abfs", "abfss", "az"), "account_key"),
    "AZURE_STORAGE_CLIENT_SECRET": (("abfs", "abfss", "az"), "client_secret"),
    "AZURE_STORAGE_CONNECTION_STRING": (("abfs", "abfss", "az"), "connection_string"),
    "AZURE_STORAGE_SAS_TOKEN": (("abfs", "abfss", "az"), "sas_token"),
}
#: Options with secret values, and the variables with the same meaning.
_OPTIONS: Final = {"--token": "FLOWSCHED_TOKEN", "--db": "FLOWSCHED_DATABASE"}
_PR_SET_DUMPABLE: Final = 4
#: Fields of /proc/self/stat, counted from behind the program's name: arg_start, arg_end, env_start, env_end.
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)


def remove(*, stores: bool) -> dict[str, str]:
    """Remove the secrets from this process's environment; returns them, by variable.

    Args:
        stores: Whether to remove the secrets of object stores, too. False if another program needs them (a plugin of a kubeconfig).
    """
    names = (*SETTINGS, *STORES) if stores else SETTINGS
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    known = {os.fsencode(name) for name in taken}

    def begins(entry: bytes) -> int | None:
        name = entry.partition(b"=")[0]
        return len(name) + 1 if name in known else None

    _overwrite(_ENVIRONMENT, begins)
    return taken


def store_options(taken: Mapping[str, str]) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
    """The variables as options of fsspec's file systems, by scheme."""
    found: dict[str, dict[str, str]] = {}
    for name, value in taken.items():
        for scheme in STORES[name][0] if name in STORES and value else ():
            found.setdefault(scheme, {})[STORES[name][1]] = value
    return tuple((scheme, tuple(options.items())) for scheme, options in found.items())


def hide_options(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command line without its secrets, and the secrets by variable. Overwrites them in this process's own command line.

    A later life gets them as variables. `--db` is a secret only if it can hold a password.
    """
    shown, hidden, words = list[str](), dict[str, str](), list(argv)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in _OPTIONS and not equals and words:
            value = words[0]
        if option not in _OPTIONS or not value or (option == "--db" and "@" not in value):
            shown.append(word)
            continue
        if not equals:
            del words[0]
        hidden[_OPTIONS[option]] = value
    begins = {os.fsencode(value): 0 for value in hidden.values()}
    begins |= {
        os.fsencode(f"{name}={hidden[option]}"): len(name) + 1
        for name, option in _OPTIONS.items()
        if option in hidden
    }
    _overwrite(_ARGUMENTS, begins.get)
    return shown, hidden


def keep(taken: Mapping[str, str]) -> int:
    """Put secrets into a file that only exists in memory; returns its descriptor, which children inherit."""
    fd = os.memfd_create("flowsched-credentials", 0)
    os.write(fd, json.dumps(dict(taken)).encode())
    return fd


def restore() -> None:
    """Set the variables of the first life in a later one. Call it before the command line is parsed."""
    text = os.environ.pop(CREDENTIALS_FD, "")
    if text.isdecimal():
        os.environ.update(json.loads(os.pread(int(text), 1 << 20, 0)))
        os.close(int(text))


def close_process() -> None:
    """Keep other processes of this user from reading this one's memory, descriptors and environment. Root still can."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _overwrite(fields: tuple[int, int], secret: Callable[[bytes], int | None]) -> None:
    """Overwrite the secret ends of entries that the kernel shows of this process. Does nothing where the kernel shows none.

    Args:
        fields: The fields of the first and last address in /proc/self/stat.
        secret: Returns the position of an entry's secret; None = the entry has none.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            numbers = file.read().rpartition(b")")[2].split()
        start, end = (int(numbers[field]) for field in fields)
        if not 0 < start < end:
            return
        at = start
        for entry in ctypes.string_at(start, end - start).split(b"\0"):
            begins = secret(entry)
            if begins is not None:
                ctypes.memset(at + begins, 0, len(entry) - begins)
            at += len(entry) + 1
