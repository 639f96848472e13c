"""Who leads where the API server or its rights are away, and where two databases are used with one cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.control.leading import leadership
from flowsched.errors import LeadershipLost, Unavailable
from flowsched.values import replace
from tests.kubernetes.fake import FakeApi, answering, status_body, when
from tests.kubernetes.faults.world import ENDLESS, UNDISTURBED, World, bag, document
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.service_world import Running, serving
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401

LEASE_S = 3.0
FORBIDDEN = status_body(403, 'leases.coordination.k8s.io "work" is forbidden: User "x" cannot update it')


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of three seconds."""
    monkeypatch.setattr(leadership, "LEASE_MS", int(LEASE_S * 1000))
    monkeypatch.setattr(leadership, "RENEW_S", 0.4)


def refuse(proxy: Proxy) -> Any:
    return proxy.refuse()


async def silence(proxy: Proxy) -> None:
    proxy.asking = proxy.answering = False


async def the_lease(world: World) -> dict[str, Any]:
    """The Lease of the installation, as it is in the cluster."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/{world.namespace}"
    answer = await world.client.call("GET", path)
    assert answer.status == 200, answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


def standing_by(running: Running) -> bool:
    return bool(running.leader.leadership.standing_by)


async def lost(running: Running) -> None:
    """Wait until the process has ended since another one leads."""
    async with asyncio.timeout(60):
        with pytest.raises(BaseExceptionGroup) as ended:
            await running.leading
    assert ended.value.subgroup(LeadershipLost) is not None


class Replicas:
    """Services of one installation."""

    def __init__(self, world: World, database: str | None = None) -> None:
        self._world = world
        self._database = database
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def start(self, name: str, through: Connection | None = None, **settings: Any) -> Running:
        """One more."""
        world, settings = self._world, {"database": self._database, **settings}
        service = serving(through or world.connection, world.settings(), world.folder / name, **settings)
        return await self._stack.enter_async_context(service)

    async def proxy(self) -> Proxy:
        return await self._stack.enter_async_context(Proxy(self._world.connection))


@pytest.mark.kubernetes
@pytest.mark.postgresql
@pytest.mark.parametrize("cut", [refuse, silence])
async def test_a_leader_that_cannot_reach_the_api_server_is_replaced(
    world: World,
    cut: Callable[[Proxy], Any],
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """Its path is refused, or silent. It says so and is alive; the standby, whose path is well, leads and does the work."""
    async with Replicas(world, fresh_postgres()) as replicas:
        proxy = await replicas.proxy()
        one = await replicas.start("one", proxy.connection)
        other = await replicas.start("other")
        assert one.leader.leadership.epoch == 1
        await cut(proxy)
        made = await one.service.submit(document(bag(3)))
        assert (await other.ended(made.id, 60)).state == "SUCCEEDED"
        assert other.leader.leadership.epoch == 2
        await lost(one)
        assert {life.pod.metadata.labels["flowsched.io/epoch"] for life in world.witness.tasks()} == {"2"}
        await world.nothing_left(other)


@pytest.mark.postgresql
async def test_a_leader_whose_rights_are_taken_away_is_replaced(
    fake_world: World,
    fake: FakeApi,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """It has lost its account, say: the API server refuses all that it asks. The standby's own account is well."""
    body = status_body(403, "pods is forbidden: User cannot list resource pods")

    def refused(request: Any) -> Any:
        return answering(when(), 403, body)(request) if "X-One" in request.headers else None

    async def headers() -> dict[str, str]:
        return {"X-One": "1"}

    async with Replicas(fake_world, fresh_postgres()) as replicas:
        one = await replicas.start("one", replace(fake_world.connection, headers=headers))
        other = await replicas.start("other")
        fake.faults.refuse(refused)
        async with asyncio.timeout(30):
            while one.service.ready()[0]:
                await asyncio.sleep(0.01)
        assert "Add to the service's Role" in one.service.ready()[1]
        made = await one.service.submit(document(bag(3)))
        assert (await other.ended(made.id, 60)).state == "SUCCEEDED"
        await lost(one)


async def test_a_leader_without_an_api_server_says_so_and_lives(fake_world: World) -> None:
    """/readyz has the error, and /livez is well. When the server is back, the same term goes on."""
    async with Replicas(fake_world) as replicas:
        proxy = await replicas.proxy()
        one = await replicas.start("one", proxy.connection)
        await proxy.refuse()
        async with asyncio.timeout(30):
            while one.service.ready()[0] or one.leader.leadership.holds():
                await asyncio.sleep(0.02)
        ready, why = one.service.ready()
        assert not ready
        assert why.startswith("cluster: ")
        assert why.endswith("; nothing new is started")
        assert "Connect" in why or "refused" in why, why
        assert one.service.live() == (True, "ok")
        made = await one.service.submit(document(bag(1)))
        await one.until(lambda: one.service.explain(made.id), 30)
        (reason,) = await one.service.explain(made.id)
        assert reason.state == "BINDING"
        assert reason.message.endswith("; nothing new is started")
        await proxy.accept()
        assert (await one.ended(made.id, 60)).state == "SUCCEEDED"
        await one.until(lambda: _is(one.service.ready() == (True, "ok")), 30)
        assert one.leader.leadership.epoch == 1


async def _is(holds: bool) -> bool:
    return holds


