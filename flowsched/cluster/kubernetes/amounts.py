"""What the containers of one of our pods ask for, so that the pod asks for what its task does and no more.

A kubelet adds up: the task, plus the sidecar; stage-in counts only where it asks for more than both. So stage-in asks for
what the task does, and the sidecar for nothing, or for what the installation adds on purpose.

A task whose limits are its requests shall be Guaranteed: with integer CPU that is what gives it whole cores under a
kubelet's static policy. A sidecar without limits would make the pod Burstable again, so one with outputs is Guaranteed only
where the installation gives the sidecar something of its own, or says the pod's amounts once for all containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flowsched.cluster.kubernetes.devices import places_of
from flowsched.cluster.kubernetes.release import Extras, ReleaseSettings
from flowsched.cluster.kubernetes.stepcontainers import needs_stage_out
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Resources

#: Stage-in may use so much, however little its task asks for: it is Python, and it may have to fetch.
STEP_MEMORY_BYTES: Final = 256 << 20

Quantities = dict[str, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pod asks for.

    Args:
        requests, limits: Of the task.
        devices: Of the task; they are requests and limits at once.
        sidecar: Requests and limits of stage-out, as they are written.
        guaranteed: Whether limits are equal to requests.
        memory_bytes: Of the task's limit.
        claims: On devices: (name in the pod, name of the claim).
    """

    requests: Quantities
    limits: Quantities
    devices: Quantities
    sidecar: dict[str, Quantities]
    guaranteed: bool
    memory_bytes: int
    claims: tuple[tuple[str, str], ...] = ()


def asked(pod: Pod, settings: ReleaseSettings, extras: Extras) -> Ask:
    """What the containers of a pod ask for."""
    memory_limit = max(pod.memory_limit_bytes or 0, pod.memory_bytes)
    cpu_limit = extras.limits.cpu_millicores if extras.limits else 0
    requests = {"cpu": cpu(pod.cpu_millicores), "memory": str(pod.memory_bytes)}
    if extras.resources is not None and extras.resources.disk_bytes:
        requests["ephemeral-storage"] = str(extras.resources.disk_bytes)
    limits = {"memory": str(memory_limit)}
    if cpu_limit:
        limits["cpu"] = cpu(max(cpu_limit, pod.cpu_millicores))
    guaranteed = (
        all(requests[name] == limits.get(name) for name in ("cpu", "memory"))
        and memory_limit >= STEP_MEMORY_BYTES
        and (not needs_stage_out(pod) or _sidecar_asks(settings) or settings.pod_level_resources)
    )
    claims = tuple((f"gpu-{place.number}", place.claim) for place in places_of(pod, settings))
    devices, sidecar = _devices(pod, settings, extras), _sidecar(settings)
    return Ask(requests, limits, devices, sidecar, guaranteed, memory_limit, claims)


def task_resources(ask: Ask) -> dict[str, Any]:
    """Of the task's container."""
    amounts: dict[str, Any] = {"requests": ask.requests | ask.devices, "limits": ask.limits | ask.devices}
    return amounts | ({"claims": [{"name": name} for name, _ in ask.claims]} if ask.claims else {})


def step_resources(ask: Ask) -> dict[str, Quantities]:
    """Of stage-in, which runs while the task does not: it may take what the task asks for."""
    requests = {name: ask.requests[name] for name in ("cpu", "memory")}
    memory = max(ask.memory_bytes, STEP_MEMORY_BYTES)
    return {"requests": requests, "limits": ask.limits | {"memory": str(memory)}}


def pod_resources(ask: Ask) -> dict[str, Quantities]:
    """Of the pod as a whole (Kubernetes 1.34): CPU and memory of the task, for all containers together."""
    names = ("cpu", "memory")
    limits = {name: ask.limits[name] for name in names if name in ask.limits and ask.guaranteed}
    told = {"requests": {name: ask.requests[name] for name in names}, "limits": limits}
    return {key: value for key, value in told.items() if value}


def quantities(resources: Resources, gpu_resource: str, factor: int = 1) -> Quantities:
    """Resources as Kubernetes writes them; what is not asked for is left out."""
    devices = -(-resources.gpu_millis * factor // 1000) if gpu_resource else 0
    amounts: Mapping[str, int] = {
        "memory": resources.memory_bytes * factor,
        "ephemeral-storage": resources.disk_bytes * factor,
        gpu_resource: devices,
        **{name: count * factor for name, count in resources.extended.items()},
    }
    told = {name: str(amount) for name, amount in amounts.items() if amount}
    return {"cpu": cpu(resources.cpu_millicores * factor), **told} if resources.cpu_millicores else told


def cpu(millicores: int) -> str:
    """Cores, or thousandths of one: as the API server itself writes it."""
    return f"{millicores}m" if millicores % 1000 else str(millicores // 1000)


def _devices(pod: Pod, settings: ReleaseSettings, extras: Extras) -> Quantities:
    """Whole GPUs and extended resources. A part of a GPU is no device of a plugin: its number is in the environment."""
    counts: dict[str, int] = dict(extras.resources.extended) if extras.resources else {}
    if settings.gpu_resource and pod.gpu_millis and pod.gpu_millis % 1000 == 0:
        counts[settings.gpu_resource] = pod.gpu_millis // 1000
    return {name: str(count) for name, count in sorted(counts.items()) if count}


def _sidecar(settings: ReleaseSettings) -> dict[str, Any]:
    """Nothing has to be said as nothing: a namespace's LimitRange would put in its own figures."""
    if not _sidecar_asks(settings) or settings.pod_level_resources:
        return {"requests": {"cpu": "0", "memory": "0"}}
    wanted = {"cpu": cpu(settings.step_cpu_millicores), "memory": str(settings.step_memory_bytes)}
    return {"requests": wanted, "limits": wanted}


def _sidecar_asks(settings: ReleaseSettings) -> bool:
    return bool(settings.step_cpu_millicores and settings.step_memory_bytes)
