"""Two services on one PostgreSQL and one real API server: one leads, and who led before changes nothing (rows 13, 15, 17, 19)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.errors import FlowschedError
from tests.crash.harness import Nursery
from tests.kubernetes.conftest import require
from tests.kubernetes.faults.services import PATIENCE_S, Service, nursing
from tests.kubernetes.faults.witness import Life
from tests.kubernetes.faults.world import ENDLESS, World, bag, document, gang
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, ControlPlane
from tests.kubernetes.proxy import Proxy, through
from tests.postgres import fresh_postgres, postgres_server, start_or_skip  # noqa: F401

pytestmark = [pytest.mark.kubernetes, pytest.mark.postgresql, pytest.mark.slow]

LEASE_S = 5.0


@pytest.fixture
async def nursery() -> AsyncIterator[Nursery]:
    async with nursing() as nursery:
        yield nursery


async def ready(service: Service, status: int = 200, words: str = "") -> None:
    """Wait until it answers /readyz with this status and these words. A standby is ready, too."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{service.url}/readyz") as answer:
                    if answer.status == status and words in await answer.text():
                        return
            assert not service.dead(), service.tail()
            await asyncio.sleep(0.1)


async def asked(service: Service, path: str) -> tuple[int, str]:
    """What it answers."""
    async with aiohttp.ClientSession() as session, session.get(f"{service.url}{path}") as answer:
        return answer.status, await answer.text()


def of_epoch(world: World, epoch: int) -> list[Life]:
    """Pods of tasks that a leader of this epoch has made."""
    return [
        life for life in world.witness.tasks() if life.pod.metadata.labels["flowsched.io/epoch"] == str(epoch)
    ]