@pytest.mark.postgresql
async def test_while_the_api_server_is_away_for_all_the_leader_stays(
    fake_world: World,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """For two lease times neither process reaches it. Then the leader leads on with its epoch, and recovers nothing anew."""
    async with Replicas(fake_world, fresh_postgres()) as replicas:
        proxy = await replicas.proxy()
        one = await replicas.start("one", proxy.connection)
        other = await replicas.start("other", proxy.connection)
        term = one.leader.dispatcher
        await proxy.refuse()
        await other.until(lambda: _is("could not take over" in other.service.ready()[1]), 30)
        await asyncio.sleep(2 * LEASE_S)
        await proxy.accept()
        made = await other.service.submit(document(bag(3)))
        assert (await one.ended(made.id, 60)).state == "SUCCEEDED"
        assert (one.leader.leadership.epoch, one.leader.dispatcher is term) == (1, True)
        assert other.leader.leadership.epoch == 0


def set_read_only(url: str, setting: str) -> None:
    """Let a database take no writes (`on`), or let it take them again, and end all its sessions."""
    import psycopg

    options = "-c default_transaction_read_only=off"
    with psycopg.connect(url.replace("+psycopg", ""), options=options, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {setting}'.encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
        )


@pytest.mark.postgresql
async def test_while_the_database_takes_no_writes_neither_replica_leads(
    fake_world: World,
    fresh_postgres: Callable[[], str],  # noqa: F811
) -> None:
    """After a fail-over to a standby server, say. Both live on and say why; once it takes writes one of them leads, and works."""
    url = fresh_postgres()
    async with Replicas(fake_world, url) as replicas:
        one = await replicas.start("one")
        other = await replicas.start("other", awaited=standing_by)
        set_read_only(url, "on")
        async with asyncio.timeout(30):
            while one.leader.leadership.holds():
                await asyncio.sleep(0.02)
        await asyncio.sleep(2 * LEASE_S)
        assert not one.leader.leadership.holds()
        assert not other.leader.leadership.holds()
        for each in (one, other):
            ready, why = each.service.ready()
            assert not ready
            assert "read-only" in why
            assert each.service.live() == (True, "ok")
        set_read_only(url, "off")
        made = await one.until(lambda: accepted(one, bag(3)), 30)
        assert (await one.ended(made.id, 60)).state == "SUCCEEDED"
        assert [each.leader.leadership.holds() for each in (one, other)].count(True) == 1
        await fake_world.nothing_left(one if one.leader.leadership.holds() else other)


async def accepted(running: Running, stage: dict[str, Any]) -> Any:
    """A submission, once the database takes it."""
    try:
        return await running.service.submit(document(stage))
    except Unavailable:
        return None


async def test_two_databases_do_not_lead_in_one_cluster(fake_world: World) -> None:
    """The second is a copy of the first, whose pods it would take for orphans. It stands by, says why, and touches nothing."""
    fake_world.fates["bag"] = ENDLESS
    async with Replicas(fake_world) as replicas:
        one = await replicas.start("one")
        made = await one.service.submit(document(bag(3)))
        await fake_world.witness.until(lambda: len([x for x in fake_world.witness.tasks() if x.runs]) == 3)
        for name in ("flowsched.db", "flowsched.db-wal"):
            (fake_world.folder / "two").mkdir(exist_ok=True)
            shutil.copy(fake_world.folder / "one" / name, fake_world.folder / "two" / name)
        two = await replicas.start("two", awaited=standing_by)
        await asyncio.sleep(2 * LEASE_S)
        held = await the_lease(fake_world)
        ready, why = two.service.ready()
        assert not ready
        assert why == (
            f"standing by: {held['spec']['holderIdentity']} leads in the cluster, with another database than this one, "
            "or has ended just now"
        )
        assert two.leader.leadership.epoch == 0
        assert one.service.ready() == (True, "ok")
        assert (await one.service.workflow(made.id)).counts == {"RUNNING": 3}
        assert len([life for life in fake_world.witness.tasks() if life.runs]) == 3


async def test_a_process_without_the_right_to_the_lease_does_not_lead(
    fake_world: World, fake: FakeApi
) -> None:
    """It waits, and says which rule the Role needs. Once the right is there, it leads."""

    def refused(request: Any) -> Any:
        rule = answering(when(None, "leases.coordination.k8s.io"), 403, FORBIDDEN)
        return None if UNDISTURBED in request.headers else rule(request)

    fake.faults.refuse(refused)
    async with Replicas(fake_world) as replicas:
        one = await replicas.start("one", awaited=lambda running: bool(running.leader.leadership.waits_for))
        ready, why = one.service.ready()
        assert not ready
        assert "apiGroups [coordination.k8s.io], resources [leases], verbs [get, create, update]" in why
        assert one.leader.leadership.epoch == 0
        fake.faults.clear()
        await one.until(lambda: _is(one.service.ready() == (True, "ok")), 30)


async def test_the_lease_names_who_leads_and_with_which_database(fake_world: World) -> None:
    """For people, and for the next: an orderly end gives it back, and the next leader does not wait for it to run out."""
    async with Replicas(fake_world) as replicas:
        await replicas.start("one")
        held = await the_lease(fake_world)
        assert held["spec"]["holderIdentity"]
        assert held["spec"]["leaseDurationSeconds"] == 3
        assert held["metadata"]["annotations"]["flowsched.io/database"]
    given_back = await the_lease(fake_world)
    assert given_back["spec"]["holderIdentity"] == ""
    async with Replicas(fake_world) as replicas:
        await replicas.start("two")
        next_one = await the_lease(fake_world)
        assert next_one["spec"]["leaseTransitions"] == held["spec"]["leaseTransitions"] + 2
        assert next_one["metadata"]["annotations"] != held["metadata"]["annotations"]
