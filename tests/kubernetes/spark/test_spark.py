"""Spark's own Kubernetes client and Volcano step, with our loop as the scheduler: the drivers and executors really run.

An application is a driver that asks for its executors once it runs, so the executors' pods do not exist when the driver is
placed. A scheduler that sees only pods starts every driver and has no room left for any executor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.values import replace
from tests.kubernetes.bound import container
from tests.kubernetes.bound import create as create_pod
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.statuses import Terminated
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving
from tests.kubernetes.spark.spark_world import (
    DRIVER_CONTAINER,
    GROUPS,
    IMAGE,
    History,
    Spark,
    Submitter,
    account,
    find_spark,
    followed,
)

_FOUND = find_spark()

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(isinstance(_FOUND, str), reason=str(_FOUND)),
]


@pytest.fixture
def spark() -> Spark:
    assert isinstance(_FOUND, Spark)
    return _FOUND


@pytest.fixture
async def nodes(
    spark: Spark, client: Client, namespace: str, crds: None, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[HollowNodes]:
    """Nodes of so many cores each, on which Spark's image is a pip-installed pyspark."""
    templates = [
        NodeTemplate(f"{namespace}-{number}", cpu=cpu, memory="16Gi")
        for number, cpu in enumerate(request.param)
    ]
    async with HollowNodes(
        client,
        templates,
        "exec",
        tmp_path / "hollow",
        heartbeat_s=None,
        entry_points={IMAGE: spark.entry_point},
    ) as hollow:
        yield hollow


@pytest.fixture
async def submitter(
    spark: Spark, control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> Submitter:
    token = await account(client, namespace, tmp_path)
    return Submitter(spark, control_plane, namespace, namespace, token, tmp_path)


def settings(namespace: str) -> ClusterSettings:
    return ClusterSettings(
        ReleaseSettings(namespace, "flowsched", "none", b"key", instance=namespace, scheduler_name=namespace)
    )


async def groups(client: Client, namespace: str) -> list[dict[str, Any]]:
    answer = await client.call("GET", f"{GROUPS}/namespaces/{namespace}/podgroups")
    found: list[dict[str, Any]] = json.loads(answer.body)["items"]
    return found


async def finished(running: Running, history: History, applications: int, patience_s: float = 600) -> None:
    """Wait until so many drivers have ended."""

    async def all_ended() -> bool:
        phases = [driver.status.phase for driver in history.drivers().values()]
        return len(phases) == applications and all(phase in ("Succeeded", "Failed") for phase in phases)

    await running.until(all_ended, patience_s=patience_s)


async def completed(running: Running, client: Client, namespace: str, applications: int) -> None:
    """Wait until the status of every group says that all is done."""

    async def told() -> bool:
        phases = [group.get("status", {}).get("phase") for group in await groups(client, namespace)]
        return phases == ["Completed"] * applications

    await running.until(told)


def output(hollow: HollowNodes, driver: Pod) -> str:
    """What a driver wrote."""
    meta = driver.metadata
    folder = hollow.root / "log" / "pods" / f"{meta.namespace}_{meta.name}_{meta.uid}"
    return (folder / DRIVER_CONTAINER / "0.log").read_text()


def assert_pi(hollow: HollowNodes, history: History) -> None:
    """Every driver ended well, and had its executors compute."""
    for driver in history.drivers().values():
        record = hollow.record(driver.metadata.uid)
        assert record is not None
        (state,) = [one.state for one in record.mains]
        assert isinstance(state, Terminated)
        assert state.code == 0, output(hollow, driver)[-4000:]
        assert "Pi is roughly 3." in output(hollow, driver)


def most_up(history: History, application: str) -> int:
    """How many pods of an application were up at a time."""
    return max(moment.count(application) for moment in history.moments)


@pytest.mark.parametrize("nodes", [("3", "1500m")], indirect=True)
async def test_two_applications_take_turns_on_room_for_one_and_a_half(
    api: Connection, client: Client, namespace: str, nodes: HollowNodes, submitter: Submitter, tmp_path: Path
) -> None:
    """The second's driver, and a pod of two cores, wait while cores are idle: they are kept for the first's executors."""
    async with followed(client, namespace) as history, serving(api, settings(namespace), tmp_path) as running:
        await submitter.submit("first")

        async def driver_up() -> bool:
            return any(moment.up.get(("first", "driver")) for moment in history.moments)

        await running.until(driver_up)
        # Three and a half cores are idle, one of them beside the driver.
        wish = container("main", "true", resources={"requests": {"cpu": "2"}})
        await create_pod(client, namespace, "intruder", wish, schedulerName=namespace)
        await submitter.submit("second")
        await finished(running, history, 2)
        await completed(running, client, namespace, 2)
        made = await groups(client, namespace)

    assert_pi(nodes, history)
    assert [group["spec"]["minMember"] for group in made] == [1, 1]
    assert [group["spec"]["minResources"]["cpu"] for group in made] == ["3", "3"]
    assert (most_up(history, "first"), most_up(history, "second")) == (3, 3)
    for name, role, room in (("second", "driver", 1), ("intruder", "", 2)):
        at = history.first(name, role)
        # Once all of the first had been up, and so many cores of it were free again that it has its room without them.
        assert max(moment.count("first") for moment in history.moments[:at]) == 3
        assert history.moments[at].count("first") <= room, history.told()


@pytest.mark.parametrize("nodes", [("2", "2", "2", "2")], indirect=True)
async def test_ten_applications_finish_on_four_nodes(
    api: Connection, client: Client, namespace: str, nodes: HollowNodes, submitter: Submitter, tmp_path: Path
) -> None:
    """Room for two and two thirds: never do three have a driver and lack executors, and all finish."""
    names = [f"app-{number}" for number in range(10)]
    async with followed(client, namespace) as history, serving(api, settings(namespace), tmp_path) as running:
        for name in names:
            await submitter.submit(name)
        await finished(running, history, 10)
        await completed(running, client, namespace, 10)

    assert_pi(nodes, history)
    assert {name: most_up(history, name) for name in names} == dict.fromkeys(names, 3)
    for moment in history.moments:
        hungry = [
            name
            for name in names
            if moment.up.get((name, "driver")) and not moment.done.get((name, "executor"))
        ]
        assert len(hungry) <= 2, history.told()


@pytest.mark.parametrize("nodes", [("2",)], indirect=True)
async def test_two_drivers_that_wait_together_run_one_after_the_other(
    api: Connection, client: Client, namespace: str, nodes: HollowNodes, submitter: Submitter, tmp_path: Path
) -> None:
    """Room for one driver and its executor; both drivers are there before we are."""
    small = replace(submitter, executors=1)
    async with followed(client, namespace) as history:
        await asyncio.gather(*map(small.submit, ("one", "two")))
        async with serving(api, settings(namespace), tmp_path) as running:
            await finished(running, history, 2)
            await completed(running, client, namespace, 2)

    assert_pi(nodes, history)
    for moment in history.moments:
        assert not (moment.up.get(("one", "driver")) and moment.up.get(("two", "driver"))), history.told()
