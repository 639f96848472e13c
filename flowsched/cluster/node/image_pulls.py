"""Failed pulls: whether the words of a registry or runtime mean that another try may help. Pure."""

from __future__ import annotations

from typing import Final

#: Their words for an image that will never be there, or never be allowed.
_HOPELESS: Final = (
    "not found",
    "notfound",
    "manifest unknown",
    "no such",
    "does not exist",
    "unauthorized",
    "denied",
    "forbidden",
    "invalid reference",
    "invalid image",
    "no match for platform",
    "exec format error",
)
#: ... unless the message also has one of these: the name of a registry may resolve again in a minute.
_HOPEFUL: Final = ("no such host", "timeout", "too many requests", "toomanyrequests", "connection refused")


def is_hopeless(message: str) -> bool:
    """Whether waiting changes nothing, unless a user or an administrator acts."""
    lowered = message.lower()
    return any(words in lowered for words in _HOPELESS) and not any(words in lowered for words in _HOPEFUL)
