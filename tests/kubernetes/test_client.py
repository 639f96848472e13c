"""Calls: what comes back, what is waited out, what is not known, and what a call is called."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from flowsched.cluster.kubernetes.api.client import LIST_TRIES, TRIES, Client, Connection, named
from flowsched.cluster.kubernetes.api.errors import Answer, Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from flowsched.errors import Unavailable
from tests.kubernetes.fake import (
    FakeApi,
    Request,
    answering,
    database_full,
    over_quota,
    status_body,
    too_many,
    webhook_denies,
    webhook_fails,
    when,
)
from tests.kubernetes.talk import PATIENCE_S, Talk, binding, pod, until

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """A fake of the test's own."""
    async with FakeApi() as api:
        yield api


class Sleeps(list[float]):
    """Waits that take no time."""

    async def __call__(self, seconds: float) -> None:
        """Note it."""
        self.append(seconds)


@pytest.fixture
def sleeps() -> Sleeps:
    """How long was waited."""
    return Sleeps()


@pytest.fixture
async def client(api: FakeApi, sleeps: Sleeps) -> AsyncIterator[Client]:
    """Whose waits take no time, and whose jitter is one half."""
    async with Client(api.connection, sleep=sleeps, jitter=lambda: 0.5) as client:
        yield client


async def create(client: Client, name: str) -> Answer:
    """Create a pod."""
    return await client.call("POST", PODS, body=json.dumps(pod(name)).encode())


async def test_a_write_waits_until_it_may_be_sent(api: FakeApi) -> None:
    """A process that does not lead reads, and sends no write; one that waited for its turn meanwhile asks again."""
    allowed = asyncio.Event()
    async with Client(api.connection, may_write=allowed.is_set, in_flight=1) as client:
        asked = [
            asyncio.create_task(client.call(method, f"{PODS}/a", body=b"{}"))
            for method in ("POST", "PATCH", "DELETE")
        ]
        await asyncio.sleep(0.3)
        assert (await client.call("GET", f"{PODS}/a")).status == 404
        assert {verb for verb, _ in api.counts} == {"get"}

        gate = api.faults.hold(when("get"))
        reading = asyncio.create_task(client.call("GET", f"{PODS}/a"))
        await until(lambda: gate.taken)
        allowed.set()
        await asyncio.sleep(0.3)  # the writes wait for their turn
        allowed.clear()
        gate.open.set()
        await reading
        await asyncio.sleep(0.3)
        assert {verb for verb, _ in api.counts} == {"get"}
        allowed.set()
        await asyncio.gather(*asked)
        assert {verb for verb, _ in api.counts} == {"get", "create", "patch", "delete"}


async def test_any_status_is_an_answer(client: Client) -> None:
    """With a word for programs and words for people."""
    created = await create(client, "a")
    assert (created.status, created.ok, created.reason, created.message) == (201, True, "", "")
    again = await create(client, "a")
    assert (again.status, again.ok, again.reason) == (409, False, "AlreadyExists")
    assert again.message == 'pods "a" already exists'
    missing = await client.call("GET", f"{PODS}/b")
    assert (missing.status, missing.reason) == (404, "NotFound")


async def test_an_object_with_a_reason_is_no_refusal(client: Client) -> None:
    """An event has one of its own, and a message."""
    path = "/api/v1/namespaces/default/events"
    event = {"metadata": {"name": "e"}, "reason": "Scheduled", "message": "placed"}
    answer = await client.call("POST", path, body=json.dumps(event).encode())
    assert (answer.status, answer.reason, answer.message) == (201, "", "")


async def test_what_a_proxy_says_is_shown(client: Client, api: FakeApi) -> None:
    """An answer that is no Status has no reason, and its text is the message."""
    api.faults.refuse(answering(when(), 502, b"<html>bad gateway</html>\n"))
    answer = await client.call("GET", PODS)
    assert (answer.reason, answer.message, answer.undecided) == ("", "<html>bad gateway</html>", True)