async def test_fault_13_a_leader_that_is_paused_in_mid_write(
    control_plane: ControlPlane,
    world: World,
    nursery: Nursery,
    tmp_path: Path,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """The leader stands still for three lease times while its requests are on their way: creates of its own pods, and the binding
    of somebody else's. Another leads, gives up on what is not there, and has it made anew. Then the late requests arrive: a pod
    that is made is never bound, and is removed; the foreign pod is not bound (its version is another one). Awake again, the old
    leader sees that it leads no more.
    """
    database, config = fresh_postgres(), control_plane.kubeconfig()
    async with Proxy(world.connection) as proxy:
        by_proxy = through(config, proxy, tmp_path / "by-proxy.json")
        old = Service(nursery, tmp_path / "old", by_proxy, world.namespace, database=database, short=True)
        new = Service(nursery, tmp_path / "new", config, world.namespace, database=database, short=True)
        try:
            old.start()
            await ready(old)
            await old.ended(await old.submit(document(bag(6, cpu=0.1, name="warm")), "warm"))
            new.start()
            await ready(new)
            for node in world.nodes:
                await world.hollow.cordon(node)
            await world.talk.post(world.talk.pods, foreign(world))
            await asyncio.sleep(1)

            proxy.asking = False
            await world.hollow.cordon(world.nodes[0], cordoned=False)
            workflow = await new.submit(document(gang(2), bag(1)), "work")
            await begun(new, workflow)
            await until(lambda: proxy.kept >= 4)  # the Lease, the gang's Service, the bag's pod, the binding
            old.signal(signal.SIGSTOP)
            stopped = time.monotonic()
            await world.hollow.cordon(
                world.nodes[0]
            )  # the next leader has no room for anybody, so nobody binds
            first = len(of_epoch(world, 1))
            assert not world.witness.tasks("bag")

            # The next leader ends what has not been made, and fences what may yet be bound.
            await given_up(new, workflow)
            await world.witness.until(lambda: fenced(world))
            await asyncio.sleep(max(0.0, stopped + 3 * LEASE_S - time.monotonic()))
            proxy.asking = True  # what was on its way arrives
            await world.witness.until(lambda: len(of_epoch(world, 1)) > first)
            await asyncio.sleep(1.5)
            late = [life for life in of_epoch(world, 1) if life.name == f"fs-{workflow}-bag-0-0"]
            assert [life.pod.spec.node_name for life in late] == [""]
            assert not on_node(world), "a leader that had been deposed has bound a pod"

            for node in world.nodes:
                await world.hollow.cordon(node, cordoned=False)
            await world.witness.until(lambda: on_node(world), PATIENCE_S)
            old.signal(signal.SIGCONT)
            await until(old.dead)
            assert "the service stops: another process leads now" in old.tail()
            assert "Traceback" not in old.tail()
            assert (await new.ended(workflow)).state == "SUCCEEDED"
            await until(lambda: late[0].gone)
            assert not late[0].started
            world.witness.judge()
        finally:
            old.signal(signal.SIGCONT) if not old.dead() else None
            await old.close()
            await new.close()


async def begun(service: Service, workflow: str) -> None:
    """Wait until the first attempt of the bag's task is stored: its create follows."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await service.client.task(workflow, "bag", 0)).attempts:
            await asyncio.sleep(0.02)


async def given_up(service: Service, workflow: str) -> None:
    """Wait until the first attempt of the bag's task has ended without a pod."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(FlowschedError):
                task = await service.client.task(workflow, "bag", 0)
                if task.attempts and task.attempts[0].reason == "NotLaunched":
                    return
            await asyncio.sleep(0.1)


async def test_fault_24_changes_of_the_leader_under_a_quota(
    control_plane: ControlPlane,
    world: World,
    nursery: Nursery,
    tmp_path: Path,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """Ten pods are allowed, and eighty tasks wait. The leader is killed, the next one is told to end: each successor goes on, and a
    cancel ends. Real API server, and the controller that counts.
    """
    require(CONTROLLER_MANAGER)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": "10"}},
    }
    database, config = fresh_postgres(), control_plane.kubeconfig()
    one, other = (
        Service(nursery, tmp_path / name, config, world.namespace, database=database, short=True)
        for name in ("one", "other")
    )
    world.fates["long"] = ENDLESS
    counting = await control_plane.controller_manager(("resourcequota-controller",))
    try:
        assert (await world.talk.post(f"{world.talk.here}/resourcequotas", quota))[0] == 201
        one.start()
        await ready(one)
        other.start()
        await ready(other)
        work = await one.submit(document(bag(60, cpu=0.05)), "work")
        long = await one.submit(document(bag(20, cpu=0.05, name="long")), "long")
        await world.witness.until(lambda: len(world.witness.tasks()) >= 10)
        await one.kill()
        one.start()
        await world.witness.until(lambda: of_epoch(world, 2))
        other.signal(signal.SIGTERM)
        await until(other.dead)
        await world.witness.until(lambda: of_epoch(world, 3))
        await one.client.cancel(long)
        assert (await one.ended(long)).state == "CANCELLED"
        assert (await one.ended(work)).state == "SUCCEEDED"
        world.witness.judge()
    finally:
        counting.kill()
        await one.close()
        await other.close()


def foreign(world: World) -> dict[str, object]:
    """A pod that somebody else made and leaves to us to place."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "foreign"},
        "spec": {"schedulerName": world.namespace, "containers": [container]},
    }


def of_foreign(world: World) -> list[Pod]:
    """The foreign pod; other tests have left some of that name in namespaces of theirs."""
    pods = [life.pod for life in world.witness.lives.values()]
    return [
        pod
        for pod in pods
        if pod.metadata.name == "foreign" and pod.metadata.namespace == world.talk.namespace
    ]


def on_node(world: World) -> bool:
    """Whether the foreign pod has been bound."""
    return any(pod.spec.node_name for pod in of_foreign(world))


def fenced(world: World) -> bool:
    """Whether the foreign pod has been looked at by another leader."""
    return any("flowsched.io/fenced-by" in pod.metadata.annotations for pod in of_foreign(world))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.05)


async def test_fault_15_17_two_replicas_accept_together_and_one_gives_up(
    control_plane: ControlPlane,
    world: World,
    nursery: Nursery,
    tmp_path: Path,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """Twelve workflows are sent to both replicas at the same time, with the same keys: each is accepted once. The leader's first
    launch raises, which it survives; then it is told to end in the middle of the work, gives its lease back, and the other leads,
    and takes three more.
    All end well, and nothing runs twice.
    """
    database, config = fresh_postgres(), control_plane.kubeconfig()
    services = [
        Service(nursery, tmp_path / name, config, world.namespace, database=database)
        for name in ("one", "other")
    ]
    one, other = services
    try:
        one.start("launch.before=raise:no space left on device@1")
        await ready(one)
        other.start()
        await ready(other)
        work = document(bag(2, cpu=0.1), gang(2, cpu=0.1, needs=["bag"]))
        sent = [service.submit(work, f"key-{number}") for number in range(12) for service in services]
        ids = await asyncio.gather(*sent)
        assert len(set(ids)) == 12
        assert ids[0::2] == ids[1::2]
        await world.witness.until(lambda: [life for life in world.witness.tasks("train") if life.started])
        one.signal(signal.SIGTERM)
        await until(one.dead)
        ids += await asyncio.gather(*(other.submit(work, f"later-{number}") for number in range(3)))
        views = await asyncio.gather(*(other.ended(each) for each in sorted(set(ids))))
        assert {view.state for view in views} == {"SUCCEEDED"}
        assert len([view async for view in other.client.list()]) == 15
        assert {life.pod.metadata.labels["flowsched.io/epoch"] for life in world.witness.tasks()} == {
            "1",
            "2",
        }
        # What the first had begun to remove is a stray for the second, which gives it time before it is removed.
        ends = time.monotonic() + PATIENCE_S
        while left := await world.leftovers():
            assert time.monotonic() < ends, left
            await asyncio.sleep(0.3)
        world.witness.judge()
    finally:
        for service in services:
            await service.close()


async def test_fault_19_a_database_outage_takes_neither_replica_down(
    control_plane: ControlPlane, world: World, nursery: Nursery, tmp_path: Path
) -> None:
    """Both wait for longer than a lease: they are alive, not ready, and read what they remember. When the database is back, one of
    them leads on.
    """
    server = await asyncio.to_thread(start_or_skip, fsync=True)
    database, config = server.fresh(), control_plane.kubeconfig()
    one, other = (
        Service(nursery, tmp_path / name, config, world.namespace, database=database, short=True)
        for name in ("one", "other")
    )
    try:
        one.start()
        await ready(one, words="ok")
        other.start()
        await ready(other)
        assert (await one.ended(await one.submit(document(bag(3)), "before"))).state == "SUCCEEDED"
        await asyncio.to_thread(server.kill)
        for each in (one, other):
            await ready(each, 503, "database")
        await asyncio.sleep(1.5 * LEASE_S)
        for each in (one, other):
            assert not each.dead(), each.tail()
            assert (await asked(each, "/livez"))[0] == 200
        assert f'"{world.nodes[0]}"' in (await asked(one, "/api/v1/nodes"))[1]
        await asyncio.to_thread(server.start)
        await ready(other)
        assert (await other.ended(await other.submit(document(bag(3)), "after"))).state == "SUCCEEDED"
        world.witness.judge()
    finally:
        await one.close()
        await other.close()
        await asyncio.to_thread(server.remove)
