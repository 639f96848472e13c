"""A pod as a scheduler and an executor read it: its requests, where it may run, how far it has got. Pure."""

from __future__ import annotations

from msgspec import field

from flowsched.cluster.kubernetes.objects.metadata import (
    Amounts,
    Condition,
    LabelSelector,
    Metadata,
    OwnerReference,
    Read,
    Requirement,
)


class NodeSelectorTerm(Read, frozen=True):
    """Conditions on a node's labels and on its fields (`metadata.name`), of which all must hold."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Read, frozen=True):
    """Terms of which one must hold. A term without conditions holds for no node."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNodes(Read, frozen=True):
    """Nodes that are liked, by how much (1 to 100)."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Read, frozen=True):
    """Which nodes a pod must or would like to run on."""

    required: NodeSelector | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredNodes, ...] = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class PodAffinityTerm(Read, frozen=True):
    """Pods that matter, and the domain (a node label's value) in which they do.

    `namespaces` and `namespace_selector` both empty (None) mean the pod's own namespace; an empty selector means all.
    """

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Read, frozen=True):
    """A term that is liked or disliked, by how much (1 to 100)."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Read, frozen=True):
    """Near which pods, or (as anti-affinity) away from which pods, a pod must or would like to run."""

    required: tuple[PodAffinityTerm, ...] = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Read, frozen=True):
    """To nodes, to pods, and away from pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Read, frozen=True):
    """A taint that a pod puts up with. No key and Exists: any; no effect: all three."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class TopologySpreadConstraint(Read, frozen=True):
    """How unevenly pods may lie over domains."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ClaimUse(Read, frozen=True):
    """A container's use of a resource claim of its pod (dynamic resource allocation)."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Read, frozen=True):
    """Resource requests and limits."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    claims: tuple[ClaimUse, ...] = ()


class ContainerPort(Read, frozen=True):
    """A port. Only one with a `host_port` matters to placement."""

    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = field(name="hostIP", default="")


class Container(Read, frozen=True):
    """A container. An init container with restart policy Always is a native sidecar: it stays."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class ClaimSource(Read, frozen=True):
    """A volume that is a claim of the pod's namespace."""

    claim_name: str = ""
    read_only: bool = False


class Present(Read, frozen=True):
    """A field without content: only its presence matters."""


class Volume(Read, frozen=True):
    """A volume of a pod. `ephemeral` is a claim named `<pod>-<volume>`, which a controller makes."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Present | None = None


class SchedulingGate(Read, frozen=True):
    """A gate that a controller or a user has set: the pod may not be scheduled yet."""

    name: str = ""


class SchedulingGroup(Read, frozen=True):
    """The native PodGroup that a pod belongs to. A server without the feature drops the field."""

    pod_group_name: str = ""


class PodResourceClaim(Read, frozen=True):
    """A resource claim of a pod (dynamic resource allocation)."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(Read, frozen=True):
    """The specification of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Amounts = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    active_deadline_seconds: int | None = None
    restart_policy: str = ""


class Waiting(Read, frozen=True):
    """Not started, or between two starts: ContainerCreating, ImagePullBackOff, CrashLoopBackOff …"""

    reason: str = ""
    message: str = ""


class Running(Read, frozen=True):
    """It runs."""

    started_at: str | None = None


class Terminated(Read, frozen=True):
    """It has ended. `message` is what it wrote to its termination log."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Read, frozen=True):
    """One of the three; none at all means waiting."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Read, frozen=True):
    """How a container is."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    image: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: Amounts = field(default_factory=dict)
    resources: ResourceRequirements | None = None


class PodStatus(Read, frozen=True):
    """How far the pod has got, by its kubelet and its scheduler."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    host_ip: str = field(name="hostIP", default="")
    pod_ip: str = field(name="podIP", default="")
    start_time: str | None = None
    qos_class: str = ""


class Pod(Read, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def controller_of(pod: Pod) -> OwnerReference | None:
    """The controller that would make the pod again; None = there is none."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner
    return None
