"""Pod requests: the resources of any pod, as kube-scheduler adds them up, and its annotations of data and runtime. Pure.

Amounts, ports, claims, QoS class. Where it may run beside that is in `pod_constraints`.

Source: k8s.io/component-helpers resource/helpers.go and k8s.io/kubernetes pkg/apis/core/v1/helper/qos (v1.36.3); KEP-753 for
native sidecars. Held to those by `tests/kubernetes/thirdparty/pod_requests.jsonl`, which their own code has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flowsched.cluster.kubernetes.objects.labels import PREFIX
from flowsched.cluster.kubernetes.objects.metadata import Amounts, quantity
from flowsched.cluster.kubernetes.objects.pod import Container, ContainerStatus, Pod, ResourceRequirements
from flowsched.errors import InvalidRequest
from flowsched.executor.constraints import HostPort, host_port
from flowsched.workflow.resources import LARGEST_BYTES, parse_bytes, parse_duration
from flowsched.workflow.spec import Resources

#: Nothing asks for more: sums of such amounts must still fit 64 bits. It is also what an amount counts as that is none, so
#: that nothing is placed on it.
LARGEST: Final = LARGEST_BYTES
DEFAULT_GPU: Final = "nvidia.com/gpu"
#: Amounts are added in billionths, Kubernetes' own precision, and rounded up once at the end.
_NANO: Final = 10**9
_POD_LEVEL: Final = ("cpu", "memory")
_HUGEPAGES: Final = "hugepages-"
_QOS: Final = ("cpu", "memory")

Nanos = dict[str, int]


def requests_of(pod: Pod, gpu_resource: str = DEFAULT_GPU) -> Resources:
    """The resources that a pod takes of a node.

    The sum of its containers and sidecars, or what an init container needs beside the sidecars that have started before it, if
    that is more; what is said for the pod as a whole instead, where it is; its overhead; and one of the node's `pods`.
    A pod that is being resized takes the most of what it has and what it shall have.
    """
    total = _together(pod, _effective_in(pod), lambda each: _nanos(each.resources.requests))
    if pod.spec.resources is not None:
        stated = _nanos(pod.spec.resources.requests)
        total |= {name: amount for name, amount in stated.items() if _is_pod_level(name)}
    _add(total, _nanos(pod.spec.overhead))
    return _resources(total, gpu_resource, pods=1)


def limits_of(pod: Pod, gpu_resource: str = DEFAULT_GPU) -> Resources:
    """The limits of a pod, as a quota adds them up; a container without a limit adds nothing."""
    total = _together(pod, *[lambda each: _nanos(each.resources.limits)] * 2)
    if pod.spec.resources is not None:
        stated = _nanos(pod.spec.resources.limits)
        total |= {name: amount for name, amount in stated.items() if _is_pod_level(name)}
    return _resources(total, gpu_resource)


def resources_of(amounts: Amounts, gpu_resource: str = DEFAULT_GPU) -> Resources:
    """A list of amounts (`minResources`, a node's `allocatable`) as resources; every other name is an extended one.

    Raises:
        InvalidRequest: One of them is no quantity, or negative.
    """
    return _resources({name: quantity(value, _NANO) for name, value in amounts.items()}, gpu_resource)


def qos_class(pod: Pod) -> str:
    """Guaranteed, Burstable or BestEffort; the status's own value, if it has one."""
    if pod.status.qos_class:
        return pod.status.qos_class
    everyone: Iterable[ResourceRequirements]
    if pod.spec.resources is not None:
        everyone = (pod.spec.resources,)
        needs_limits = bool(pod.spec.resources.limits)
    else:
        everyone = [each.resources for each in (*pod.spec.containers, *pod.spec.init_containers)]
        needs_limits = True
    requests: Nanos = {}
    limits: Nanos = {}
    complete = True
    for each in everyone:
        limited = _positive(each.limits)
        _add(requests, _positive(each.requests))
        _add(limits, limited)
        complete = complete and (len(limited) == len(_QOS) or not needs_limits)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if complete and requests == limits else "Burstable"


def whole_cores(pod: Pod) -> bool:
    """Whether one of its containers asks for whole cores."""
    asked = (_nanos(each.resources.requests).get("cpu", 0) for each in pod.spec.containers)
    return any(nanos > 0 and nanos % _NANO == 0 for nanos in asked)


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """The ports of the node that it needs while it runs: of its containers and sidecars."""
    staying = [each for each in pod.spec.init_containers if _is_sidecar(each)]
    ports = [port for each in (*staying, *pod.spec.containers) for port in each.ports if port.host_port > 0]
    return tuple(sorted({host_port(port.host_port, port.protocol, port.host_ip) for port in ports}))


def claims_of(pod: Pod) -> tuple[str, ...]:
    """Names of its PersistentVolumeClaims, in its namespace; an ephemeral one is named after the pod and the volume."""
    claims: list[str] = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claims.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            claims.append(f"{pod.metadata.name}-{volume.name}")
    return tuple(claims)


def image_of(pod: Pod) -> str | None:
    """The image of the container that asks for the most CPU, the first of such: the one that is probably large."""
    if not pod.spec.containers:
        return None
    largest = max(pod.spec.containers, key=lambda each: _nanos(each.resources.requests).get("cpu", 0))
    return largest.image or None


def _effective_in(pod: Pod) -> Callable[[Container], Nanos]:
    statuses = {
        each.name: each for each in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
    infeasible = any(
        each.type == "PodResizePending" and each.reason == "Infeasible" for each in pod.status.conditions
    )
    return lambda each: _effective(each, statuses.get(each.name), infeasible)


def _together(
    pod: Pod, running: Callable[[Container], Nanos], starting_with: Callable[[Container], Nanos]
) -> Nanos:
    """The sum of containers and sidecars, or what an init container needs beside the sidecars that have started before it.

    Args:
        pod: The pod.
        running: The needs of a container or sidecar.
        starting_with: The needs of an init container.
    """
    total: Nanos = {}
    for container in pod.spec.containers:
        _add(total, running(container))
    sidecars: Nanos = {}
    starting: Nanos = {}  # the most that any init container needs while it runs
    for container in pod.spec.init_containers:
        if _is_sidecar(container):
            needs = running(container)
            _add(total, needs)
            _add(sidecars, needs)
            _most(starting, sidecars)
        else:
            needs = starting_with(container)
            _add(needs, sidecars)
            _most(starting, needs)
    _most(total, starting)
    return total


def _effective(container: Container, status: ContainerStatus | None, infeasible: bool) -> Nanos:
    """The resources of a container during a resize in place (KEP-1287): a kubelet takes and gives back step by step."""
    wanted = _nanos(container.resources.requests)
    if status is None or status.resources is None:
        return wanted
    allocated = _nanos(status.resources.requests)
    _most(allocated, _nanos(status.allocated_resources))
    if not infeasible:
        _most(allocated, wanted)
    return allocated


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _is_pod_level(name: str) -> bool:
    return name in _POD_LEVEL or name.startswith(_HUGEPAGES)


def _positive(amounts: Amounts) -> Nanos:
    return {name: amount for name, amount in _nanos(amounts).items() if name in _QOS and amount > 0}


def _nanos(amounts: Amounts) -> Nanos:
    """Amounts in billionths. One that is no quantity, which no API server would have let in, is more than there is."""
    found: Nanos = {}
    for name, value in amounts.items():
        try:
            found[name] = quantity(value, _NANO)
        except InvalidRequest:
            found[name] = LARGEST * _NANO
    return found


def _add(total: Nanos, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _most(total: Nanos, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)


def _resources(nanos: Mapping[str, int], gpu_resource: str, pods: int = 0) -> Resources:
    rest = dict(nanos)
    cpu = _whole(rest.pop("cpu", 0), _NANO // 1000)
    memory = _whole(rest.pop("memory", 0), _NANO)
    disk = _whole(rest.pop("ephemeral-storage", 0), _NANO)
    gpu = _whole(rest.pop(gpu_resource, 0), _NANO // 1000) if gpu_resource else 0
    extended = {name: _whole(amount, _NANO) for name, amount in sorted(rest.items()) if amount}
    if pods:
        extended["pods"] = pods
    return Resources(cpu, memory, disk, gpu, extended)


def _whole(nanos: int, unit: int) -> int:
    return min(-(-nanos // unit), LARGEST)


# ---- hints: annotations for what Kubernetes has no fields for ----
#
#     flowsched.io/inputs     URIs of what it reads, separated by commas, each with "=size" if that is known
#     flowsched.io/io-read    bytes it reads from its node's disk in all ("20Gi"), or a second ("100M/s")
#     flowsched.io/io-write   the same of what it writes
#     flowsched.io/runtime    how long it is expected to run ("25m")
#
# The last "=" of an input separates the size only where a quantity follows, or nothing: "https://a/b?part=2=" is a URI that
# ends in "part=2", of unknown size. An entry that cannot be understood counts as absent.


INPUTS: Final = f"{PREFIX}inputs"
IO_READ: Final = f"{PREFIX}io-read"
IO_WRITE: Final = f"{PREFIX}io-write"
RUNTIME: Final = f"{PREFIX}runtime"

_PER_SECOND: Final = "/s"


@dataclass(frozen=True, slots=True)
class Hints:
    """Inputs, I/O and runtime as a foreign pod declares them.

    Args:
        inputs: (URI, bytes) of what it reads, each once; 0 = the size is not known.
        io_rate: Bytes a second of its node's disk; 0 = not known.
        io_bytes: Bytes it reads and writes there in all; 0 = not known.
        runtime_ms: The longest it is expected to run, or may run (`activeDeadlineSeconds`); None = not known.
    """

    inputs: tuple[tuple[str, int], ...] = ()
    io_rate: int = 0
    io_bytes: int = 0
    runtime_ms: int | None = None


def hints_of(pod: Pod) -> Hints:
    """The hints of a pod, without those that flowsched cannot understand."""
    rate = total = 0
    for name in (IO_READ, IO_WRITE):
        amount = _annotation(pod, name, lambda text: parse_bytes(text.removesuffix(_PER_SECOND))) or 0
        if pod.metadata.annotations.get(name, "").endswith(_PER_SECOND):
            rate += amount
        else:
            total += amount
    runtime = _annotation(pod, RUNTIME, parse_duration)
    if not rate and total and runtime:
        rate = total * 1000 // runtime
    deadline = pod.spec.active_deadline_seconds
    ends = [end for end in (runtime, None if deadline is None else deadline * 1000) if end is not None]
    # Like any amount: sums of amounts in foreign pods must still fit 64 bits.
    rate, total = min(rate, LARGEST_BYTES), min(total, LARGEST_BYTES)
    return Hints(_inputs(pod), rate, total, min(ends, default=None))


def _annotation(pod: Pod, name: str, parse: Callable[[str], int]) -> int | None:
    """The value of an annotation; None if it is absent, or cannot be understood."""
    text = pod.metadata.annotations.get(name)
    try:
        return None if text is None else parse(text)
    except InvalidRequest:
        return None


def _inputs(pod: Pod) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in pod.metadata.annotations.get(INPUTS, "").split(","):
        uri, size = _input(part.strip())
        if uri:
            found[uri] = max(size, found.get(uri, 0))
    most = LARGEST_BYTES // max(1, len(found))
    return tuple((uri, min(size, most)) for uri, size in found.items())


def _input(text: str) -> tuple[str, int]:
    uri, equals, size = text.rpartition("=")
    if not equals:
        return text, 0
    if not size:
        return uri, 0
    try:
        return uri, parse_bytes(size)
    except InvalidRequest:
        return text, 0