async def test_get(client: Client) -> None:
    """Typed; None where there is none; any other refusal is an error with the answer in it."""
    await create(client, "a")
    found = await client.get(f"{PODS}/a", Pod)
    assert found is not None
    assert (found.metadata.name, found.spec.scheduler_name) == ("a", "default-scheduler")
    assert await client.get(f"{PODS}/b", Pod) is None
    with pytest.raises(
        Refused, match=r"GET /api/v1/pods: 400 BadRequest field label not supported"
    ) as refused:
        await client.get("/api/v1/pods", Pod, params={"fieldSelector": "x=1"})
    assert refused.value.answer.status == 400


async def test_an_object_that_is_none(client: Client, api: FakeApi) -> None:
    """Is an error of its own."""
    api.faults.refuse(answering(when("get"), 200, b'{"metadata": 7}'))
    with pytest.raises(Malformed, match="metadata"):
        await client.get(f"{PODS}/a", Pod)


async def test_a_list_is_read_in_pages(client: Client, api: FakeApi) -> None:
    """All items in order, and the version of the first page."""
    for number in range(7):
        await create(client, f"a{number}")
    version = api.store.version
    items, found = await client.list(PODS, Pod, page=3)
    assert [item.metadata.name for item in items] == [f"a{number}" for number in range(7)]
    assert found == str(version)
    assert client.calls["list", "pods"] == 3
    items, _ = await client.list("/api/v1/pods", Pod, params={"fieldSelector": "metadata.name=a3"}, page=0)
    assert [item.metadata.name for item in items] == ["a3"]


async def test_a_page_is_asked_for_before_the_one_before_it_is_decoded(client: Client, api: FakeApi) -> None:
    """The server makes it meanwhile."""
    for number in range(4):
        await create(client, f"a{number}")
    asked: list[int] = []

    class Noted(Pod, frozen=True):
        def __post_init__(self) -> None:
            asked.append(client.calls["list", "pods"])

    await client.list(PODS, Noted, page=2)
    assert asked == [2, 2, 2, 2]


async def test_a_list_whose_token_expires_is_begun_again(client: Client, api: FakeApi) -> None:
    """And in the end read in one piece, since that cannot expire."""
    for number in range(5):
        await create(client, f"a{number}")
    expired = status_body(410, "The provided continue parameter is too old")
    api.faults.refuse(lambda request: (410, expired, {}) if "continue" in request.query else None)
    items, _ = await client.list(PODS, Pod, page=2)
    assert [item.metadata.name for item in items] == [f"a{number}" for number in range(5)]
    assert api.counts["list", "pods"] == 2 * (LIST_TRIES - 1) + 1


async def test_the_version_of_a_list_is_that_of_its_first_page(client: Client, api: FakeApi) -> None:
    """A watch from there misses nothing, whatever later pages say."""

    def pages(request: Request) -> tuple[int, bytes, dict[str, str]] | None:
        if request.verb != "list":
            return None
        first = "continue" not in request.query
        metadata = {"resourceVersion": "5", "continue": "more"} if first else {"resourceVersion": "9"}
        return 200, json.dumps({"metadata": metadata, "items": []}).encode(), {}

    api.faults.refuse(pages)
    assert await client.list(PODS, Pod) == ([], "5")


async def test_a_list_may_end_with_its_metadata(client: Client, api: FakeApi) -> None:
    """API servers write them first, and JSON has no order."""
    api.faults.refuse(
        answering(
            when("list"), 200, b'{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"9"}}'
        )
    )
    items, version = await client.list("/api/v1/pods", Pod)
    assert ([item.metadata.name for item in items], version) == (["a"], "9")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
async def test_fault_27_a_malformed_item_is_left_out_and_counted(
    client: Client, api: FakeApi, separators: tuple[str, str]
) -> None:
    """With its name, if that can be read: what is there must not pass for gone."""
    body = {
        "metadata": {"resourceVersion": "9"},
        "items": [
            {"metadata": {"name": "a"}, "status": {"phase": "Running"}, "unknown": {"new": "field"}},
            {"metadata": {"name": "b", "uid": "u"}, "status": "Running"},
            {"metadata": {"labels": [1]}},
            {"metadata": {"name": "c"}},
        ],
    }
    api.faults.refuse(answering(when("list"), 200, json.dumps(body, separators=separators).encode()))
    listing = await client.listing("/api/v1/pods", Pod)
    assert [item.metadata.name for item in listing.items] == ["a", "c"]
    assert [(each.name, each.uid) for each in listing.unread] == [("b", "u"), ("", "")]
    assert (listing.version, client.skipped) == ("9", 2)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"items": 7}', b"\xff"])
