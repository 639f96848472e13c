"""Container images as datasets: which nodes have those that somebody's pods run. No I/O.

A node lists up to fifty images under several names each; only those that a pod has asked for are told to the engine, whose
catalogue would otherwise hold mostly what nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable

from flowsched.cluster.kubernetes.nodes import IMAGE, images_of
from flowsched.cluster.kubernetes.objects import Node
from flowsched.executor.protocol import ClusterEvent, ReplicaSeen


class Images:
    """The images on nodes, as far as anybody asks for them.

    Args:
        report: Takes events.
    """

    def __init__(self, report: Callable[[ClusterEvent], None]) -> None:
        self._report = report
        self._wanted: set[str] = set()
        self._here: dict[str, dict[str, int]] = {}  #: node -> uri -> bytes
        self._told: set[tuple[str, str]] = set()  #: (uri, node)

    def seen(self, node: Node) -> None:
        """A node as it is now."""
        name = node.metadata.name
        self._here[name] = dict(images_of(node))
        for uri in self._wanted:
            self._tell(uri, name)

    def gone(self, name: str) -> None:
        """A node is no more."""
        self._here[name] = {}
        for uri in self._wanted:
            self._tell(uri, name)
        del self._here[name]

    def wanted(self, image: str | None) -> None:
        """Somebody's pods run this image."""
        uri = f"{IMAGE}{image}" if image else ""
        if not uri or uri in self._wanted:
            return
        self._wanted.add(uri)
        for name in self._here:
            self._tell(uri, name)

    def everything(self) -> list[ClusterEvent]:
        """All that was told, once more."""
        return [ReplicaSeen(uri, node, self._here[node][uri]) for uri, node in sorted(self._told)]

    def _tell(self, uri: str, node: str) -> None:
        size = self._here[node].get(uri)
        if size is not None and (uri, node) not in self._told:
            self._told.add((uri, node))
            self._report(ReplicaSeen(uri, node, size))
        elif size is None and (uri, node) in self._told:
            self._told.discard((uri, node))
            self._report(ReplicaSeen(uri, node, 0, present=False))
