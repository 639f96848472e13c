"""The Pod Security Standard `restricted`, offline: what the API server's admission would say of a manifest.

Written from k8s.io/pod-security-admission v0.36.3 (policy/check_*.go, the newest version of each check), and held to that
library's own fixtures by `test_manifests`. Every violation is told, each with the check's id and the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_PROFILES = {"RuntimeDefault", "Localhost"}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def violations(pod: Json) -> list[str]:
    """Everything for which a namespace of level `restricted` would refuse this pod; empty = it is admitted."""
    spec = pod["spec"]
    windows = (spec.get("os") or {}).get("name") == "windows"
    own_users = spec.get("hostUsers") is False
    found = [*_of_the_pod(pod), *_volumes(spec)]
    for where, context in _contexts(spec):
        found += [f"{check} at {where}" for check in _of_a_context(context, own_users)]
    for container in _containers(spec):
        found += [f"{check} at {container['name']}" for check in _of_a_container(container)]
        if not windows:
            found += [f"{check} at {container['name']}" for check in _of_a_linux_container(container)]
    found += _inherited(spec, "runAsNonRoot", lambda context: context.get("runAsNonRoot"), own_users)
    found += _inherited(spec, "seccompProfile", lambda context: context.get("seccompProfile"), windows)
    return found


def _containers(spec: Json) -> Iterator[Json]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind) or ()


def _contexts(spec: Json) -> Iterator[tuple[str, Json]]:
    """Every security context, the pod's first."""
    yield "pod", spec.get("securityContext") or {}
    for container in _containers(spec):
        yield container["name"], container.get("securityContext") or {}


def _of_the_pod(pod: Json) -> Iterator[str]:
    spec = pod["spec"]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"hostNamespaces: {field}"
    for sysctl in (spec.get("securityContext") or {}).get("sysctls") or ():
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctls: {sysctl['name']}"
    for key, value in (pod.get("metadata", {}).get("annotations") or {}).items():
        if key.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"appArmorProfile: {key}"


def _volumes(spec: Json) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        sources = {kind for kind in volume if kind != "name" and volume[kind] is not None}
        if sources - _VOLUMES:  # none at all is an emptyDir
            yield f"restrictedVolumes: {volume['name']}"


def _of_a_context(context: Json, own_users: bool) -> Iterator[str]:
    """What pods and containers alike must not say."""
    if context.get("runAsUser") == 0 and not own_users:
        yield "runAsUser: 0"
    if context.get("runAsNonRoot") is False and not own_users:
        yield "runAsNonRoot: false"
    options = context.get("seLinuxOptions") or {}
    if options.get("type", "") not in _SELINUX or options.get("user") or options.get("role"):
        yield "seLinuxOptions"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield "windowsHostProcess"
    for field in ("seccompProfile", "appArmorProfile"):
        profile = context.get(field)
        if profile is not None and profile.get("type") not in _PROFILES:
            yield field


def _of_a_container(container: Json) -> Iterator[str]:
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        yield "privileged"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield "hostPorts"
    handlers = [container.get(name) or {} for name in ("livenessProbe", "readinessProbe", "startupProbe")]
    lifecycle = container.get("lifecycle") or {}
    handlers += [lifecycle.get(name) or {} for name in ("postStart", "preStop")]
    for handler in handlers:
        if any((handler.get(kind) or {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield "hostProbesAndHostLifecycle"


def _of_a_linux_container(container: Json) -> Iterator[str]:
    context = container.get("securityContext") or {}
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "capabilities: drop"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "capabilities: add"


def _inherited(spec: Json, check: str, said: Any, exempt: bool) -> Iterator[str]:
    """What the pod says for all containers, or each of them for itself."""
    if exempt or said(spec.get("securityContext") or {}):
        return
    for container in _containers(spec):
        if said(container.get("securityContext") or {}) is None:
            yield f"{check} is not said at {container['name']}"
