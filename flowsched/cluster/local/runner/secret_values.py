"""Secrets by reference: the task's own runner reads the values that an order names, and gives them to the task only.

A value lies in `<root>/secrets/<name>`, byte by byte, readable by its owner alone.
"""

from __future__ import annotations

import os
import stat

#: More would not fit into an environment.
LARGEST = 100_000
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class SecretError(Exception):
    """A secret that cannot be had; the message says which file was expected."""


def is_secret_name(name: str) -> bool:
    """Whether a reference is a name of a file here: never a path, never hidden."""
    return 0 < len(name) <= 128 and not name.startswith(".") and _LETTERS.issuperset(name)


def read_secrets(root: str, references: dict[str, str]) -> dict[str, str]:
    """Variable -> value, for variable -> name.

    Raises:
        SecretError: With the first that is not there, or is not safe.
    """
    return {variable: _read(f"{root}/secrets", variable, name) for variable, name in references.items()}


def _read(folder: str, variable: str, name: str) -> str:
    if not is_secret_name(name):
        raise SecretError(
            f"{variable} asks for the secret {name!r}; here a secret's name is 1-128 letters, digits, '.', '_' and '-', "
            f"and its value lies in {folder}/NAME"
        )
    path = f"{folder}/{name}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(
            f"{variable} asks for the secret {name!r}: expected it in {path} ({os.strerror(error.errno or 0)}); "
            f"`flowsched secret set {name}` puts it there"
        ) from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise SecretError(f"{path} must be a file that only its owner can read: chmod 600")
        value = file.read(LARGEST + 1)
    if len(value) > LARGEST or b"\0" in value:
        raise SecretError(
            f"{path} must have at most {LARGEST} bytes and no zero byte, to be in an environment"
        )
    return os.fsdecode(value)
