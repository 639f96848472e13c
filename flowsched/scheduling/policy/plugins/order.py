"""Orders of the groups in one queue. Whole numbers; ageing bounds every wait."""

from __future__ import annotations

from collections.abc import Mapping

from flowsched.scheduling.pod_group import PodGroup

OrderKey = tuple[int, ...]


def effective_priority(group: PodGroup, now: int, promote_ms: int) -> int:
    """The group's priority, and one more for each `promote_ms` it has waited, so that every wait ends."""
    return group.priority + max(0, now - group.ready_ms) // promote_ms


def by_rank(group: PodGroup, now: int, promote_ms: int, age_class_ms: int) -> OrderKey:
    """Priority, then age in whole classes, then the critical path first, then the group that was ready first."""
    age = max(0, now - group.ready_ms) // age_class_ms
    return (-effective_priority(group, now, promote_ms), -age, -group.rank_ms, group.ready_ms, group.key)


def by_shortest(
    group: PodGroup, now: int, promote_ms: int, age_class_ms: int, remaining: Mapping[str, int]
) -> OrderKey:
    """As `by_rank`, but workflows with the shortest remaining path (ms, by workflow) first.

    Lengths within the same power of two count as equal: among those the critical path goes first, which fills a cluster better.
    """
    waited = max(0, now - group.ready_ms)
    return (
        -group.priority - waited // promote_ms,
        -(waited // age_class_ms),
        remaining.get(group.workflow, 0).bit_length() if remaining else 0,
        -group.rank_ms,
        group.ready_ms,
        group.key,
    )


def by_arrival(group: PodGroup, now: int, promote_ms: int) -> OrderKey:
    """Priority, then the group that was ready first."""
    return (-effective_priority(group, now, promote_ms), group.ready_ms, group.key)
