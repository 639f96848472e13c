"""The policies that a simulation knows by name: profiles of the engine, and opponents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flowsched.errors import InvalidRequest
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.simulation.clusters import Loss, SimulatedCluster
from flowsched.simulation.rivals import RIVALS, opponent
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import World
from flowsched.values import replace

#: All names.
POLICIES: Final = (*PROFILES, *RIVALS)


def simulated(
    policy: str | Profile,
    cluster: SimulatedCluster,
    workloads: Sequence[Workload],
    losses: Sequence[Loss] = (),
    begun: Callable[[World], None] = lambda _: None,
) -> World:
    """Let workloads run under a policy. Returns the world, with the trace.

    Args:
        policy: A name of `POLICIES`, or a profile for the engine.
        cluster: Where.
        workloads: What.
        losses: Which nodes are lost, and when.
        begun: Is given the world before anything happens in it: another thread may look how far it is.

    Raises:
        ConfigurationError: There is no policy of that name.
        InvalidRequest: It is an opponent, and nodes are lost.
    """
    if losses:
        refuse_losses(policy)
    if isinstance(policy, str):
        if policy not in PROFILES:
            rival = opponent(policy, cluster, workloads)
            begun(rival.world)
            return rival.run()
        policy = PROFILES[policy]
        if (
            not policy.gang
        ):  # one workflow engine submits its tasks one after the other, not many controllers by turns
            policy = replace(policy, interleave=False)
    simulation = Simulation(cluster, workloads, policy, losses=losses)
    begun(simulation.world)
    return simulation.run()


def refuse_losses(policy: str | Profile) -> None:
    """See to it that a policy can go on after a node is lost: opponents cannot.

    Raises:
        InvalidRequest: It is one.
    """
    if policy in RIVALS:
        raise InvalidRequest(
            f"--lose with policy {policy!r}: opponents run nothing again; it can be one of {', '.join(PROFILES)}, or a profile"
        )
