"""The return code in a file that a task leaves for its client to judge by, as Cromwell's scripts do: they always end with 0."""

from __future__ import annotations

#: A file with more bytes holds no return code.
CODE_BYTES = 16


def code_in(content: bytes) -> int | None:
    """A whole number from 0 to 999,999,999 with white space around it; None if the content is anything else."""
    digits = content.strip()
    if len(content) > CODE_BYTES or not digits.isdigit() or len(digits) > 9:
        return None
    return int(digits)
