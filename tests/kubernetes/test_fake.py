"""The fake's own knobs: what `conformance` cannot ask of the real one."""

from __future__ import annotations

import asyncio
import json

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.fake import Api, FakeApi, Request, when
from tests.kubernetes.fake.feed import Feed
from tests.kubernetes.fake.replies import Refusal
from tests.kubernetes.talk import Talk, binding, pod, told, until

PODS = "/api/v1/namespaces/default/pods"


def ask(api: Api, method: str, path: str, document: object = None, **query: str) -> tuple[int, bytes]:
    """A request without a network."""
    body = b"" if document is None else json.dumps(document).encode()
    reply = api.handle(Request(method, path, query, body, "application/merge-patch+json"))
    return reply.status, reply.body


def test_equal_requests_have_equal_answers() -> None:
    """Uids, versions and moments are the same in every run: a schedule of faults can be replayed."""

    def run() -> list[bytes]:
        api = Api(now=lambda: 1_800_000_000.0)
        answers = [ask(api, "POST", PODS, pod(f"a{number}")) for number in range(3)]
        answers += [ask(api, "POST", f"{PODS}/a1/binding", binding("a1", "n"))]
        answers += [ask(api, "DELETE", f"{PODS}/a0"), ask(api, "GET", PODS)]
        return [body for _, body in answers]

    assert run() == run()


def test_the_past_is_remembered_so_far() -> None:
    """A watch from before the oldest event that is kept gets a 410."""
    api = Api(history=10)
    ask(api, "POST", PODS, pod("a"))
    for number in range(50):
        ask(api, "PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": str(number)}}})
    last = api.store.version
    query = {"watch": "1", "resourceVersion": str(last - 40)}
    feed = Feed(api, Request("GET", PODS, query))
    assert feed.take()[0].startswith(b'{"type":"ERROR"')
    assert feed.over
    feed = Feed(api, Request("GET", PODS, {"watch": "1", "resourceVersion": str(last - 5)}))
    assert len(feed.take()) == 5


def test_a_slow_watch_is_told_that_it_is_too_slow() -> None:
    """What it has not taken in time is forgotten like anything else."""
    api = Api(history=10)
    ask(api, "POST", PODS, pod("a"))
    feed = Feed(api, Request("GET", PODS, {"watch": "1", "resourceVersion": str(api.store.version)}))
    for number in range(50):
        ask(api, "PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": str(number)}}})
    assert feed.take()[0].startswith(b'{"type":"ERROR"')


def test_objects_can_be_put_in_behind_the_network() -> None:
    """By the same rules."""
    api = Api()
    found = api.add(pod("a") | {"metadata": {"name": "a", "namespace": "kube-system"}})
    assert found["metadata"]["namespace"] == "kube-system"
    assert [each["metadata"]["name"] for each in api.objects("pods")] == ["a"]
    with pytest.raises(Refusal):
        api.add(pod("Not_A_Name"))


async def test_what_is_delayed_is_done_although_the_client_has_gone() -> None:
    """As in the real one: a request that has arrived is carried out."""
    async with FakeApi() as api, Client(api.connection) as client:
        api.faults.delay(when("create"), 0.05, times=1)
        task = asyncio.create_task(client.call("POST", PODS, body=json.dumps(pod("a")).encode()))
        await until(lambda: api.counts["create", "pods"] == 1)
        task.cancel()
        await until(lambda: len(api.objects("pods")) == 1)


async def test_a_silent_watch_hears_everything_later() -> None:
    """Nothing is lost by silence."""
    async with FakeApi() as api, Client(api.connection) as client:
        talk = Talk(client, "default")
        watcher = asyncio.create_task(talk.next_events(2, PODS, resourceVersion=str(api.store.version)))
        await until(lambda: api.watches == 1)
        api.silence()
        api.add(pod("a"))
        api.add(pod("b"))
        done, _ = await asyncio.wait([watcher], timeout=0.1)
        assert not done
        api.speak()
        assert told(await watcher) == [("ADDED", "a"), ("ADDED", "b")]