async def test_what_is_no_list(client: Client, api: FakeApi, body: bytes) -> None:
    """Is not half read."""
    api.faults.refuse(answering(when("list"), 200, body))
    with pytest.raises(Malformed):
        await client.list("/api/v1/pods", Pod)


async def test_fault_23_what_the_server_puts_off_is_waited_out(
    client: Client, api: FakeApi, sleeps: Sleeps
) -> None:
    """As long as it asks, and up to a half more; the pod is created once."""
    api.faults.refuse(too_many(when("create", "pods"), retry_after_s=2), times=2)
    assert (await create(client, "a")).status == 201
    assert sleeps == [2.5, 2.5]
    assert len(api.objects("pods")) == 1
    assert client.calls["create", "pods"] == 1


async def test_a_503_is_waited_out_only_if_it_says_how_long(
    client: Client, api: FakeApi, sleeps: Sleeps
) -> None:
    """Without Retry-After nobody knows whether it was done."""
    body = status_body(503, "apiserver is shutting down")
    api.faults.refuse(answering(when("create"), 503, body, {"Retry-After": "1"}), times=1)
    assert (await create(client, "a")).status == 201
    assert sleeps == [1.25]
    api.faults.refuse(answering(when("create"), 503, body), times=1)
    assert (await create(client, "b")).status == 503
    assert len(sleeps) == 1


async def test_waiting_ends(client: Client, api: FakeApi, sleeps: Sleeps) -> None:
    """After some tries, and at once where the wait would be long: then the caller gets the refusal and its wait."""
    api.faults.refuse(too_many(when("create")))
    answer = await create(client, "a")
    assert (answer.status, answer.retry_after_s, answer.reason) == (429, 1.0, "TooManyRequests")
    assert len(sleeps) == TRIES - 1
    api.faults.clear()
    api.faults.refuse(too_many(when("create"), retry_after_s=60))
    answer = await create(client, "a")
    assert (answer.status, answer.retry_after_s) == (429, 60.0)
    assert len(sleeps) == TRIES - 1


async def test_refusals_of_admission_are_told_apart(client: Client, api: FakeApi, sleeps: Sleeps) -> None:
    """Quota (403), a webhook that says no (its own status), one that fails and a full database (500, undecided)."""
    match = when("create", "pods")
    cases = [
        (over_quota(match), 403, "Forbidden", "exceeded quota", False),
        (webhook_denies(match, "no latest tags"), 400, "", "no latest tags", False),
        (webhook_denies(match, "no such team", status=422), 422, "Invalid", "no such team", False),
        (webhook_fails(match), 500, "InternalError", "failed calling webhook", True),
        (database_full(match), 500, "", "database space exceeded", True),
    ]
    for rule, status, reason, words, undecided in cases:
        api.faults.clear()
        api.faults.refuse(rule)
        answer = await create(client, "a")
        assert (answer.status, answer.reason, answer.undecided) == (status, reason, undecided)
        assert words in answer.message
    assert sleeps == []


async def test_fault_3_an_answer_that_is_lost(client: Client, api: FakeApi) -> None:
    """Nobody knows, though it was done; asking again says AlreadyExists."""
    api.faults.lose(when("create", "pods"))
    with pytest.raises(Unreachable) as lost:
        await create(client, "a")
    assert lost.value.sent
    assert isinstance(lost.value, Unavailable)
    assert (await create(client, "a")).reason == "AlreadyExists"


async def test_a_request_that_is_lost(client: Client, api: FakeApi) -> None:
    """Looks the same, and was not done. It is not sent twice behind the caller's back."""
    await create(client, "warm")
    api.faults.drop(when("create", "pods"))
    with pytest.raises(Unreachable) as lost:
        await create(client, "a")
    assert lost.value.sent
    assert (await client.call("GET", f"{PODS}/a")).status == 404
    assert api.counts["create", "pods"] == 2


