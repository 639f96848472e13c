"""What no cluster takes, found before it is asked: so that the reason is ours, and the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.release import Refusal
from flowsched.executor.protocol import Pod

#: Linux takes no longer string in a command or an environment, its end included (MAX_ARG_STRLEN).
LONGEST_STRING: Final = 128 << 10
#: etcd takes 1.5 MiB; the server adds fields, a kubelet a status.
LARGEST_MANIFEST: Final = 1 << 20
#: Kubernetes' own limit, of names and values together.
LARGEST_ANNOTATIONS: Final = 256 << 10
#: As JSON spells it.
_ZERO: Final = b"\\u0000"


def encoded(pod: Pod, manifest: Mapping[str, Any]) -> bytes | Refusal:
    """A pod's manifest as the body of its creation, or why it can be created nowhere.

    What is short as a whole and has no zero byte has no faulty text either; only the rest is looked at one by one.
    """
    try:
        raw = msgspec.json.encode(manifest)
    except UnicodeEncodeError:
        raw = b""
    if 0 < len(raw) < LONGEST_STRING and _ZERO not in raw:
        spec = manifest["spec"]
        containers = [*spec["initContainers"], *spec["containers"]]
        if all(_is_name(variable["name"]) for each in containers for variable in each["env"]):
            return raw
    return fault_of(pod, manifest) or raw


def fault_of(pod: Pod, manifest: Mapping[str, Any]) -> Refusal | None:
    """Why a pod can be created nowhere; None = nothing is wrong with it."""
    spec, metadata = manifest["spec"], manifest["metadata"]
    containers = [*spec["initContainers"], *spec["containers"]]
    for container in containers:
        fault = _strings(container)
        if fault is not None:
            return fault
    annotations = sum(_bytes(key) + _bytes(value) for key, value in metadata["annotations"].items())
    if annotations > LARGEST_ANNOTATIONS:
        return Refusal("StartFailed", f"its annotations have {annotations} bytes, of {LARGEST_ANNOTATIONS}")
    try:
        size = len(msgspec.json.encode(manifest))
    except UnicodeEncodeError:
        return Refusal(
            "StartFailed", f"a text of {pod.name} cannot be encoded: it has a lone surrogate in it"
        )
    if size > LARGEST_MANIFEST:
        return Refusal(
            "StartFailed",
            f"the pod is described by {size} bytes and may be by {LARGEST_MANIFEST}: "
            "a shorter command, environment or list of inputs is needed",
        )
    return None


def _strings(container: Mapping[str, Any]) -> Refusal | None:
    """Commands and variables that no process can be started with."""
    for number, argument in enumerate(container.get("command", ())):
        fault = _string(f"argument {number} of the command", argument, _bytes(argument))
        if fault is not None:
            return fault
    for variable in container["env"]:
        name, value = variable["name"], variable.get("value", "")
        if not _is_name(name):
            return Refusal("StartFailed", f"{name!r} is no name of a variable")
        fault = _string(f"the variable {name}", name + value, _bytes(name) + 1 + _bytes(value))
        if fault is not None:
            return fault
    return None


@lru_cache(maxsize=8192)
def _is_name(name: str) -> bool:
    return bool(name) and "=" not in name and name.isascii() and name.isprintable()


def _string(what: str, text: str, size: int) -> Refusal | None:
    if "\0" in text:
        return Refusal("StartFailed", f"{what} has a zero byte in it")
    if size >= LONGEST_STRING:
        return Refusal("StartFailed", f"{what} has {size} bytes; Linux takes fewer than {LONGEST_STRING}")
    return None


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
