"""A ResourceQuota is one more capacity: what it can never admit waits with the reason, and holds nothing that others could have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kubernetes.conftest import require
from tests.kubernetes.fake import FakeApi, answering, over_quota, status_body, when
from tests.kubernetes.fake.quotas import counting
from tests.kubernetes.faults.world import ENDLESS, World, attempts, bag, document, gang
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, ControlPlane
from tests.kubernetes.service_world import Running


@pytest.fixture
async def counted(fake_world: World, fake: FakeApi) -> AsyncIterator[World]:
    """The world on the fake, with the controller that counts for quotas."""
    async with counting(fake.store):
        yield fake_world


async def make_quota(world: World, name: str, **spec: Any) -> None:
    """A quota of the installation's namespace that the controller has counted for."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}
    assert (await world.talk.post(f"{world.talk.here}/resourcequotas", quota))[0] == 201
    while (
        not (await world.talk.get(f"{world.talk.here}/resourcequotas/{name}"))[1]
        .get("status", {})
        .get("hard")
    ):
        await asyncio.sleep(0.02)


async def raise_quota(world: World, name: str, **hard: str) -> None:
    """The quota as its owner changes it."""
    path = f"{world.talk.here}/resourcequotas/{name}"
    assert (await world.talk.merge(path, {"spec": {"hard": hard}}))[0] == 200


async def told(running: Running, workflow: str, code: str) -> str:
    """What `explain` says under a code; "" = it says nothing under it."""
    found = await running.service.explain(workflow)
    return next((each.message for each in found if each.code == code), "")


async def test_a_gang_that_a_quota_can_never_admit_holds_nothing(counted: World, fake: FakeApi) -> None:
    """Twenty members, and fourteen pods at most: not one is made, the reason names the quota and both numbers, and what fits runs
    meanwhile. A quota that is raised lets the gang start.
    """
    await make_quota(counted, "team", hard={"pods": "14"})
    async with counted.serving() as running:
        large = await running.service.submit(document(gang(20, cpu=0.1)))
        small = await running.service.submit(document(bag(14, cpu=0.1)))
        assert (await running.ended(small.id)).state == "SUCCEEDED"
        assert await running.until(lambda: told(running, large.id, "LargerThanQuota")) == (
            "ResourceQuota team never allows more than 14 pods, and this needs 20 pods"
        )
        assert fake.counts["create", "pods"] == 14
        await raise_quota(counted, "team", pods="20")
        assert (await running.ended(large.id)).state == "SUCCEEDED"
        assert set(await attempts(running, large.id)) == {(0, "")}
        await counted.nothing_left(running)


async def test_tasks_that_a_quota_can_never_admit_do_not_hold_up_others(
    counted: World, fake: FakeApi
) -> None:
    """Twenty-four of them wait before a task that fits; a leader that comes later knows the quota, too."""
    await make_quota(counted, "team", hard={"requests.cpu": "1", "requests.memory": "1Ti"})
    async with counted.serving() as running:
        large = await running.service.submit(document(bag(24, cpu=2)))
        await running.until(lambda: told(running, large.id, "LargerThanQuota"))
    async with counted.serving() as running:
        small = await running.service.submit(document(bag(1, cpu=1)))
        assert (await running.ended(small.id)).state == "SUCCEEDED"
        assert fake.counts["create", "pods"] == 1
        await running.service.command(large.id, "cancel")
        assert (await running.ended(large.id)).state == "CANCELLED"
        await counted.nothing_left(running)


