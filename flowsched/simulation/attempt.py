"""One attempt of a job in a simulated world, while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Running:
    """One attempt of one job on a node."""

    workload: int
    job: int
    node: int
    ready: float
    start: float
    attempt: int = 0
    shared: bool = False  #: reads from and writes to the storage, never its node's disk
    direct: frozenset[int] = frozenset()  #: inputs it reads straight from the storage
    mounted: frozenset[int] = frozenset()  #: inputs it reads on the storage, through the node's page cache
    remote: Mapping[int, int] = field(
        default_factory=dict
    )  #: inputs it reads straight from another node, and that node
    straight: frozenset[int] = frozenset()  #: outputs it writes straight to the storage
    fetch: tuple[
        tuple[int, int], ...
    ] = ()  #: (input, place) it copies to its node itself, before it computes
    ended: Callable[[], None] = lambda: None
    outcome: str = "succeeded"
    run_start: float = 0.0
    run_end: float = 0.0
    waiting: int = 0
    over: bool = False
    disk_bytes: int = 0  #: what it made its node's disk read and write
