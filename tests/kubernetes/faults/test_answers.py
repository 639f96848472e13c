"""Answers that get lost, and those that say no: each attempt has one pod all the same, and no attempt is charged for it."""

from __future__ import annotations

import asyncio

import pytest

from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.kubernetes.pods.controller import PodTimeouts
from tests.kubernetes.fake import FakeApi, answering, over_quota, status_body, when
from tests.kubernetes.faults.world import World, attempts, bag, document, gang
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.service_world import Running


async def warm(running: Running) -> None:
    """Have connections open: a request on a new one would not get through the TLS handshake without answers."""
    await asyncio.gather(*(running.cluster.client.call("GET", "/version") for _ in range(4)))


@pytest.mark.kubernetes
async def test_fault_03_a_create_whose_answer_is_lost_makes_one_pod(world: World) -> None:
    """The server makes the pod, the connection is reset before it can say so; asked again it says AlreadyExists, and our pod
    is taken for what it is. Real API server, through a proxy.
    """
    async with Proxy(world.connection) as proxy, world.serving(proxy.connection) as running:
        await warm(running)
        proxy.answering = False
        made = await running.service.submit(document(bag(1)))
        await world.witness.until(world.witness.tasks)
        proxy.speak()
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert await attempts(running, made.id) == [(0, "")]
        await world.nothing_left(running)
    assert len(world.witness.tasks()) == 1


@pytest.mark.kubernetes
async def test_fault_03_a_bind_whose_answer_is_lost_binds_once(world: World) -> None:
    """A second binding of a bound pod is a Conflict, also to the same node: it is looked at, not believed. Real API server."""
    async with Proxy(world.connection) as proxy:

        async def deaf(point: str) -> None:
            if point == "kube.created":
                proxy.answering = False

        async with world.serving(proxy.connection, failpoint=deaf) as running:
            await warm(running)
            made = await running.service.submit(document(bag(1)))
            await world.witness.until(
                lambda: [life for life in world.witness.tasks() if life.pod.spec.node_name]
            )
            proxy.speak()
            assert (await running.ended(made.id)).state == "SUCCEEDED"
            assert await attempts(running, made.id) == [(0, "")]
            await world.nothing_left(running)


@pytest.mark.kubernetes
async def test_fault_03_answers_that_are_lost_again_and_again(world: World) -> None:
    """A network that forgets a third of all answers slows gangs and bags down, and does nothing else. Real API server."""

    async def forget(proxy: Proxy) -> None:
        while True:
            await asyncio.sleep(0.4)
            proxy.answering = False
            await asyncio.sleep(0.2)
            proxy.speak()

    async with Proxy(world.connection) as proxy, world.serving(proxy.connection) as running:
        forgetting = asyncio.create_task(forget(proxy))
        made = await running.service.submit(document(gang(3), bag(4)))
        await asyncio.sleep(5)
        forgetting.cancel()
        await asyncio.wait({forgetting})
        proxy.speak()
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await world.nothing_left(running)


@pytest.mark.kubernetes
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
async def test_fault_04_a_name_that_a_stranger_has_taken(world: World, marked: bool) -> None:
    """Somebody's pod has the name, perhaps even with our annotation: it is neither adopted nor touched, and the attempt fails
    with the reason. Real API server.
    """
    submitted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def taken(point: str) -> None:
        if point != "launch.before" or world.witness.lives.get("stranger"):
            return
        name = f"fs-{await submitted}-bag-0-0"
        metadata = {"annotations": {"flowsched.io/pod": name}} if marked else {}
        if not await world.talk.names(world.talk.pods):
            await world.talk.new_pod(pod_name(name), metadata=metadata, schedulerName="somebody")

    async with world.serving(failpoint=taken) as running:
        made = await running.service.submit(document(bag(1, retry={"attempts": 1})))
        submitted.set_result(made.id)
        view = await running.ended(made.id)
        assert view.state == "FAILED"
        assert "is not flowsched's" in view.reason
        (only,) = (await world.talk.get(world.talk.pods))[1]["items"]
        assert only["spec"]["schedulerName"] == "somebody"
        assert "nodeName" not in only["spec"]
        assert "deletionTimestamp" not in only["metadata"]


