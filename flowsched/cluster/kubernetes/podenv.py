"""The environments of a pod's containers: the task's is that of a local cluster, as far as an image lets it be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flowsched.cluster.environment import Paths, environment
from flowsched.cluster.kubernetes.agent.keys import signing_key_of
from flowsched.cluster.kubernetes.agent.orders import pack, sign
from flowsched.cluster.kubernetes.names import SecretKey, member_address, secret_key
from flowsched.cluster.kubernetes.places import Layout
from flowsched.cluster.kubernetes.podorder import input_path, order_of
from flowsched.cluster.kubernetes.references import literal, spelled
from flowsched.cluster.kubernetes.release import INPUTS, WORK, Extras, GroupRef, Refusal, ReleaseSettings
from flowsched.executor.protocol import Pod

#: Set on a local cluster, where there is no image that could say them.
_OF_THE_IMAGE: Final = ("PATH", "LANG", "PWD")
_TOKEN: Final = "FLOWSCHED_GANG_TOKEN"
_NO_LAYOUT: Final = Layout()
#: The key of a gang's token in its Secret.
TOKEN_KEY: Final = "token"

EnvVar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The task's container: its variables in order, and its command so spelled that a kubelet expands it as we mean it."""

    env: list[EnvVar]
    command: list[str]


def addressed(pod: Pod, settings: ReleaseSettings, group: GroupRef | None) -> Pod:
    """The pod with its gang's members under the names that they have on this cluster."""
    seat = pod.gang
    if seat is None or settings.gang_addresses == "seat":
        return pod
    if group is None:
        raise ValueError(f"{pod.name} has a seat in a gang and no group: nobody would find it")
    counted: dict[str, int] = {}
    addresses = []
    for role in seat.roles:
        number = counted[role] = counted.get(role, -1) + 1
        addresses.append(member_address(role, number, group.name, settings.namespace))
    return replace(pod, gang=replace(seat, addresses=tuple(addresses)))


def task_environment(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None, extras: Extras, layout: Layout = _NO_LAYOUT
) -> TaskEnvironment | Refusal:
    """The task's environment and command.

    Args:
        pod: What to run, with the addresses of `addressed`.
        settings: Of the installation.
        group: Its Secret holds the gang's token; None = the pod is alone.
        extras: For the names of files.
        layout: Of a container task's files.
    """
    values = _values(pod, settings, extras)
    sources = _sources(pod, group)
    if isinstance(sources, Refusal):
        return sources
    env: list[EnvVar] = [
        {"name": name, "value": literal(value)} for name, value in values.items() if name not in sources
    ]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": found.name, "key": found.key}}}
        for name, found in sources.items()
    ]
    # The token may stand in a command on a local cluster; what it is matters neither to the kubelet nor to us.
    seen = values | ({_TOKEN: f"$({_TOKEN})"} if _TOKEN in sources else {})
    hidden = [name for name in sources if name != _TOKEN]
    visible = {name: value for name, value in seen.items() if name not in hidden}
    return TaskEnvironment(env, [spelled(argument, visible, hidden) for argument in pod.command])


def step_environment(
    pod: Pod, settings: ReleaseSettings, extras: Extras, layout: Layout = _NO_LAYOUT
) -> list[EnvVar]:
    """The environment of stage-in and of stage-out."""
    text = pack(order_of(pod, extras.file_names, layout.inputs, extras.expires_ms))
    agent = f"http://$(HOST_IP):{settings.agent_port}" if settings.agent_port else ""
    return [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "FLOWSCHED_AGENT", "value": agent},
        {"name": "FLOWSCHED_ORDER", "value": literal(text)},
        {"name": "FLOWSCHED_SIGNATURE", "value": sign(signing_key_of(settings.agent_key), text)},
        {"name": "FLOWSCHED_INPUTS", "value": INPUTS},
        {"name": "FLOWSCHED_WORK", "value": WORK},
    ]


def _values(pod: Pod, settings: ReleaseSettings, extras: Extras) -> dict[str, str]:
    """What variables say that are no secrets."""
    by_number = pod.gpu_millis > 0 and (pod.gpu_millis % 1000 > 0 or not settings.gpu_resource)
    told = pod if by_number and settings.gpu_fractions == "cuda" else replace(pod, gpu_ids=())
    inputs = {given.name: f"{INPUTS}/{input_path(given, extras.file_names)}" for given in pod.inputs}
    if pod.container is not None:
        inputs |= {given.input: given.path for given in pod.container.inputs if given.input is not None}
    values, _ = environment(told, Paths(WORK, WORK, inputs, ""))
    for name in _OF_THE_IMAGE:
        if name not in pod.env:
            del values[name]
    return values | _devices(pod, settings, by_number)


def _devices(pod: Pod, settings: ReleaseSettings, by_number: bool) -> dict[str, str]:
    """What the container runtime of a GPU node is told. A device plugin says it by itself for whole devices.

    A pod without a GPU gets `void`: images made for GPUs say `all`, and would get all.
    """
    if pod.gpu_millis == 0 or settings.gpu_fractions == "dra":  # a claim's driver adds the devices by itself
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    if not by_number or not pod.gpu_ids:
        return {}
    if settings.gpu_fractions == "runtime":
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(map(str, pod.gpu_ids))}
    # CUDA counts devices by speed unless it is told to count them as everybody else does.
    return {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _sources(pod: Pod, group: GroupRef | None) -> Mapping[str, SecretKey] | Refusal:
    """Variables that come from Secrets: the task's own, and its gang's token, which must not be in the pod's text."""
    sources: dict[str, SecretKey] = {}
    for name, reference in pod.secrets.items():
        found = secret_key(reference)
        if found is None:
            return Refusal(
                "SecretMissing",
                f"{name} asks for the secret {reference!r}; on Kubernetes that is NAME or NAME/KEY, with a name of "
                "lower-case letters, digits, '-' and '.'",
            )
        sources[name] = found
    if pod.gang is not None and group is not None:
        sources[_TOKEN] = SecretKey(group.name, TOKEN_KEY)
    return sources
