"""Where a pod may run at all: the labels it selects, the taints it tolerates. As Kubernetes reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.snapshot import Snapshot

#: A taint of another effect (PreferNoSchedule) is a wish, and keeps nobody away.
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


def node_selector(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes that carry every (label, value) the shape selects."""
    key = ("selector", shape.selector)
    if key not in snapshot.cache:
        mask = np.ones(len(snapshot), dtype=np.bool_)
        for name, value in shape.selector:
            mask &= np.array([labels.get(name) == value for labels in snapshot.labels], dtype=np.bool_)
        snapshot.cache[key] = mask
    found: NDArray[np.bool_] = snapshot.cache[key]
    return found, "lack the label " + ", ".join(f"{name}={value}" for name, value in shape.selector)


def node_taints(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes all of whose hard taints the shape tolerates."""
    key = ("tolerations", shape.tolerations)
    if key not in snapshot.cache:
        judged = [
            all(_tolerated(taint, shape.tolerations) for taint in taints) for taints in snapshot.taint_sets
        ]
        snapshot.cache[key] = np.array(judged, dtype=np.bool_)[snapshot.taint]
    mask: NDArray[np.bool_] = snapshot.cache[key]
    return mask, "have a taint it does not tolerate"


def _tolerated(taint: tuple[str, str, str], tolerations: tuple[tuple[str, str, str, str], ...]) -> bool:
    key, value, effect = taint
    if effect not in _HARD_EFFECTS:
        return True
    return any(
        (not wanted_effect or wanted_effect == effect)
        and (wanted_key == key or (not wanted_key and operator == "Exists"))
        and (operator == "Exists" or wanted_value == value)
        for wanted_key, operator, wanted_value, wanted_effect in tolerations
    )