async def test_a_server_that_is_away_was_not_asked(client: Client, api: FakeApi) -> None:
    """Connection refused: nothing was sent, so it may be repeated. It works again when the server is back."""
    await api.stop()
    with pytest.raises(Unreachable) as away:
        await create(client, "a")
    assert not away.value.sent
    await api.start()
    assert (await create(client, "a")).status == 201


async def test_an_answer_that_does_not_come(api: FakeApi) -> None:
    """Is waited for so long and no longer; the server may still do it."""
    gate = api.faults.hold(when("create", "pods"))
    async with Client(api.connection, timeout_s=1.0) as client:
        with pytest.raises(Unreachable) as late:
            await create(client, "a")
    assert late.value.sent
    gate.open.set()
    await until(lambda: len(api.objects("pods")) == 1)


async def test_a_server_that_never_says_a_word() -> None:
    """A port that accepts and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Client(Connection(url), timeout_s=1.0) as client:
            with pytest.raises(Unreachable) as late:
                await client.call("GET", "/version")
    assert late.value.sent


async def test_so_many_are_in_flight() -> None:
    """And all are carried out."""
    now, seen = 0, []

    async def handle(request: web.BaseRequest) -> web.Response:
        nonlocal now
        now += 1
        seen.append(now)
        await asyncio.sleep(0.02)
        now -= 1
        return web.Response(body=b"{}")

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Client(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}"), in_flight=3) as client:
        await asyncio.gather(*(client.call("GET", f"/{number}") for number in range(20)))
    await runner.cleanup()
    assert (len(seen), max(seen)) == (20, 3)


async def test_credentials_are_asked_for_each_call(api: FakeApi) -> None:
    """They may have changed; where they are refused, once more after a renewal."""
    api.tokens = {"token-2"}
    given = itertools.count(1)
    renewals: list[bool] = []

    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer token-{next(given)}"}

    async def renew() -> bool:
        renewals.append(True)
        return True

    async with Client(Connection(api.url, headers=headers, renew=renew)) as client:
        assert (await client.call("GET", PODS)).status == 200
        answer = await client.call("GET", PODS)
        assert (answer.status, answer.reason) == (401, "Unauthorized")
    assert len(renewals) == 2
    assert next(given) == 5


async def test_a_stream_is_told_piece_by_piece(client: Client, api: FakeApi) -> None:
    """First an empty piece when the server answers, then what comes; its end is an end."""
    pieces = client.stream(PODS, params={"watch": "1"}, idle_s=PATIENCE_S)
    assert await anext(pieces) == b""
    await create(client, "a")
    line = await anext(pieces)
    assert msgspec.json.decode(line)["type"] == "ADDED"
    assert api.cut_watches() == 1
    assert [piece async for piece in pieces] == []


async def test_a_stream_may_break(client: Client, api: FakeApi) -> None:
    """By a reset, by silence, by a refusal; or it does not begin, as the server is away."""
    pieces = client.stream(PODS, params={"watch": "1"}, idle_s=PATIENCE_S)
    await anext(pieces)
    api.cut_watches(reset=True)
    with pytest.raises(Unreachable) as reset:
        await anext(pieces)
    assert reset.value.sent
    pieces = client.stream(PODS, params={"watch": "1"}, idle_s=1.0)
    await anext(pieces)
    with pytest.raises(Unreachable):
        await anext(pieces)
    with pytest.raises(Refused):
        await anext(client.stream("/api/v1/nothing", params={"watch": "1"}))
    await api.stop()
    with pytest.raises(Unreachable) as away:
        await anext(client.stream(PODS, params={"watch": "1"}))
    assert not away.value.sent


async def test_streams_do_not_count_as_requests_in_flight(api: FakeApi) -> None:
    """Or a few watches would stop everything."""
    async with Client(api.connection, in_flight=1, timeout_s=PATIENCE_S) as client:
        streams = [client.stream(PODS, params={"watch": "1"}, idle_s=PATIENCE_S) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        assert (await create(client, "a")).status == 201
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize(
    ("method", "path", "params", "expected"),
    [
        ("GET", "/api/v1/pods", None, ("list", "pods")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "pods")),
        ("GET", "/api/v1/pods", {"watch": "true"}, ("watch", "pods")),
        ("GET", f"{PODS}/a", None, ("get", "pods")),
        ("GET", f"{PODS}/a/log", None, ("get", "pods/log")),
        ("POST", PODS, None, ("create", "pods")),
        ("POST", f"{PODS}/a/binding", None, ("create", "pods/binding")),
        ("PATCH", f"{PODS}/a/status", None, ("patch", "pods/status")),
        ("PUT", "/api/v1/nodes/n", None, ("update", "nodes")),
        ("PATCH", "/api/v1/nodes/n/status", None, ("patch", "nodes/status")),
        ("DELETE", f"{PODS}/a", None, ("delete", "pods")),
        ("DELETE", PODS, None, ("deletecollection", "pods")),
        ("GET", "/api/v1/namespaces", None, ("list", "namespaces")),
        ("POST", "/api/v1/namespaces", None, ("create", "namespaces")),
        ("GET", "/api/v1/namespaces/x", None, ("get", "namespaces")),
        ("PUT", "/api/v1/namespaces/x/finalize", None, ("update", "namespaces/finalize")),
        (
            "PATCH",
            "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/x/podgroups/g/status",
            None,
            ("patch", "podgroups.scheduling.x-k8s.io/status"),
        ),
        (
            "GET",
            "/apis/scheduling.volcano.sh/v1beta1/queues",
            None,
            ("list", "queues.scheduling.volcano.sh"),
        ),
        ("GET", "/apis/scheduling.k8s.io/v1beta1", None, ("get", "/apis/scheduling.k8s.io/v1beta1")),
        ("GET", "/version", None, ("get", "/version")),
    ],
)
def test_what_a_call_is_called(
    method: str, path: str, params: dict[str, str] | None, expected: tuple[str, str]
) -> None:
    """As a role must allow it."""
    assert named(method, path, params) == expected


async def test_calls_are_counted(client: Client, api: FakeApi) -> None:
    """By what a role must allow; the fake, which reads paths by itself, has counted the same."""
    talk = Talk(client, "default")
    await talk.new_pod("a")
    await talk.bind("a", "n")
    await talk.merge(f"{talk.pods}/a/status", {"status": {"phase": "Running"}})
    await client.list("/api/v1/pods", Pod)
    await talk.post(f"{talk.here}/bindings", binding("a", "n"))
    await talk.delete(f"{talk.pods}/a")
    await talk.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases")
    await talk.get("/apis")
    assert dict(client.calls) == {
        ("create", "pods"): 1,
        ("create", "pods/binding"): 1,
        ("patch", "pods/status"): 1,
        ("list", "pods"): 1,
        ("create", "bindings"): 1,
        ("delete", "pods"): 1,
        ("deletecollection", "leases.coordination.k8s.io"): 1,
        ("get", "/apis"): 1,
    }
    assert api.counts == client.calls


async def test_query_parameters_are_escaped(client: Client) -> None:
    """Selectors hold blanks, commas and parentheses."""
    await create(client, "a")
    answer = await client.call("GET", PODS, params={"labelSelector": "a notin (b, c),!d"})
    assert len(msgspec.json.decode(answer.body)["items"]) == 1
    assert (await client.call("PATCH", f"{PODS}/a", body=b"{}", content_type=MERGE)).status == 200


async def test_hostile_retry_after(client: Client, api: FakeApi, sleeps: Sleeps) -> None:
    """A date, a fraction or nonsense counts as none; 429 without one is waited a second."""
    for told in ("Wed, 21 Oct 2026 07:28:00 GMT", "-5", "1.5", "²"):
        api.faults.clear()
        sleeps.clear()
        api.faults.refuse(
            answering(when("create"), 429, b"", {"Retry-After": told.encode("ascii", "replace").decode()}),
            times=1,
        )
        await create(client, "a")
        assert sleeps == [1.25]
