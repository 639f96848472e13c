"""PodGroups in the three forms that we schedule, and Volcano's queues. Fields as in PEERS.md. Pure.

Their objects are written by operators and by people, so what may be left out may also be null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flowsched.cluster.kubernetes.metadata import Amounts, Condition, LabelSelector, Metadata, Read


class GangPolicy(Read, frozen=True):
    """So many pods at once, or none."""

    min_count: int = 0


class SchedulingPolicy(Read, frozen=True):
    """Of a native PodGroup: a gang, or (basic) pod by pod."""

    gang: GangPolicy | None = None
    basic: dict[str, Any] | None = None


class TopologyConstraint(Read, frozen=True):
    """All pods in one domain of a node label."""

    key: str = ""


class SchedulingConstraints(Read, frozen=True):
    """Of a native PodGroup."""

    topology: tuple[TopologyConstraint, ...] | None = None


class NativePodGroupSpec(Read, frozen=True):
    """`disruption_mode` is a word in v1alpha2 (Pod, PodGroup) and an object in v1beta1 (single, all)."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: str | dict[str, Any] | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str | None = None

    @property
    def disrupted_as_one(self) -> bool:
        """Whether the group's pods may only be taken away together."""
        mode = self.disruption_mode
        return "all" in mode if isinstance(mode, dict) else mode == "PodGroup"


class NativePodGroupStatus(Read, frozen=True):
    """PodGroupScheduled in v1alpha2, PodGroupInitiallyScheduled in v1beta1."""

    conditions: tuple[Condition, ...] | None = None


class NativePodGroup(Read, frozen=True):
    """`podgroups.scheduling.k8s.io`, v1alpha2 and v1beta1."""

    metadata: Metadata = Metadata()
    spec: NativePodGroupSpec = NativePodGroupSpec()
    status: NativePodGroupStatus | None = None


class CoschedulingPodGroupSpec(Read, frozen=True):
    """What the group needs."""

    min_member: int | None = None
    min_resources: Amounts | None = None
    schedule_timeout_seconds: int | None = None


class CoschedulingPodGroupStatus(Read, frozen=True):
    """Pending, Scheduling, Running, Unknown, Finished, Failed."""

    phase: str | None = None
    occupied_by: str | None = None
    running: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    schedule_start_time: str | None = None


class CoschedulingPodGroup(Read, frozen=True):
    """`podgroups.scheduling.x-k8s.io` v1alpha1, of scheduler-plugins."""

    metadata: Metadata = Metadata()
    spec: CoschedulingPodGroupSpec = CoschedulingPodGroupSpec()
    status: CoschedulingPodGroupStatus | None = None


class NetworkTopology(Read, frozen=True):
    """How near to each other (by tier) the pods must (hard) or should (soft) be."""

    mode: str | None = None
    highest_tier_allowed: int | None = None
    highest_tier_name: str | None = None


class SubGroupPolicy(Read, frozen=True):
    """Pods of a group that belong together more closely."""

    name: str = ""
    network_topology: NetworkTopology | None = None
    sub_group_size: int | None = None
    min_sub_groups: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None


class VolcanoPodGroupSpec(Read, frozen=True):
    """What the group needs. Without `min_resources` Volcano checks no quota before it lets the group in."""

    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    min_resources: Amounts | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] | None = None


class VolcanoCondition(Condition, frozen=True):
    """As others have them, and the session that wrote it."""

    transition_id: str | None = msgspec.field(name="transitionID", default=None)


class VolcanoPodGroupStatus(Read, frozen=True):
    """Pending, Inqueue (its pods may be created), Running, Unknown, Completed."""

    phase: str | None = None
    conditions: tuple[VolcanoCondition, ...] | None = None
    running: int | None = None
    succeeded: int | None = None
    failed: int | None = None


class VolcanoPodGroup(Read, frozen=True):
    """`podgroups.scheduling.volcano.sh` v1beta1. Its status is no subresource: patch the object."""

    metadata: Metadata = Metadata()
    spec: VolcanoPodGroupSpec = VolcanoPodGroupSpec()
    status: VolcanoPodGroupStatus | None = None


class Guarantee(Read, frozen=True):
    """What is kept free for a queue."""

    resource: Amounts | None = None


class VolcanoQueueSpec(Read, frozen=True):
    """A share (`weight`), a roof (`capability`), what it deserves, what it is guaranteed."""

    weight: int | None = None
    capability: Amounts | None = None
    deserved: Amounts | None = None
    guarantee: Guarantee | None = None
    reclaimable: bool | None = None
    parent: str | None = None
    priority: int | None = None
    dequeue_strategy: str | None = None


class VolcanoQueueStatus(Read, frozen=True):
    """Open, Closed, Closing, Unknown."""

    state: str | None = None
    allocated: Amounts | None = None


class VolcanoQueue(Read, frozen=True):
    """`queues.scheduling.volcano.sh` v1beta1."""

    metadata: Metadata = Metadata()
    spec: VolcanoQueueSpec = VolcanoQueueSpec()
    status: VolcanoQueueStatus | None = None
