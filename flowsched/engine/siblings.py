"""Which of many tasks of one kind takes longest: the one that reads most, as far as one can know before any of them has ended.

Estimates are per kind. Where shards read different data, the rank of each is moved by what its bytes say about its runtime, so
that of tasks which are alike the long ones start first (longest processing time first) and none of them is what all others wait
for in the end. Nothing but the order among them, and of their copies, depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.podgroup import PodGroup


def ranks_by_size(catalogue: Catalogue, groups: Sequence[PodGroup]) -> list[int]:
    """The rank of each of several shards of a stage, in ms: its runtime in proportion to what only it reads, 1/2 to 2 times the
    expected one.
    """
    ranks = [group.rank_ms for group in groups]
    runtime = groups[0].runtime_ms if groups else None
    if len(groups) < 2 or not runtime:
        return ranks
    common = set(groups[0].reads).intersection(*(group.reads for group in groups[1:]))
    own = [sum(catalogue.sizes[each] for each in group.reads if each not in common) for group in groups]
    mean = sum(own) // len(own)
    if not mean:
        return ranks
    return [
        rank + min(max(runtime * size // mean, runtime // 2), 2 * runtime) - runtime
        for rank, size in zip(ranks, own, strict=True)
    ]
