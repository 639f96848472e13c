"""Inputs of a release beside the pod itself: the cluster's settings, the pod's group, and why a pod cannot be released.

Values only. `pods.manifest` makes pods of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.cluster.node.container_paths import SharedVolume
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Resources, Rules, Toleration

#: Where a pod's inputs and its working folder are, in every container of it.
INPUTS: Final = "/flowsched/inputs"
WORK: Final = "/flowsched/work"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How pods get their GPUs.

    Args:
        resource: What whole devices are asked for as; "" = by device number in the environment, and so with "dra".
        fractions: How a pod with a part of a device (or numbers) is told which: "cuda" = it sees all devices and
            CUDA_VISIBLE_DEVICES names its own; "runtime" = the container runtime shows it no others; "dra" = its devices,
            whole ones too, are those of resource claims (see `dra.inventory`).
        driver, device_class: With "dra": the driver of the GPUs, and the class that claims name; "" = as the driver.
    """

    resource: str = "nvidia.com/gpu"
    fractions: Literal["cuda", "runtime", "dra"] = "cuda"
    driver: str = "gpu.nvidia.com"
    device_class: str = ""

    def __post_init__(self) -> None:
        """With "dra", GPUs are claimed devices, not an extended resource: a pod that asks for one asks for something else."""
        if self.fractions == "dra":
            object.__setattr__(self, "resource", "")

    @property
    def claimed_class(self) -> str:
        """The DeviceClass that claims name."""
        return self.device_class or self.driver


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How stage-in and stage-out run in a task's pod.

    Args:
        secret: A Secret of the tenant's namespace; its keys become variables of stage-in and stage-out alone
            (AWS_ACCESS_KEY_ID …); "" = none.
        cpu_millicores, memory_bytes: What stage-out asks for *beside* what the task asks for.
        publish_s: How long stage-out may take. It is also how long a task that ignores SIGTERM lives on after its timeout, or when
            its node is drained: Kubernetes has one figure for all containers of a pod.
    """

    secret: str = ""
    cpu_millicores: int = 0
    memory_bytes: int = 0
    publish_s: int = 300


class PodUser(NamedTuple):
    """The user and groups that a pod's containers run as, and the group that owns its volumes."""

    user: int = 1000
    group: int = 1000
    fs_group: int = 1000


class ImagePull(NamedTuple):
    """How images are pulled: the Secrets for their registries, and the policy ("" = Kubernetes' own)."""

    secrets: tuple[str, ...] = ()
    policy: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """How this installation releases pods.

    Args:
        namespace: Where pods, PodGroups, Services and Secrets are made.
        our_image: Of the steps (stage-in, stage-out), with `flowsched` in its PATH.
        default_image: Of tasks that name none; "" = such a task is refused.
        agent_key: From which the key is derived that signs the orders of the steps. Never written anywhere.
        agent_port: Where the node agent listens; 0 = there is none, steps fetch by themselves.
        instance: Which installation this is, for `app.kubernetes.io/instance`.
        labels, annotations: Added to everything; ours win.
        tolerations: Of every pod: of NoExecute taints above all, since the loop binds past the others.
        hand_over: None = our own loop binds; else the scheduler that shall.
        gang_addresses: "dns" = members find each other by their Service; "seat" = by the addresses the engine gave.
        shared: Claims mounted in every pod.
        gpu, steps, user, pull: How pods get GPUs, how their steps run, which user runs them, how images are pulled.
        pod_level_resources: Say the pod's amounts once for all containers (Kubernetes 1.34): a pod with stage-out is
            Guaranteed then without more room.
    """

    namespace: str
    our_image: str
    default_image: str
    agent_key: bytes = field(repr=False)
    agent_port: int = 8475
    instance: str = "flowsched"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str = ""
    service_account: str = ""
    scheduler_name: str = "flowsched"
    hand_over: Literal["volcano", "default-scheduler"] | None = None
    gang_addresses: Literal["dns", "seat"] = "dns"
    shared: tuple[SharedVolume, ...] = ()
    pod_level_resources: bool = False
    gpu: GpuSettings = field(default_factory=GpuSettings)
    steps: StepSettings = field(default_factory=StepSettings)
    user: PodUser = field(default_factory=PodUser)
    pull: ImagePull = field(default_factory=ImagePull)

    @property
    def scheduler(self) -> str:
        """The name of the scheduler that binds the pods."""
        return self.hand_over or self.scheduler_name


@dataclass(frozen=True, slots=True)
class Owner:
    """An object with which another one goes: the garbage collector deletes it too."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The group a pod belongs to.

    Args:
        name: Of its PodGroup, Service and Secret (`names.group_name`).
        form: Of its PodGroup.
        owner: With which its pods go: the PodGroup, once it is there.
        queue: The queue that its pods are charged to, for schedulers that read it from the pod.
    """

    name: str
    form: Form = Form.NONE
    owner: Owner | None = None
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Extras:
    """What a stage says of a pod beside command, CPU, memory and GPU.

    Args:
        resources: For disk and extended resources; CPU, memory and GPU are the order's.
        limits: For CPU and extended resources; 0 = not limited. Memory is the order's.
        rules: Tolerations for every scheduler; the rest of them only where another scheduler chooses the node.
        file_names: uri -> the name its file has in a cache, where that is not the last part of the uri.
        expires_ms: When the order of its steps expires (wall clock).
    """

    resources: Resources | None = None
    limits: Resources | None = None
    rules: Rules = field(default_factory=Rules)
    file_names: Mapping[str, str] = field(default_factory=dict)
    expires_ms: int = 0


def extras_of(pod: Pod) -> Extras:
    """What a launch order itself says of these."""
    resources = Resources(
        pod.cpu_millicores, pod.memory_bytes, pod.disk_bytes, pod.gpu_millis, dict(pod.extended)
    )
    return Extras(resources, pod.limits, pod.rules or Rules())
