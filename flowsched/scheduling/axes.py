"""The resources that every node has a row of, in order; extended ones are appended as nodes and pods name them."""

from __future__ import annotations

from typing import Final

#: milli-CPU, bytes, bytes, milli-GPU, bytes/s of node disk bandwidth; extended resources are appended.
AXES: Final = ("cpu", "memory", "disk", "gpu", "io")
IO: Final = AXES.index("io")
#: The extended resource of which every pod of a Kubernetes node takes one.
PODS: Final = "pods"
#: A bound on what strangers' resource names can make of the arrays; pods that ask for more kinds fit nowhere.
MAX_AXES: Final = 64
