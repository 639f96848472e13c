"""Values as texts of a pod's environment. Standard library only: each task starts processes that import this.

Linux takes at most 128 KiB in one variable, and a manifest may name thousands of datasets: a long text is packed (`z:` and
base64 of zlib).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

#: From here on a value is packed: the kernel's limit of one variable is 128 KiB, its name included.
PLAIN_TEXT: Final = 96 << 10
#: Longest JSON that may come out of a packed text.
LARGEST: Final = 32 << 20
_PACKED: Final = "z:"


def pack(value: Mapping[str, Any]) -> str:
    """The text of a value, short enough for a variable where that is possible."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= PLAIN_TEXT else packed(value)


def packed(value: Any) -> str:
    """A value as a text that is as short as it can be; `unpacked` gives its JSON back."""
    text = json.dumps(value, separators=(",", ":"))
    return _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> str | bytes:
    """The JSON of a packed text; any other text as it is.

    Raises:
        ValueError, zlib.error: It is cut off, or far too long.
    """
    if not text.startswith(_PACKED):
        return text
    packed = base64.b64decode(text[len(_PACKED) :], validate=True)
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(packed, LARGEST)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or longer than {LARGEST} bytes")
    return whole
