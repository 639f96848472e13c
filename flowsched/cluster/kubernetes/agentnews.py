"""What node agents tell, decoded: their lists, and the lines of their events."""

from __future__ import annotations

from typing import Final

import msgspec


class Replica(msgspec.Struct):
    """A dataset of a cache."""

    uri: str
    size_bytes: int


class PartOf(msgspec.Struct):
    """A dataset that is coming to a cache in pieces."""

    uri: str
    size_bytes: int
    version: str
    spans: tuple[tuple[int, int], ...]


class Replicas(msgspec.Struct):
    """What an agent's cache holds."""

    instance: str
    seq: int
    replicas: list[Replica]
    partials: list[PartOf] = []
    cache_bytes: int = 0  #: what it may hold; 0 = as much as comes


class Refusal(msgspec.Struct):
    """Why a transfer failed, as in `TransferFailed`."""

    message: str = ""
    lost: bool = False
    permanent: bool = False
    changed: bool = False
    undivided: bool = False


class Event(msgspec.Struct):
    """Something that has happened on a node."""

    seq: int = 0
    kind: str = ""
    uri: str = ""
    size_bytes: int = 0
    moved_bytes: int = 0
    present: bool = True
    error: Refusal | None = None
    offset: int = -1  #: of a piece
    whole: bool = True
    version: str = ""


EVENT: Final = msgspec.json.Decoder(Event)
REPLICAS: Final = msgspec.json.Decoder(Replicas)
