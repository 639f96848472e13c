"""The state of data: bytes that move between nodes, and bytes that shall."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.workflow.spec import Match


@dataclass(slots=True)
class StagingGroup:
    """Tasks on their way through STAGING: their targets, and the (dataset, node) pairs still to come."""

    key: int
    workflow: str
    stage: int
    tasks: NDArray[np.int64]
    attempts: NDArray[np.int32]
    nodes: NDArray[np.int64]
    pending: set[tuple[int, int]]
    priority: int
    rank_ms: int
    payer: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  #: (dataset, node) -> task its bytes count for


@dataclass(slots=True)
class Backoff:
    """A transfer that failed and is tried again."""

    not_before: int
    tries: int
    waits: int = 0  #: how often it found no room, which is not counted as a try
    why: str = ""  #: what the last one failed by, if people can do something about it


class Coming(NamedTuple):
    """What is still to come of a dataset to a node, and in how many copies (of pieces) that are under way."""

    size_bytes: int
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Gather:
    """By whom the outputs of a stage are gathered: stage `consumer`, and how its shards meet those of the producer."""

    consumer: int
    match: Match
    output_bytes: int  #: expected of one producing shard, of all that the consumer reads of it
    through: bool = False  #: the consumer gathers nothing, but what it writes of this will be gathered


class Spread(NamedTuple):
    """A dataset from outside, and the stages of a workflow that read it in all their shards."""

    uri: str
    stages: tuple[int, ...]
