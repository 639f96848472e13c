"""Storages that nodes share, as a profile tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Tasks read and write in bursts, so of an average rate (bytes over a time) the half is counted; a rate that was said, as it is.
BURSTS: Final = 2


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage that nodes share.

    Args:
        name: As documents name it (`io: {storage: NAME}`).
        read_rate: Bytes/s that all readers get together; 0 = no bound.
        write_rate: Bytes/s that all writers get together; 0 = no bound.
        origin: What comes from outside lies there: copies to nodes share its budget.
        source: What nodes mount it from (`nas:/lab`), as their kernels call it: what agents measure of that mount is this one's.
    """

    name: str = "storage"
    read_rate: int = 0
    write_rate: int = 0
    origin: bool = False
    source: str = ""

    @property
    def rates(self) -> Mapping[str, int]:
        """By what demands call it: name/read, name/write."""
        return {f"{self.name}/read": self.read_rate, f"{self.name}/write": self.write_rate}
