"""What other operators create, from `thirdparty/*.yaml`: objects to be read, or to be made on an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import yaml

from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import (
    CoschedulingPodGroup,
    Form,
    NativePodGroup,
    VolcanoPodGroup,
)

FOLDER = Path(__file__).parent / "thirdparty"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

KINDS: dict[str, type[Any]] = {
    Form.NATIVE_ALPHA: NativePodGroup,
    Form.NATIVE_BETA: NativePodGroup,
    Form.SCHEDULER_PLUGINS: CoschedulingPodGroup,
    Form.VOLCANO: VolcanoPodGroup,
}


def load(name: str, namespace: str = "lab") -> list[dict[str, Any]]:
    """All objects of a file, in a namespace, in the order in which the operator creates them."""
    made = []
    for document in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()):
        copies = document.pop("copies", 1)
        document["metadata"]["namespace"] = namespace
        made += [json.loads(json.dumps(document).replace("{i}", str(number))) for number in range(copies)]
    return made


def pods(name: str) -> list[Pod]:
    """Its pods, as they are read."""
    return [msgspec.convert(each, Pod) for each in load(name) if each["kind"] == "Pod"]


def group(name: str) -> tuple[Form, Any]:
    """Its one PodGroup, as it is read."""
    (raw,) = [each for each in load(name) if each["kind"] == "PodGroup"]
    form = Form(raw["apiVersion"])
    return form, msgspec.convert(raw, KINDS[form])
