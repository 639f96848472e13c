"""What executors promise, on real nodes: kubelets run the pods, the agents are those of the chart.

Chosen are the promises that a kubelet, its container runtime, its mounts or the network between nodes have a part in. The others
are kept by the same code against the same API server, on hollow nodes (tests/kubernetes/test_contract.py).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

import pytest

from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from tests.executors.executor_contract import OUTSIDE, ExecutorContract, World, contained, program
from tests.images import FLOWSCHED, image
from tests.kubernetes.nodes.cluster import PATIENCE_S
from tests.kubernetes.nodes.installed import AGENT_KEY, Installation
from tests.kubernetes.promises import Corner, asked_for, shown

#: Those first that a kubelet takes 30 s for.
CHOSEN = (
    "test_a_timeout",
    "test_a_container_task_that_takes_too_long",
    "test_a_pod_starts_and_ends_with_its_outputs",
    "test_an_output_can_be_read",
    "test_a_failed_pod_publishes_nothing",
    "test_an_output_that_is_not_there",
    "test_launching_twice_is_launching_once",
    "test_a_running_pod_is_released",
    "test_a_pod_that_ends_well_within_its_grace_has_done_its_work",
    "test_a_launch_and_a_release_at_once",
    "test_a_restarted_service_adopts_what_runs",
    "test_bytes_travel_from_their_origin_and_between_nodes",
    "test_an_input_that_is_not_on_the_node",
    "test_an_output_is_there_for_the_next_pod",
    "test_a_container_task_reports_its_steps",
    "test_a_step_that_fails_ends_a_container_task",
    "test_a_container_task_is_released",
)
#: More at a time would wait for the two cores of this machine.
AT_ONCE = 5


class OnRealNodes(ExecutorContract):
    """With real kubelets, containerd and images."""

    async def test_a_running_pod_is_released(self, world: World) -> None:
        """As elsewhere, but by SIGKILL: the first process of a container gets SIGTERM only if it has a handler for it."""
        cluster, ear, _ = await world.open()
        await cluster.launch(
            [program("a", "sleep 60"), program("b", "trap 'exit 143' TERM; sleep 60 & wait", index=1)]
        )
        await ear.started("a")
        await ear.started("b")
        await cluster.release(["a", "b"], 2000)
        ends = [await ear.ended("a"), await ear.ended("b")]
        assert [(end.exit_code, end.reason) for end in ends] == [(137, "Released"), (143, "Released")]
        assert len(ear.finals("a")) == 1

    async def test_a_container_task_that_takes_too_long(self, world: World) -> None:
        """As above, once the 30 s are over that the kubelet gives a pod beyond its deadline."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", timeout_ms=12_000)])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (143, "Timeout")
        assert [step.exit_code for step in end.container.steps] == [137]

    async def test_a_container_task_is_released(self, world: World) -> None:
        """As above."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", "true")])
        await ear.started("a")
        await cluster.release(["a"], 2000)
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason, len(end.container.steps)) == (137, "Released", 1)


@pytest.fixture(scope="module")
def outcomes(installed: Installation, request: pytest.FixtureRequest) -> Mapping[str, BaseException | None]:
    """What became of each promise, all of them in one namespace."""
    namespace = f"contract-{secrets.token_hex(3)}"
    kubectl = installed.cluster.kubectl
    kubectl("create", "namespace", namespace)
    kubectl("-n", namespace, "wait", "--for=create", "serviceaccount/default", f"--timeout={PATIENCE_S}s")
    release = ReleaseSettings(
        namespace=namespace, our_image=FLOWSCHED, default_image=image("debian").name, agent_key=AGENT_KEY.encode(),
        scheduler_name="contract",
    )  # fmt: skip

    def corner(prefix: str) -> Corner:
        prefix = f"{namespace}-{prefix}"
        (installed.origin_folder / f"{prefix}outside.txt").write_bytes(OUTSIDE)
        there = f"{installed.origin}/{prefix}"
        settings = ClusterSettings(release, AGENT_KEY)
        return Corner(
            installed.cluster.connection, settings, prefix, f"{there}outside.txt", f"{there}nothing.txt"
        )

    with asyncio.Runner() as runner:
        ends = runner.run(shown(OnRealNodes, list(asked_for(request)), corner, AT_ONCE))
    kubectl("delete", "namespace", namespace, "--wait=false")
    return ends


@pytest.mark.parametrize("promise", CHOSEN)
def test_on_real_nodes(promise: str, outcomes: Mapping[str, BaseException | None]) -> None:
    """As the promise's own docstring says. The first test waits for all promises."""
    if (error := outcomes[promise]) is not None:
        raise error
