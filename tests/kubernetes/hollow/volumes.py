"""A pod's volumes as folders, laid out as a kubelet does: `<root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>`.

Each node has its own host folders below `<root>/host/<node>`, so that agents of several nodes do not share a cache; but what
a kubelet keeps (`/var/lib/kubelet`, `/var/log/pods`) is that of all hollow nodes. Claims are folders that all nodes share.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kubernetes.hollow.environment import Maps, Unresolved
from tests.kubernetes.hollow.spec import (
    KeyToPath,
    MapSource,
    Pod,
    Volume,
)

#: Where a kubelet keeps its things, and where a hollow one does, below its root.
_KUBELETS: Final[Mapping[str, str]] = {"/var/lib/kubelet": "", "/var/log": "log"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod's files are.

    Args:
        root: Of all hollow nodes of this process.
        pod: Whose.
        host_ip: Address of its node.
        pod_ip: Its own.
    """

    root: Path
    pod: Pod
    host_ip: str
    pod_ip: str

    @property
    def folder(self) -> Path:
        """The pod's own folder."""
        return self.root / "pods" / self.pod.metadata.uid

    @property
    def logs(self) -> Path:
        """Where its containers' logs go, in folders of their names."""
        metadata = self.pod.metadata
        return self.root / "log" / "pods" / f"{metadata.namespace}_{metadata.name}_{metadata.uid}"

    def volume(self, kind: str, name: str) -> Path:
        """The folder of a volume."""
        return self.folder / "volumes" / f"kubernetes.io~{kind}" / name

    def host(self, path: str) -> Path:
        """The folder that stands for one of the node's."""
        for theirs, ours in _KUBELETS.items():
            if path == theirs or path.startswith(f"{theirs}/"):
                return self.root / ours / path[len(theirs) :].lstrip("/")
        return self.root / "host" / self.pod.spec.node_name / path.lstrip("/")

    def claim(self, name: str) -> Path:
        """The folder that stands for a claim's volume."""
        return self.root / "claims" / self.pod.metadata.namespace / name


def references(pod: Pod) -> Iterator[tuple[str, str]]:
    """The Secrets and ConfigMaps that the pod's volumes need, as keys of `Maps`."""
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            yield "configmaps", volume.config_map.name
        if volume.secret is not None:
            yield "secrets", volume.secret.secret_name


def mounted(place: Place, maps: Maps) -> dict[str, Path]:
    """Make the folders of a pod's volumes and fill them: volume -> folder.

    Raises:
        Unresolved: Something that a volume holds is not there, or its kind is not known here.
    """
    folders: dict[str, Path] = {}
    for volume in place.pod.spec.volumes:
        folder = _folder(volume, place)
        folder.mkdir(parents=True, exist_ok=True)
        folders[volume.name] = folder
        for kind, source in (("configmaps", volume.config_map), ("secrets", volume.secret)):
            for path, content in _keys(kind, source, maps) if source is not None else ():
                _write(folder, path, content)
    return folders


def removed(place: Place) -> None:
    """Remove the pod's own folder with all that its volumes held. Logs stay."""
    shutil.rmtree(place.folder, ignore_errors=True)


def _folder(volume: Volume, place: Place) -> Path:
    if volume.empty_dir is not None:
        return place.volume("empty-dir", volume.name)
    if volume.host_path is not None:
        return place.host(volume.host_path.path)
    if volume.persistent_volume_claim is not None:
        return place.claim(volume.persistent_volume_claim.claim_name)
    for kind, source in (
        ("configmap", volume.config_map),
        ("secret", volume.secret),
    ):
        if source is not None:
            return place.volume(kind, volume.name)
    raise Unresolved(f'volume "{volume.name}" is of a kind that hollow nodes do not have')


def _keys(kind: str, source: MapSource, maps: Maps) -> Iterator[tuple[str, bytes]]:
    name = source.name or source.secret_name
    held = maps.get((kind, name))
    if held is None:
        if source.optional:
            return
        raise Unresolved(f'{kind[:-1]} "{name}" not found')
    for item in source.items or tuple(KeyToPath(key, key) for key in held):
        if item.key in held:
            yield item.path, held[item.key]
        elif not source.optional:
            raise Unresolved(f'{kind[:-1]} "{name}" has no key {item.key}')


def _write(folder: Path, path: str, content: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
