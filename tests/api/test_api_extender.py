"""A kube-scheduler's questions over HTTP: both forms of node lists, nothing lost, a 4xx for what is none."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from fake_service import FakeService

from flowsched.api.handlers.extender import LARGEST_QUESTION, MOST_NODES, read_question
from flowsched.aside import LARGE_BYTES
from flowsched.errors import InvalidRequest, TooLarge

POD = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": []}}
BOTH = ["/scheduler/filter", "/scheduler/prioritize"]


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"é": "ü"}}, "status": {"capacity": {"cpu": "4"}}, **fields}


def question(nodes: Any = None, names: Any = None) -> dict[str, Any]:
    """As Go writes it: every field, null where there is nothing."""
    return {"Pod": POD, "Nodes": nodes, "NodeNames": names}


def objects(*names: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": [node(name) for name in names]}


async def ask(api: TestClient, what: str, body: Any) -> Any:
    answer = await api.post(f"/scheduler/{what}", json=body)
    assert answer.status == 200, await answer.text()
    assert answer.content_type == "application/json"
    return await answer.json()


async def test_names_come_back_as_names(api: TestClient, service: FakeService) -> None:
    """With `nodeCacheCapable`: what is left in the order in which it came, and a reason for the rest, which nobody need preempt."""
    service.refused = {"b": "held", "z": "held"}
    answer = await ask(api, "filter", question(names=["c", "b", "a"]))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["c", "a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"b": "held"},
        "Error": "",
    }
    assert [json.loads(pod) for pod in service.pods] == [POD]


async def test_objects_come_back_as_they_were(api: TestClient, service: FakeService) -> None:
    """Without `nodeCacheCapable` kube-scheduler goes on with the objects it gets back, so no field may be lost."""
    whole = objects("c", "b", "a")
    assert (await ask(api, "filter", question(nodes=whole)))["Nodes"] == whole
    service.refused = {"b": "held"}
    answer = await ask(api, "filter", question(nodes=whole))
    assert answer["Nodes"] == {"metadata": {}, "items": [node("c"), node("a")]}
    assert answer["NodeNames"] is None
    assert answer["FailedAndUnresolvableNodes"] == {"b": "held"}


async def test_all_may_be_refused(api: TestClient, service: FakeService) -> None:
    """An empty list is not a missing one."""
    service.refused = {"a": "held", "b": "held"}
    assert (await ask(api, "filter", question(names=["a", "b"])))["NodeNames"] == []
    answer = await ask(api, "filter", question(nodes=objects("a", "b")))
    assert answer["Nodes"]["items"] == []


async def test_points_are_given_for_every_node(api: TestClient, service: FakeService) -> None:
    """In both forms, in order; who is not known gets 0."""
    service.points = {"a": 10, "b": 3}
    expected = [{"Host": "b", "Score": 3}, {"Host": "new", "Score": 0}, {"Host": "a", "Score": 10}]
    assert await ask(api, "prioritize", question(names=["b", "new", "a"])) == expected
    assert await ask(api, "prioritize", question(nodes=objects("b", "new", "a"))) == expected


@pytest.mark.parametrize(
    "body", [question(), {"Pod": POD}, question(nodes={"items": None}), question(names=[])]
)
async def test_a_list_may_be_missing(api: TestClient, service: FakeService, body: dict[str, Any]) -> None:
    """Go writes an empty list of objects as null."""
    service.refused = {"a": "held"}
    answer = await ask(api, "filter", body)
    assert (answer["FailedAndUnresolvableNodes"], answer["Error"]) == ({}, "")
    assert await ask(api, "prioritize", body) == []


@pytest.mark.parametrize(
    "names", [("pod", "nodes", "nodenames"), ("POD", "NODES", "NODENAMES"), ("Pod", "Nodes", "nodeNames")]
)
async def test_the_case_of_names_does_not_matter(
    api: TestClient, service: FakeService, names: tuple[str, str, str]
) -> None:
    """Nor does it to Go; kube-schedulers before 1.18 wrote small letters."""
    service.refused = {"b": "held"}
    answer = await ask(api, "filter", dict(zip(names, (POD, None, ["a", "b"]), strict=True)))
    assert answer["NodeNames"] == ["a"]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"hello", b"{}", b'{"Pod": {}, "NodeNames": "a"}', b'{"Pod": {}, "NodeNames": [1]}',
        b'{"Pod": {}, "Nodes": []}', b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": 1}}]}}',
        b'{"Pod": {}, "NodeNames": ["\xff"]}', b'{"Pod": {}, "NodeNames": ["\\ud800"]}', json.dumps(question()).encode("utf-16"),
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
async def test_what_is_no_question_is_a_400(
    api: TestClient, service: FakeService, path: str, body: bytes
) -> None:
    """Nothing reaches the service, and the loop goes on."""
    answer = await api.post(path, data=body)
    assert answer.status == 400, await answer.text()
    assert "not a question" in (await answer.json())["detail"] or body == b"{}"
    assert service.pods == []


async def test_a_pod_that_cannot_be_read_is_a_400(api: TestClient, service: FakeService) -> None:
    """The service says so."""
    service.failure = InvalidRequest("the pod cannot be read: no")
    for path in BOTH:
        assert (await api.post(path, json=question(names=["a"]))).status == 400


@pytest.mark.parametrize("path", BOTH)
async def test_questions_may_have_64_mib_and_no_more(api: TestClient, path: str) -> None:
    """Far more than other bodies; beyond it they are refused before they are read."""
    assert LARGEST_QUESTION == 64 << 20
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGEST_QUESTION + 1}\r\n\r\n"
    writer.write(head.encode())
    assert b"413" in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


async def test_a_large_question_is_answered(api: TestClient, service: FakeService) -> None:
    """2,000 nodes as objects, beyond the limits of any other body here, taken apart in a thread."""
    names = [f"n{number}" for number in range(2_000)]
    images = [{"names": ["x" * 400], "sizeBytes": 1} for _ in range(15)]
    nodes = {"items": [node(name, images=images) for name in names]}
    body = json.dumps(question(nodes=nodes)).encode()
    assert len(body) > max(LARGE_BYTES, 10 << 20)
    service.refused = {"n7": "held"}
    service.points = {"n7": 10}
    answer = await api.post("/scheduler/filter", data=body)
    left = [each["metadata"]["name"] for each in (await answer.json())["Nodes"]["items"]]
    assert left == [name for name in names if name != "n7"]
    answer = await api.post("/scheduler/prioritize", data=body)
    assert [each["Host"] for each in await answer.json() if each["Score"]] == ["n7"]


async def test_a_compressed_question_is_refused(api: TestClient) -> None:
    """64 MiB may not become gigabytes."""
    headers = {"Content-Encoding": "gzip"}
    answer = await api.post("/scheduler/filter", data=gzip.compress(b"{}"), headers=headers)
    assert answer.status == 400


@pytest.mark.parametrize("path", BOTH)
async def test_pages_of_other_origins_may_not_ask(api: TestClient, service: FakeService, path: str) -> None:
    """A POST is checked, although it changes nothing."""
    headers = {"Host": "localhost:8470", "Origin": "https://evil.example"}
    assert (await api.post(path, json=question(), headers=headers)).status == 403
    assert service.pods == []


SMALL = b'{"Pod": {"metadata": {"name": "p"}}, '
#: Made when they are asked for, each up to 60 MiB.
POISON: dict[str, tuple[Callable[[], bytes], str]] = {
    "objects of three bytes": (
        lambda: SMALL + b'"Nodes": {"items": [' + b"{}," * (20 << 20) + b"{}]}}",
        "too many objects and arrays: 20,971,526, the limit 'objects' is 4,000,000",
    ),
    "five million names": (
        lambda: SMALL + b'"NodeNames": [' + b",".join([b'"node-n"'] * 5_000_000) + b"]}",
        "the question has 5,000,000 nodes; it may have 50,000",
    ),
    "unknown members": (
        lambda: SMALL + b",".join(b'"k%d": 0' % n for n in range(3_000_000)) + b"}",
        "the question has 3,000,001 members; it may have 100",
    ),
    "one unknown member": (
        lambda: SMALL + b'"other": "' + b"x" * (60 << 20) + b'"}',
        "'other' has 62,914,562 bytes; it may have 2,097,152",
    ),
    "a pod of 60 MiB": (
        lambda: b'{"Pod": "' + b"x" * (60 << 20) + b'", "NodeNames": []}',
        "'pod' has 62,914,562 bytes; it may have 2,097,152",
    ),
    "deep arrays": (
        lambda: b"[" * 100_000,
        "nested too deeply: 100,000, the limit 'depth' is 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", POISON)
def test_a_question_with_too_much_of_anything_is_refused_with_the_number(case: str) -> None:
    """60 MiB of such were decoded in one call, which held up the event loop until the leader had lost its lease."""
    make, words = POISON[case]
    with pytest.raises(TooLarge, match=f"^{re.escape(words)}$"):
        read_question(make())


def test_a_question_may_have_fifty_thousand_nodes() -> None:
    names = [f"n{number}" for number in range(MOST_NODES)]
    assert read_question(json.dumps(question(names=names)).encode()).names == names
