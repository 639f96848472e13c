"""The resources that every node has a row of, in order; extended ones are appended as nodes and pods name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: milli-CPU, bytes, bytes, milli-GPU, bytes/s of node disk bandwidth; extended resources are appended.
AXES: Final = ("cpu", "memory", "disk", "gpu", "io")
IO: Final = AXES.index("io")
#: The extended resource of which every pod of a Kubernetes node takes one.
PODS: Final = "pods"
#: A bound on what strangers' resource names can make of the arrays; pods that ask for more kinds fit nowhere.
MAX_AXES: Final = 64
#: Disk space is plentiful and bandwidth has a cost of its own: neither says how full a node is. Nor does a count of pods.
UNPACKED: Final = ("disk", "io", PODS)


def packing_axes(names: Sequence[str]) -> tuple[bool, ...]:
    """(R,) whether an axis says how full a node is."""
    return tuple([name not in UNPACKED for name in names])
