"""The volumes that every task of an installation sees, as they are written in its settings. Pure."""

from __future__ import annotations

import re
from typing import Final

from flowsched.cluster.kubernetes.places import SYSTEM, TAKEN, tidy
from flowsched.cluster.kubernetes.release import SharedVolume
from flowsched.errors import ConfigurationError

_CLAIM: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def shared_volumes(text: str) -> tuple[SharedVolume, ...]:
    """Read FLOWSCHED_SHARED: `claim:/path`, or `claim:/path:ro`, several with commas.

    Raises:
        ConfigurationError: One of them is no claim with a path that can be mounted, or a path is there twice.
    """
    found = [_volume(part.strip()) for part in text.split(",") if part.strip()]
    paths = [volume.path for volume in found]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigurationError(
                f"FLOWSCHED_SHARED has two volumes at {path}; give each a path of its own"
            )
    return tuple(found)


def _volume(text: str) -> SharedVolume:
    claim, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not _CLAIM.fullmatch(claim) or not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise ConfigurationError(
            f"FLOWSCHED_SHARED is claim:/path or claim:/path:ro, several with commas, not {text!r}"
        )
    path = tidy(path)
    if (
        path in SYSTEM
        or ".." in path.split("/")
        or any(f"{path}/".startswith(f"{taken}/") for taken in TAKEN)
    ):
        raise ConfigurationError(
            f"FLOWSCHED_SHARED: {path} is a folder of the system: nothing can be mounted there"
        )
    return SharedVolume(claim, path, mode == "ro")
