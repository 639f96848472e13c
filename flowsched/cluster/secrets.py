"""The secrets of a root: files that only their owner can read. Runners read them; see `running.secret_values`."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from flowsched.cluster.running.secret_values import LARGEST, is_secret_name
from flowsched.errors import InvalidRequest, NotFound


def set_secret(root: Path, name: str, value: bytes) -> None:
    """Write a secret, wholly or not at all; one that is there is replaced. Tasks that start from now on get it.

    Raises:
        InvalidRequest: Of this name or value there can be none.
    """
    path = _path(root, name)
    if len(value) > LARGEST or b"\0" in value:
        raise InvalidRequest(f"a secret has at most {LARGEST} bytes and no zero byte")
    root.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def list_secrets(root: Path) -> list[str]:
    """Their names."""
    try:
        return sorted(name for name in os.listdir(root / "secrets") if is_secret_name(name))
    except FileNotFoundError:
        return []


def remove_secret(root: Path, name: str) -> None:
    """Remove one.

    Raises:
        NotFound: There is none of the name.
    """
    try:
        _path(root, name).unlink()
    except FileNotFoundError:
        raise NotFound(f"there is no secret {name!r} in {root / 'secrets'}") from None


def _path(root: Path, name: str) -> Path:
    if not is_secret_name(name):
        raise InvalidRequest(
            f"{name!r} is no name of a secret: 1-128 letters, digits, '.', '_' and '-', the first no '.'"
        )
    return root / "secrets" / name
