"""Copies of frozen values: msgspec.Structs, which a short command loads sooner, and dataclasses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: TID251 - for mypy, which checks the names and types of fields by it
else:

    def replace(value: T, /, **changes: Any) -> T:
        """A copy of a value, with other fields.

        Raises:
            TypeError: It has no field of that name.
        """
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)  # noqa: TID251 - the one place