REFUSALS = {
    "429": (429, {"Retry-After": "1"}),
    "500": (500, {}),
    "503": (503, {}),
    "503 later": (503, {"Retry-After": "1"}),
    "504": (504, {}),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_fault_23_a_server_that_puts_off(fake_world: World, fake: FakeApi, status: str) -> None:
    """Creates and binds that are put off or fail come later, and cost no attempt: five refusals of each are waited out, and no
    more calls are made than it takes. The fake: a real server refuses like this only when it is drowned.
    """
    code, headers = REFUSALS[status]
    async with fake_world.serving() as running:
        for match in (when("create", "pods"), when("create", "pods/binding")):
            fake.faults.refuse(answering(match, code, status_body(code, "not now"), headers), times=5)
        made = await running.service.submit(document(bag(3), gang(2)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await fake_world.nothing_left(running)
    assert fake.counts["create", "pods"] == 5 + 5
    assert fake.counts["create", "pods/binding"] == 5 + 5


async def test_fault_24_a_gang_that_others_leave_too_little_of_a_quota_gives_back_what_it_has(
    fake_world: World, fake: FakeApi
) -> None:
    """All members are made before the first is bound: with one forbidden, none runs (P4), and those that were made go again. Tried
    anew, with ever longer pauses, the whole gang runs. The fake.
    """
    last = over_quota(lambda request: when("create", "pods")(request) and b"-train-2-" in request.body)
    async with fake_world.serving() as running:
        fake.faults.refuse(last, times=2)
        made = await running.service.submit(document(gang(3)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert fake.counts["create", "pods/binding"] == 3
        reasons = [reason for _, reason in await attempts(running, made.id)]
        assert reasons.count("QuotaExceeded") == 2
        assert set(reasons) == {"", "QuotaExceeded", "Released"}
        await fake_world.nothing_left(running)


@pytest.mark.kubernetes
async def test_fault_04_a_stranger_of_the_same_name_is_not_bound(world: World) -> None:
    """Between create and bind our pod is deleted and somebody makes another one of its name: a binding says which pod it means, so
    the stranger is left alone. Real API server.
    """
    swapped: list[str] = []

    async def swap(point: str) -> None:
        if point == "kube.created" and not swapped:
            await world.witness.until(lambda: len(world.witness.tasks()) == 1)
            swapped.append(world.witness.tasks()[0].pod.metadata.name)
            await world.talk.delete(f"{world.talk.pods}/{swapped[0]}", gracePeriodSeconds="0")
            await world.talk.new_pod(swapped[0], schedulerName="somebody")

    async with world.serving(failpoint=swap) as running:
        made = await running.service.submit(document(bag(1)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        stranger = await world.talk.pod(swapped[0])
        assert "nodeName" not in stranger["spec"]


async def test_fault_14_a_leader_that_may_not_act_for_a_while(fake_world: World, fake: FakeApi) -> None:
    """A process that was paused does not know whether it still leads: it makes and binds nothing until it does, then goes on with
    what it had begun. The fake.
    """
    acts = asyncio.Event()
    acts.set()

    async def pause(point: str) -> None:
        if point in ("launch.before", "kube.created"):
            acts.clear()

    async with fake_world.serving(failpoint=pause) as running:
        running.cluster.lease.may_act = acts.is_set
        made = await running.service.submit(document(bag(1)))
        for what in ("pods", "pods/binding"):
            await running.until(lambda: _stands(acts))
            before = fake.counts["create", what]
            await asyncio.sleep(0.5)
            assert fake.counts["create", what] == before == 0
            acts.set()
            await running.until(lambda what=what: _made(fake, what))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert await attempts(running, made.id) == [(0, "")]
        await fake_world.nothing_left(running)


async def _stands(acts: asyncio.Event) -> bool:
    return not acts.is_set()


async def _made(fake: FakeApi, what: str) -> bool:
    return fake.counts["create", what] == 1


async def test_fault_15_ended_members_that_are_found_together_take_the_rest_with_them(
    fake_world: World, fake: FakeApi
) -> None:
    """The one who led could remove no pod any more. The next finds both of the gang, and none is the last: the Service and the
    Secret go all the same. The fake.
    """
    quick = PodTimeouts(stray_s=0.2)
    async with fake_world.serving(timeouts=quick) as running:
        fake.faults.refuse(answering(when("delete"), 500, status_body(500, "not now")))
        made = await running.service.submit(document(gang(2)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
    assert len(fake.objects("pods")) == 2
    fake.faults.clear()
    async with fake_world.serving(timeouts=quick) as running:
        await fake_world.nothing_left(running)
