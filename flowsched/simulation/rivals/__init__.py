"""Policies of others, to compare with: they decide over a `World` directly, and are no part of what flowsched does.

An opponent sees what a scheduler may see: the DAG, sizes of files that exist, free cores, which node holds which files, and the
mean of what tasks of a category took before. It never sees a compute time before that task has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flowsched.errors import ConfigurationError
from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.rivals.blind import Blind
from flowsched.simulation.rivals.heft import Heft
from flowsched.simulation.rivals.opponent import Opponent
from flowsched.simulation.rivals.wow import Wow
from flowsched.simulation.workload import Workload

#: The opponents by name.
RIVALS: Final[Mapping[str, Callable[[SimulatedCluster, Sequence[Workload]], Opponent]]] = {
    "blind": Blind,
    "heft": Heft,
    "wow": Wow,
}


def opponent(policy: str, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> Opponent:
    """An opponent in a world in which nothing has happened yet.

    Raises:
        ConfigurationError: There is no such opponent.
    """
    made = RIVALS.get(policy)
    if made is None:
        raise ConfigurationError(f"policy {policy!r}: no such opponent; there are {', '.join(RIVALS)}")
    return made(cluster, workloads)
