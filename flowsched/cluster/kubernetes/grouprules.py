"""What a PodGroup object demands, whoever made it and in whatever form. Pure; nothing here raises.

A demand that is not understood is never left out in silence: `problem` says it, and the group waits, since "all or nothing" with a
part of the rule missing is neither. What is understood and does not matter to placement is left out knowingly (`scheduleTimeout`
is a bound of the scheduler-plugins' own loop; how a group may be disrupted is told to nobody yet).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.cluster.kubernetes.forms import QUEUE_ANNOTATION
from flowsched.cluster.kubernetes.groups import (
    CoschedulingPodGroup,
    NativePodGroup,
    NetworkTopology,
    VolcanoPodGroup,
)
from flowsched.cluster.kubernetes.metadata import Amounts, Metadata, moment_ms
from flowsched.cluster.kubernetes.nodes import RACK_LABELS
from flowsched.cluster.kubernetes.podspec import DEFAULT_GPU, resources_of
from flowsched.errors import InvalidRequest
from flowsched.workflow.spec import Resources

PodGroupObject = NativePodGroup | CoschedulingPodGroup | VolcanoPodGroup

#: Volcano's controllers write a quota's words beside the amounts themselves: `requests.cpu`, `limits.cpu`, `count/pods`.
_QUOTA_WORDS: Final = ("requests.", "limits.", "count/")
#: Where a PodGroup's metadata may say its queue, for forms that have no field for it.
_QUEUE_KEYS: Final = (
    "flowsched.io/queue",
    QUEUE_ANNOTATION,
    "volcano.sh/queue-name",
    "kueue.x-k8s.io/queue-name",
)


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The rule of one version of one PodGroup.

    Args:
        uid, namespace, name, resource_version, generation: Of the object.
        created_ms: When it was made.
        deleting: Whether it waits for its pods to end before it goes.
        gang: All or nothing.
        min_member: Pods that must have room together.
        role_minimums: By role; only where they count (Volcano leaves them out of account when they come to more than minMember).
        min_resources: Room that must be there before the first pod starts.
        queue, priority_class: As it says them; "" = it does not.
        priority: As resolved by admission.
        rack: None, "required" or "preferred": all pods in one domain of our racks.
        schedule_timeout_s: How long its author would wait.
        phase: As its status says, "" where it has none.
        problem: What of it is not understood; "" = nothing.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    generation: int = 0
    created_ms: int = 0
    deleting: bool = False
    gang: bool = True
    min_member: int = 1
    role_minimums: Mapping[str, int] = field(default_factory=dict)
    min_resources: Resources | None = None
    queue: str = ""
    priority_class: str = ""
    priority: int | None = None
    rack: str | None = None
    schedule_timeout_s: int | None = None
    phase: str = ""
    problem: str = ""


def read_policy(group: PodGroupObject, gpu_resource: str = DEFAULT_GPU) -> GroupPolicy:
    """The rule of a PodGroup.

    Args:
        group: The object, of any form.
        gpu_resource: What whole GPUs are called in its amounts.
    """
    match group:
        case NativePodGroup():
            return _native(group)
        case CoschedulingPodGroup():
            return _coscheduling(group, gpu_resource)
        case VolcanoPodGroup():
            return _volcano(group, gpu_resource)


def _native(group: NativePodGroup) -> GroupPolicy:
    spec = group.spec
    gang = spec.scheduling_policy.gang
    topology = spec.scheduling_constraints.topology if spec.scheduling_constraints else None
    keys = [each.key for each in topology or ()]
    problem = ""
    if spec.parent_composite_pod_group_name:
        problem = f"it is a part of the CompositePodGroup {spec.parent_composite_pod_group_name!r}, which is not read"
    elif any(key not in RACK_LABELS for key in keys):
        problem = f"schedulingConstraints.topology: of {keys}, only {', '.join(RACK_LABELS)} can be kept"
    return _policy(
        group.metadata,
        gang=gang is not None,
        min_member=gang.min_count if gang else 1,
        priority_class=spec.priority_class_name or "",
        priority=spec.priority,
        rack="required" if keys else None,
        problem=problem,
    )


def _coscheduling(group: CoschedulingPodGroup, gpu_resource: str) -> GroupPolicy:
    amounts, problem = _amounts(group.spec.min_resources, gpu_resource)
    return _policy(
        group.metadata,
        min_member=group.spec.min_member or 1,
        min_resources=amounts,
        schedule_timeout_s=group.spec.schedule_timeout_seconds,
        phase=(group.status.phase if group.status else None) or "",
        problem=problem,
    )


def _volcano(group: VolcanoPodGroup, gpu_resource: str) -> GroupPolicy:
    spec = group.spec
    minimum = spec.min_member or 0
    roles = {role: count for role, count in (spec.min_task_member or {}).items() if count > 0}
    amounts, problem = _amounts(spec.min_resources, gpu_resource)
    for each in spec.sub_group_policy or ():
        if (each.min_sub_groups or 0) > 0 or _rack(each.network_topology) == "required":
            problem = problem or f"subGroupPolicy {each.name!r}: groups inside of groups are not read"
    return _policy(
        group.metadata,
        gang=minimum > 0,
        min_member=max(1, minimum),
        role_minimums=roles if sum(roles.values()) <= minimum else {},
        min_resources=amounts,
        queue=spec.queue or "",
        priority_class=spec.priority_class_name or "",
        rack=_rack(spec.network_topology),
        phase=(group.status.phase if group.status else None) or "",
        problem=problem,
    )


def _policy(metadata: Metadata, *, queue: str = "", **rule: Any) -> GroupPolicy:
    said = (metadata.annotations.get(key) or metadata.labels.get(key) for key in _QUEUE_KEYS)
    return GroupPolicy(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        generation=metadata.generation,
        created_ms=moment_ms(metadata.creation_timestamp) or 0,
        deleting=metadata.deletion_timestamp is not None,
        queue=queue or next((each for each in said if each), ""),
        **rule,
    )


def _rack(topology: NetworkTopology | None) -> str | None:
    """Volcano's tiers as racks: tier 1 hangs on one switch; who may cross into higher tiers merely prefers one rack."""
    if topology is None:
        return None
    crosses = (topology.highest_tier_allowed or 1) > 1 or bool(topology.highest_tier_name)
    return "preferred" if topology.mode == "soft" or crosses else "required"


def _amounts(given: Amounts | None, gpu_resource: str) -> tuple[Resources | None, str]:
    """`minResources`, and what is wrong with it."""
    amounts = {name: value for name, value in (given or {}).items() if not name.startswith(_QUOTA_WORDS)}
    if not amounts:
        return None, ""
    try:
        return resources_of(amounts, gpu_resource), ""
    except InvalidRequest as error:
        return None, f"minResources: {error}"
