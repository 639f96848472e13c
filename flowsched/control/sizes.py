"""Sizes that are said on the command line."""

from __future__ import annotations

from typing import Final

from flowsched.errors import ConfigurationError, FlowschedError
from flowsched.workflow.resources import parse_bytes

#: Each piece costs a round trip of the scheduler and a record on the disk.
SMALLEST_PIECE: Final = 64 << 10


def piece_bytes(said: str) -> int:
    """The size of the pieces that large datasets move in; 0 = none do.

    Raises:
        ConfigurationError: It is no amount of bytes, or too little to be worth its record.
    """
    try:
        size = parse_bytes(said)
    except FlowschedError as error:
        raise ConfigurationError(f"--piece-size: {error}") from None
    if 0 < size < SMALLEST_PIECE:
        raise ConfigurationError(
            f"--piece-size {said} is less than {SMALLEST_PIECE} bytes: say 0 to move datasets as a whole, or more"
        )
    return size