async def test_fault_24_a_quota_that_others_use_up(counted: World, fake: FakeApi) -> None:
    """Five hundred tasks wait, say why, and ask the server for nothing. When the others leave, all run, as many at a time as the
    quota has room for.
    """
    await make_quota(counted, "team", hard={"pods": "60"})
    for number in range(60):
        await counted.talk.new_pod(f"other-{number}", schedulerName="somebody")
    async with counted.serving() as running:
        made = await running.service.submit(document(bag(500, cpu=0.01)))
        assert await running.until(lambda: told(running, made.id, "QuotaExceeded")) == (
            "ResourceQuota team allows 60 pods; tasks have 0 pods, other pods 60 pods, and this needs 1 pods"
        )
        assert fake.counts["create", "pods"] == 60
        for number in range(60):
            await counted.talk.delete(f"{counted.talk.pods}/other-{number}", gracePeriodSeconds="0")
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await counted.nothing_left(running)


async def test_fault_24_gangs_that_share_a_quota_do_not_wait_for_each_other(
    counted: World, fake: FakeApi
) -> None:
    """Room in the quota for one gang and a third: one is made at a time, whole, and no create is refused."""
    await make_quota(counted, "team", hard={"pods": "4"})
    async with counted.serving() as running:
        made = [await running.service.submit(document(gang(3, cpu=0.1))) for _ in range(3)]
        for each in made:
            assert (await running.ended(each.id)).state == "SUCCEEDED"
            assert set(await attempts(running, each.id)) == {(0, "")}
        await counted.nothing_left(running)


async def test_fault_24_a_quota_that_others_use_up_first(fake_world: World, fake: FakeApi) -> None:
    """Between the view and the create others take the last room: the pod waits with the server's words, and costs no attempt."""
    async with fake_world.serving() as running:
        fake.faults.refuse(over_quota(when("create", "pods")), times=5)
        made = await running.service.submit(document(bag(3)))
        assert "exceeded quota: pods" in await running.until(lambda: told(running, made.id, "QuotaExceeded"))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await fake_world.nothing_left(running)


async def test_a_service_that_may_not_see_quotas_runs_all_the_same(counted: World, fake: FakeApi) -> None:
    """As a role from before has it: pods beyond the quota wait with the server's words."""
    fake.faults.refuse(answering(when("list", "resourcequotas"), 403, status_body(403, "not yours")))
    await make_quota(counted, "team", hard={"pods": "2"})
    async with counted.serving() as running:
        made = await running.service.submit(document(bag(4, cpu=0.1)))
        assert "exceeded quota: team" in await running.until(lambda: told(running, made.id, "QuotaExceeded"))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await counted.nothing_left(running)


@pytest.mark.kubernetes
async def test_fault_24_a_real_quota(control_plane: ControlPlane, world: World) -> None:
    """Two pods at a time are allowed, and one CPU: four tasks run two by two, the gang of three never starts, and both say why.
    Real API server, and the controller that counts.
    """
    require(CONTROLLER_MANAGER)
    counting_for_real = await control_plane.controller_manager(("resourcequota-controller",))
    try:
        await make_quota(world, "team", hard={"pods": "2", "requests.cpu": "1"})
        world.fates["first"] = ENDLESS
        async with world.serving() as running:
            large = await running.service.submit(document(gang(3, cpu=0.1)))
            first = await running.service.submit(document(bag(2, cpu=0.1, name="first")))
            await world.witness.until(lambda: len(world.witness.tasks()) == 2)
            made = await running.service.submit(document(bag(4, cpu=0.1)))
            assert await running.until(lambda: told(running, made.id, "QuotaExceeded")) == (
                "ResourceQuota team allows 2 pods; tasks have 2 pods, other pods 0 pods, and this needs 1 pods"
            )
            assert "team never allows more than 2 pods, and this needs 3 pods" in await told(
                running, large.id, "LargerThanQuota"
            )
            await running.service.command(first.id, "cancel")
            assert (await running.ended(made.id)).state == "SUCCEEDED"
            assert set(await attempts(running, made.id)) == {(0, "")}
            await running.service.command(large.id, "cancel")
            assert (await running.ended(large.id)).state == "CANCELLED"
            await world.nothing_left(running)
    finally:
        counting_for_real.kill()
