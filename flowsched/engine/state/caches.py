"""The state of caches: the readers of datasets. It is kept only while some cache has a limit."""

from __future__ import annotations

import msgspec


class CacheState(msgspec.Struct):
    """The readers of datasets, and the group to which the others leave room.

    Attributes:
        outside: Dataset from outside -> workflow -> (stage, shard; None = all) that read it.
        noted: Workflow -> the datasets of `outside` that it reads.
        ended_reads: Workflow that has ended -> (stage, output) that its own stages read.
        first: The group that waits for cache longest, by number: others leave it room ...
        nodes: ... on these nodes.
    """

    outside: dict[int, dict[str, list[tuple[int, int | None]]]] = msgspec.field(default_factory=dict)
    noted: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    ended_reads: dict[str, frozenset[tuple[str, str]]] = msgspec.field(default_factory=dict)
    first: int | None = None
    nodes: frozenset[int] = frozenset()
