"""Nodes that a simulation loses: which, and when, as people ask for it (`n3@600`, `n3@600-1200`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from flowsched.errors import InvalidRequest
from flowsched.simulation.reference import SimulatedCluster

_ASKED: Final = re.compile(r"(?P<node>.+)@(?P<at>\d+(?:\.\d+)?)(?:-(?P<back>\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Loss:
    """A node (its number) is lost at a moment, with all that runs and lies on it. Seconds; it comes back empty, or never (None)."""

    node: int
    at_s: float
    back_s: float | None = None


def losses_of(asked: Sequence[str], cluster: SimulatedCluster) -> tuple[Loss, ...]:
    """Read what shall be lost: `NODE@SECONDS`, or `NODE@SECONDS-SECONDS` if the node comes back.

    Raises:
        InvalidRequest: One cannot be read, its node is not in the cluster, or it is lost while it is gone.
    """
    numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
    losses = [_loss(text, numbers) for text in asked]
    losses.sort(key=lambda loss: (loss.node, loss.at_s))
    for first, second in pairwise(losses):
        if first.node == second.node and (first.back_s is None or first.back_s >= second.at_s):
            name = cluster.nodes[first.node].name
            raise InvalidRequest(
                f"--lose: {name} cannot be lost at {second.at_s:g} s, it is gone since {first.at_s:g} s"
            )
    return tuple(losses)


def _loss(text: str, numbers: dict[str, int]) -> Loss:
    found = _ASKED.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"--lose {text!r}: NODE@SECONDS was expected, as n3@600, or n3@600-1200 if it comes back"
        )
    if found["node"] not in numbers:
        some = ", ".join(list(numbers)[:8])
        raise InvalidRequest(
            f"--lose {text!r}: the cluster has no node {found['node']!r}; it has {some} ({len(numbers)} in all)"
        )
    at, back = float(found["at"]), None if found["back"] is None else float(found["back"])
    if back is not None and back <= at:
        raise InvalidRequest(f"--lose {text!r}: it comes back at {back:g} s, which is not after {at:g} s")
    return Loss(numbers[found["node"]], at, back)
