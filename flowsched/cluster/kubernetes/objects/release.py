"""Inputs of a release beside the pod itself: the cluster's settings, the pod's group, and why a pod cannot be released.

Values only. `pods.manifest` makes pods of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.cluster.node.container_paths import SharedVolume

#: Where a pod's inputs and its working folder are, in every container of it.
INPUTS: Final = "/flowsched/inputs"
WORK: Final = "/flowsched/work"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How pods get their GPUs.

    Args:
        resource: The resource name of whole devices; "" = by device number in the environment, and so with "dra".
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
class ReleaseSettings:
    """How this installation releases pods.

    Args:
        namespace: Where pods, PodGroups, Services and Secrets are made.
        our_image: Of the steps (stage-in, stage-out), with `flowsched` in its PATH.
        default_image: Of tasks that name none; "" = such a task is refused.
        agent_key: From which the key is derived that signs the orders of the steps. Never written anywhere.
        agent_port: Where the node agent listens; 0 = there is none, steps fetch by themselves.
        instance: Which installation this is, for `app.kubernetes.io/instance`.
        hand_over: None = our own loop binds; else the scheduler that shall.
        gang_addresses: "dns" = members find each other by their Service; "seat" = by the addresses the engine gave.
        shared: Claims mounted in every pod.
        gpu: How pods get GPUs.
        steps_secret: A Secret of the tenant's namespace; its keys become variables of stage-in and stage-out alone
            (AWS_ACCESS_KEY_ID …); "" = none.
        user: That a pod's containers run as.
    """

    namespace: str
    our_image: str
    default_image: str
    agent_key: bytes = field(repr=False)
    agent_port: int = 8475
    instance: str = "flowsched"
    service_account: str = ""
    scheduler_name: str = "flowsched"
    hand_over: Literal["volcano", "default-scheduler"] | None = None
    gang_addresses: Literal["dns", "seat"] = "dns"
    shared: tuple[SharedVolume, ...] = ()
    gpu: GpuSettings = field(default_factory=GpuSettings)
    steps_secret: str = ""
    user: int = 1000

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
