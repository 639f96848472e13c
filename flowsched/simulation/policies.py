"""The policies that a simulation knows by name: profiles of the engine, and opponents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flowsched.scheduling.framework import PROFILES, Profile
from flowsched.simulation.reference import SimulatedCluster
from flowsched.simulation.rivals import RIVALS, run
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import World

#: All names.
POLICIES: Final = (*PROFILES, *RIVALS)


def simulated(policy: str | Profile, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> World:
    """Let workloads run under a policy. Returns the world, with the trace.

    Args:
        policy: A name of `POLICIES`, or a profile for the engine.
        cluster: Where.
        workloads: What.

    Raises:
        ConfigurationError: There is no policy of that name.
    """
    if isinstance(policy, str):
        if policy not in PROFILES:
            return run(policy, cluster, workloads)
        policy = PROFILES[policy]
        if (
            not policy.gang
        ):  # one workflow engine submits its tasks one after the other, not many controllers by turns
            policy = replace(policy, interleave=False)
    return Simulation(cluster, workloads, policy).run()
