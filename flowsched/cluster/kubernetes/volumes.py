"""Which nodes a pod's volumes tie it to. No I/O.

A claim that is bound brings its volume's node affinity. One that is not bound keeps its pod waiting; where its storage class
waits for the first consumer, we are that consumer: the binding names a node first (`selected-node`), and the volume follows.
"""

from __future__ import annotations

from typing import Any, Final

from flowsched.cluster.kubernetes.objects import (
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from flowsched.cluster.kubernetes.podrules import AnyOf, volume_nodes
from flowsched.cluster.kubernetes.podspec import claims_of
from flowsched.cluster.kubernetes.watch import Batch

DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
WAITS: Final = "WaitForFirstConsumer"


class Volumes:
    """Claims, volumes and classes, as they were seen last."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}

    def changed(self, kind: str, batch: Batch[Any]) -> bool:
        """Take in what a watch shows of `claims`, `volumes` or `classes`; whether anything was new."""
        store: dict[Any, Any] = getattr(self, kind)
        if batch.replaced is not None:
            fresh = {_key(kind, each): each for each in batch.replaced}
            store.clear()
            store.update(fresh)
        for change, each in batch.changed:
            if change == "DELETED":
                store.pop(_key(kind, each), None)
            else:
                store[_key(kind, each)] = each
        return batch.replaced is not None or bool(batch.changed)

    def of(self, pod: Pod) -> tuple[tuple[AnyOf, ...], str]:
        """Node terms of a pod's volumes, and why it cannot be placed at present ("" = it can)."""
        terms: list[AnyOf] = []
        for name in claims_of(pod):
            claim = self.claims.get((pod.metadata.namespace, name))
            if claim is None:
                return (), f"its volume claim {name!r} does not exist"
            if claim.metadata.deletion_timestamp is not None:
                return (), f"its volume claim {name!r} is being deleted"
            if not claim.spec.volume_name or claim.status.phase not in ("Bound", ""):
                if self.waits_for_us(claim):
                    continue
                return (), f"its volume claim {name!r} is not bound to a volume"
            volume = self.volumes.get(claim.spec.volume_name)
            if volume is None:
                return (), f"the volume {claim.spec.volume_name!r} of its claim {name!r} does not exist"
            nodes = volume_nodes(volume)
            if nodes is not None:
                terms.append(nodes)
        return tuple(terms), ""

    def unbound(self, pod: Pod) -> list[PersistentVolumeClaim]:
        """Claims of a pod that get their volume once a node is chosen."""
        found = [self.claims.get((pod.metadata.namespace, name)) for name in claims_of(pod)]
        return [each for each in found if each is not None and not each.spec.volume_name]

    def waits_for_us(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a claim is bound only when it is known where its pod runs."""
        if claim.spec.volume_name:
            return False
        name = claim.spec.storage_class_name
        if name is None:
            name = next(
                (
                    n
                    for n, each in self.classes.items()
                    if each.metadata.annotations.get(DEFAULT_CLASS) == "true"
                ),
                "",
            )
        storage = self.classes.get(name)
        return storage is not None and storage.volume_binding_mode == WAITS


def _key(kind: str, each: Any) -> Any:
    meta = each.metadata
    return (meta.namespace, meta.name) if kind == "claims" else meta.name
