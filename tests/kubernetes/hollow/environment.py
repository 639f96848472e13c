"""The environment and command of a container, resolved as a kubelet does. Pure.

Two things differ, since most hollow containers have no mount namespace, and none has DNS: a value that is, or lies below, the path
of a volume mount becomes the folder that stands for it, and names of gang members become their addresses. The text of a
command is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowsched.cluster.kubernetes.pods.container_task import kubelet_expand
from tests.kubernetes.hollow.spec import Container, EnvVar, FieldRef, Pod

#: Signed: `$(VAR)` is expanded as everywhere, but nothing is put in the place of paths and hosts.
VERBATIM: Final = frozenset({"FLOWSCHED_ORDER", "FLOWSCHED_SIGNATURE", "FLOWSCHED_CONTAINER"})

#: (kind, name) -> its keys; kind is "secrets" or "configmaps". An absent object is an absent key.
Maps = Mapping[tuple[str, str], Mapping[str, bytes]]


class Unresolved(Exception):
    """A container cannot be started now: what it refers to is not there. A kubelet tries again, and so does the caller."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a container stands on.

    Args:
        pod: Its pod.
        host_ip: Address of the node.
        pod_ip: Address of the pod.
        folders: Volume -> the folder that stands for it.
        termination_log: The file that stands for `terminationMessagePath`.
        services: What a kubelet says about services: KUBERNETES_SERVICE_HOST …
        maps: The Secrets and ConfigMaps that `references` named.
        resolve: Replaces names of hosts in a text.
        mounted: Whether the container has its volumes at their paths, so that values need not be changed.
    """

    pod: Pod
    host_ip: str
    pod_ip: str
    folders: Mapping[str, Path]
    termination_log: Path
    services: Mapping[str, str]
    maps: Maps
    resolve: Callable[[str], str]
    mounted: bool = False


def references(container: Container) -> Iterator[tuple[str, str]]:
    """The Secrets and ConfigMaps that a container's environment needs, as keys of `Maps`."""
    for source in container.env_from:
        if source.secret_ref is not None:
            yield "secrets", source.secret_ref.name
        if source.config_map_ref is not None:
            yield "configmaps", source.config_map_ref.name
    for variable in container.env:
        if variable.value_from is None:
            continue
        if variable.value_from.secret_key_ref is not None:
            yield "secrets", variable.value_from.secret_key_ref.name
        if variable.value_from.config_map_key_ref is not None:
            yield "configmaps", variable.value_from.config_map_key_ref.name


def environment(container: Container, ground: Ground) -> dict[str, str]:
    """What the pod and the kubelet say about a container's environment, in order of precedence; the image's is below it.

    Raises:
        Unresolved: A Secret, ConfigMap or key is not there and not optional.
    """
    known = _from_maps(container, ground)
    for variable in container.env:
        value = _value(variable, container, ground, {**ground.services, **known})
        if value is not None:
            known[variable.name] = value
    return {**ground.services, "FLOWSCHED_TERMINATION_LOG": str(ground.termination_log), **known}


def command(container: Container, env: Mapping[str, str], entry: Sequence[str]) -> list[str]:
    """The container's command with `$(VAR)` expanded.

    Args:
        container: Whose.
        env: Of `environment`: a kubelet does not know what the image sets, and expands nothing of it.
        entry: The image's own entry point, which `command` takes the place of.
    """
    given = [*(container.command or entry), *container.args]
    return [kubelet_expand(part, env) for part in given]


def relocated(path: str, container: Container, ground: Ground) -> str:
    """A path inside the container as one of this machine, if it lies in a volume; else as it is."""
    if path == container.termination_message_path:
        return str(ground.termination_log)
    for mount in sorted(container.volume_mounts, key=lambda mount: -len(mount.mount_path)):
        place = mount.mount_path.rstrip("/")
        if path == place or path.startswith(f"{place}/"):
            return f"{ground.folders[mount.name] / mount.sub_path}{path[len(place) :]}"
    return path


def field_value(ref: FieldRef, pod: Pod, host_ip: str, pod_ip: str) -> str:
    """A field of the pod, as the downward API gives it.

    Raises:
        Unresolved: There is no such field.
    """
    path, metadata = ref.field_path, pod.metadata
    plain = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "metadata.labels": _as_file(metadata.labels),
        "metadata.annotations": _as_file(metadata.annotations),
    }
    if path in plain:
        return plain[path]
    for name, held in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        if path.startswith(f"metadata.{name}['") and path.endswith("']"):
            return held.get(path[len(f"metadata.{name}['") : -2], "")
    raise Unresolved(f"unsupported fieldPath: {path}")


def _from_maps(container: Container, ground: Ground) -> dict[str, str]:
    known: dict[str, str] = {}
    for source in container.env_from:
        for kind, ref in (("configmaps", source.config_map_ref), ("secrets", source.secret_ref)):
            if ref is None:
                continue
            held = ground.maps.get((kind, ref.name))
            if held is None:
                if not ref.optional:
                    raise Unresolved(f'{kind[:-1]} "{ref.name}" not found')
                continue
            known |= {source.prefix + key: value.decode(errors="replace") for key, value in held.items()}
    return known


def _value(variable: EnvVar, container: Container, ground: Ground, known: Mapping[str, str]) -> str | None:
    """The value of one variable; None if it is optional and absent."""
    source = variable.value_from
    if source is None:
        value = kubelet_expand(variable.value, known)
        if variable.name in VERBATIM:
            return value
        return ground.resolve(value if ground.mounted else relocated(value, container, ground))
    if source.field_ref is not None:
        return field_value(source.field_ref, ground.pod, ground.host_ip, ground.pod_ip)
    for kind, ref in (("secrets", source.secret_key_ref), ("configmaps", source.config_map_key_ref)):
        if ref is None:
            continue
        held = ground.maps.get((kind, ref.name))
        if held is not None and ref.key in held:
            return held[ref.key].decode(errors="replace")
        if not ref.optional:
            absent = f"couldn't find key {ref.key} in" if held is not None else "not found:"
            raise Unresolved(f'{absent} {kind[:-1]} "{ref.name}"')
    return None


def _as_file(held: Mapping[str, str]) -> str:
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in held.values())
    return "\n".join(f'{key}="{value}"' for key, value in zip(held, quoted, strict=True))
