"""What Kustomize and Helm make of deploy/, as plain dicts, and a strict reader of YAML."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kustomize" / "base"
TENANT = DEPLOY / "kustomize" / "tenant"
OVERLAYS = sorted(path.parent for path in (DEPLOY / "kustomize" / "overlays").glob("*/kustomization.yaml"))
CHART = DEPLOY / "helm" / "flowsched"
VOLCANO_CRDS = ROOT / "tests" / "kubernetes" / "crds"

Object = dict[str, Any]
Key = tuple[str, str, str]  #: kind, namespace, name

#: With these the chart says what the base says: the secrets are somebody else's, the namespace is made.
LIKE_THE_BASE = {
    "database.existingSecret.name": "flowsched-database",
    "token.existingSecret.name": "flowsched-token",
    "agentKey.existingSecret.name": "flowsched-agent-key",
    "namespace.create": "true",
}


class StrictLoader(yaml.SafeLoader):  # type: ignore[misc]
    """As PyYAML, but a key that stands twice is an error (PyYAML keeps the last one and says nothing)."""


def _mapping(loader: StrictLoader, node: yaml.MappingNode, deep: bool = False) -> Object:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.constructor.ConstructorError(None, None, f"twice: {sorted(twice)}", node.start_mark)
    loader.flatten_mapping(node)
    found: Object = yaml.SafeLoader.construct_mapping(loader, node, deep=deep)
    return found


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def documents(text: str) -> list[Object]:
    """All documents of a YAML text that are not empty."""
    return [found for found in yaml.load_all(text, StrictLoader) if found is not None]


def rendered_kustomize(kubectl: str, folder: Path) -> str:
    """`kubectl kustomize`."""
    return _said([kubectl, "kustomize", str(folder)])


def rendered_helm(
    helm: str, values: Mapping[str, str] = LIKE_THE_BASE, *, json_values: Sequence[str] = ()
) -> str:
    """`helm template`, as release flowsched in flowsched-system.

    The Kubernetes version is said, since a Helm that is built by `go build` takes it for 1.20 otherwise.
    """
    given = [f"--set={key}={value}" for key, value in values.items()]
    given += [f"--set-json={value}" for value in json_values]
    return _said(
        [helm, "template", "flowsched", str(CHART), "--namespace=flowsched-system", "--kube-version=1.36.0", *given]
    )  # fmt: skip


def _said(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


def by_key(objects: Sequence[Object]) -> dict[Key, Object]:
    """Objects by kind, namespace and name."""
    found = {key_of(each): each for each in objects}
    assert len(found) == len(objects), "an object is there twice"
    return found


def key_of(each: Object) -> Key:
    """Kind, namespace and name of an object."""
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def pod_templates(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """(name of the workload, its pod template), of everything that has one."""
    for each in objects:
        if each["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            yield each["metadata"]["name"], each["spec"]["template"]


def without_labels(each: Object) -> Object:
    """An object without its own labels and annotations, and only those of its pods' labels that its selector asks for."""
    bare = deepcopy(each)
    kept = {
        key: value
        for key, value in bare["metadata"].pop("labels", {}).items()
        if key.startswith(("pod-security.kubernetes.io/", "flowsched.io/"))
    }
    bare["metadata"]["labels"] = kept
    bare["metadata"].pop("annotations", None)
    template = bare["spec"].get("template") if isinstance(bare.get("spec"), dict) else None
    if template is not None:
        wanted = bare["spec"]["selector"]["matchLabels"]
        labels = template["metadata"]["labels"]
        template["metadata"]["labels"] = {key: labels.get(key) for key in wanted}
    return bare
