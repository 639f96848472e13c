"""What node agents tell, decoded: their lists, and the lines of their events."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

#: Bytes, or ms.
Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
#: Of a pod: bytes of the disk since the last time, bytes in all, CPU time in all.
PodUse = tuple[Amount, Amount, Amount]


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


class NodeLoad(msgspec.Struct):
    """What a node has carried since the measurement before, see `agent.meter`. None = it cannot be told."""

    over_ms: Amount
    disk_bytes: Amount | None = None
    pods: dict[str, PodUse] | None = None
    card: tuple[Amount, Amount] | None = None  #: bytes in, bytes out
    copied: tuple[Amount, Amount] = (0, 0)  #: of that, copies
    mounts: dict[str, tuple[Amount, Amount]] = {}  #: server:/export -> (read, written)


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
    load: NodeLoad | None = None


EVENT: Final = msgspec.json.Decoder(Event)
REPLICAS: Final = msgspec.json.Decoder(Replicas)
