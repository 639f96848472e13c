"""The policies that a simulation knows by name: the profiles of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowsched.errors import ConfigurationError
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.simulation.clusters import Loss, SimulatedCluster
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.learned_plan import LearnedPlan


def simulated(
    policy: str | Profile,
    cluster: SimulatedCluster,
    workloads: Sequence[Workload],
    losses: Sequence[Loss] = (),
    begun: Callable[[World], None] = lambda _: None,
    estimates: Estimates | None = None,
    learned_plan: LearnedPlan | None = None,
) -> World:
    """Let workloads run under a policy. Returns the world, with the trace.

    Args:
        policy: A name of `PROFILES`, or a profile.
        cluster: The cluster.
        workloads: The workloads.
        losses: Which nodes are lost, and when.
        begun: Is given the world before anything happens in it: another thread may look how far it is.
        estimates: The samples of earlier runs; this run adds its own. None = there was no run before.
        learned_plan: The edges of earlier runs; likewise.

    Raises:
        ConfigurationError: There is no policy of that name.
    """
    if isinstance(policy, str):
        if policy not in PROFILES:
            raise ConfigurationError(f"policy {policy!r}: no such profile; there are {', '.join(PROFILES)}")
        policy = PROFILES[policy]
        if (
            not policy.gang
        ):  # one workflow engine submits its tasks one after the other, not many controllers by turns
            policy = replace(policy, interleave=False)
    simulation = Simulation(cluster, workloads, policy, losses=losses)
    if estimates is not None:
        simulation.state.work.estimates = estimates
    if learned_plan is not None:
        simulation.state.work.engines.learned_plan = learned_plan
    begun(simulation.world)
    return simulation.run()
