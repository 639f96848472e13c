"""Settings of a Kubernetes installation: the cluster, its shared volumes, and the executor that follows from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from flowsched.cluster.local.runner.image_places import tidy
from flowsched.errors import ConfigurationError
from flowsched.options import Option

if TYPE_CHECKING:
    from flowsched.cluster.kubernetes.executor import KubernetesCluster
    from flowsched.cluster.node.container_paths import SharedVolume
    from flowsched.executor.protocol import ServiceContext

#: The image that is built from deploy/Dockerfile; its `flowsched` runs the steps of a pod.
DEFAULT_IMAGE: Final = "ghcr.io/flowsched/flowsched:0.1.0"
HAND_OVER: Final = ("volcano", "default-scheduler")
GPU_FRACTIONS: Final = ("cuda", "runtime", "dra")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """How tasks run on Kubernetes. FLOWSCHED_… in the environment sets each field but the first two.

    Args:
        namespace: Where tasks run.
        image: Of the steps that run in tasks' pods.
        default_image: Of tasks that name none; "" = such a task is refused.
        agent_key: The secret that node agents and the service share; "" = there are no agents.
        agent_port: Where agents listen.
        pod_groups: Form of our gangs' PodGroups: auto, native, scheduler-plugins, volcano, none.
        scheduler_name: We place pods with this `spec.schedulerName`; several with commas, the first is our own pods'.
        instance: Which installation this is, where there are several.
        hand_over: The scheduler that places our pods instead of us; "" = we do.
        gang_addresses: "dns" (each gang has a Service), or "seat" on clusters without DNS: the addresses that the engine gave.
        run_as_user: The user that tasks run as.
        in_flight: Requests open at a time.
        agent_namespace: Where node agents run.
        service_account: Of tasks' pods; "" = their namespace's default.
        gpu_fractions: How pods get parts of GPUs: "cuda", "runtime", or "dra" (claims; whole GPUs too).
        gpu_driver: With "dra": the driver of the devices that are GPUs.
        gpu_device_class: With "dra": the DeviceClass that claims name; "" = as the driver.
        shared: Claims that every task sees: `claim:/path` or `claim:/path:ro`, several with commas.
        steps_secret: A Secret; its keys become variables of stage-in and stage-out; "" = none.
    """

    kubeconfig: Annotated[
        Path | None, Option("With kubernetes. [KUBECONFIG, the pod's own account, ~/.kube/config]")
    ] = None
    context: Annotated[str | None, Option("Of the kubeconfig. [its current one]")] = None
    namespace: Annotated[
        str, Option("Where tasks run on Kubernetes. [FLOWSCHED_NAMESPACE, else flowsched]")
    ] = "flowsched"
    image: str = DEFAULT_IMAGE
    default_image: str = ""
    agent_key: str = ""
    agent_port: int = 8475
    pod_groups: str = "auto"
    scheduler_name: str = "flowsched"
    instance: str = "flowsched"
    hand_over: str = ""
    gang_addresses: str = "dns"
    run_as_user: int = 1000
    in_flight: int = 32
    agent_namespace: str = "flowsched-system"
    service_account: str = ""
    gpu_fractions: str = "cuda"
    gpu_driver: str = "gpu.nvidia.com"
    gpu_device_class: str = ""
    shared: str = ""
    steps_secret: str = ""


#: Variable -> the field that it sets, and its type.
VARIABLES: Final[Mapping[str, tuple[str, type[str | int]]]] = {
    f"FLOWSCHED_{each.name.upper()}": (each.name, type(each.default))  # type: ignore[misc]
    for each in fields(KubernetesSettings)
    if each.name not in ("kubeconfig", "context")
}


def from_environment(environment: Mapping[str, str]) -> KubernetesSettings:
    """Settings from FLOWSCHED_* variables, which a Deployment sets.

    Raises:
        ConfigurationError: One of them is not a number, or not one of those there are.
    """
    values: dict[str, str | int] = {}
    for variable, (name, kind) in VARIABLES.items():
        text = environment.get(variable)
        try:
            values |= {name: kind(text)} if text else {}
        except ValueError:
            raise ConfigurationError(f"{variable} is a whole number, not {text!r}") from None
    settings = KubernetesSettings(**values)  # type: ignore[arg-type]
    if settings.hand_over not in ("", *HAND_OVER):
        raise ConfigurationError(
            f"pods are handed over to {' or '.join(HAND_OVER)}, not {settings.hand_over!r}"
        )
    if settings.gang_addresses not in ("dns", "seat"):
        raise ConfigurationError(f"FLOWSCHED_GANG_ADDRESSES is dns or seat, not {settings.gang_addresses!r}")
    if settings.gpu_fractions not in GPU_FRACTIONS:
        raise ConfigurationError(
            f"FLOWSCHED_GPU_FRACTIONS is one of {', '.join(GPU_FRACTIONS)}, not {settings.gpu_fractions!r}"
        )
    if settings.gpu_fractions == "dra" and settings.hand_over:
        raise ConfigurationError(
            "FLOWSCHED_GPU_FRACTIONS=dra allocates devices to pods that we bind ourselves: it does not go with FLOWSCHED_HAND_OVER"
        )
    return settings


async def open_cluster(settings: KubernetesSettings, service: ServiceContext) -> KubernetesCluster:
    """Make the executor `kubernetes`; it has not been started yet.

    Raises:
        ConfigurationError: There is no API server to be found, or a shared volume cannot be.
    """
    from flowsched.cluster.kubernetes.api.credentials import connect
    from flowsched.cluster.kubernetes.executor import ClusterSettings, KubernetesCluster
    from flowsched.cluster.kubernetes.lease import Lease
    from flowsched.cluster.kubernetes.objects.release import (
        GpuSettings,
        ReleaseSettings,
    )

    connection = await connect(settings.kubeconfig, settings.context)
    names = [name.strip() for name in settings.scheduler_name.split(",") if name.strip()] or ["flowsched"]
    release = ReleaseSettings(
        namespace=settings.namespace,
        our_image=settings.image,
        default_image=settings.default_image,
        agent_key=settings.agent_key.encode(),
        agent_port=settings.agent_port if settings.agent_key else 0,
        user=settings.run_as_user,
        instance=settings.instance,
        scheduler_name=names[0],
        service_account=settings.service_account,
        hand_over=settings.hand_over or None,  # type: ignore[arg-type]
        gang_addresses=settings.gang_addresses,  # type: ignore[arg-type]
        gpu=GpuSettings(
            fractions=settings.gpu_fractions,  # type: ignore[arg-type]
            driver=settings.gpu_driver,
            device_class=settings.gpu_device_class,
        ),
        shared=shared_volumes(settings.shared),
        steps_secret=settings.steps_secret,
    )
    return KubernetesCluster(
        connection,
        ClusterSettings(
            release,
            settings.agent_key,
            settings.pod_groups,
            settings.in_flight,
            settings.agent_namespace,
            frozenset(names),
        ),
        Lease(service.clock, service.failpoint, service.may_act),
    )


# ---- volumes that every task of an installation sees ----


_CLAIM: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def shared_volumes(text: str) -> tuple[SharedVolume, ...]:
    """Read FLOWSCHED_SHARED: `claim:/path`, or `claim:/path:ro`, several with commas.

    Raises:
        ConfigurationError: One of them is no claim with a path that can be mounted, or a path is there twice.
    """
    found = [_volume(part.strip()) for part in text.split(",") if part.strip()]
    paths = [volume.path for volume in found]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigurationError(
                f"FLOWSCHED_SHARED has two volumes at {path}; give each a path of its own"
            )
    return tuple(found)


def _volume(text: str) -> SharedVolume:
    from flowsched.cluster.node.container_paths import SYSTEM, TAKEN, SharedVolume

    claim, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not _CLAIM.fullmatch(claim) or not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise ConfigurationError(
            f"FLOWSCHED_SHARED is claim:/path or claim:/path:ro, several with commas, not {text!r}"
        )
    path = tidy(path)
    if (
        path in SYSTEM
        or ".." in path.split("/")
        or any(f"{path}/".startswith(f"{taken}/") for taken in TAKEN)
    ):
        raise ConfigurationError(
            f"FLOWSCHED_SHARED: {path} is a folder of the system: nothing can be mounted there"
        )
    return SharedVolume(claim, path, mode == "ro")
