"""Following pods through cuts, silence, disorder and rubbish: the picture is true in the end, and never goes back."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import GRAVES, STALE_LISTS, Lines, Memory, Reflector
from flowsched.cluster.kubernetes.objects.metadata import Metadata
from flowsched.cluster.kubernetes.objects.pod import Pod
from tests.kubernetes.fake import (
    FakeApi,
    Request,
    Shuffled,
    Spoiled,
    answering,
    duplicated,
    status_body,
    too_many,
    when,
)
from tests.kubernetes.following import Follower, Time

POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "i"}]}}


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """A fake of the test's own."""
    async with FakeApi() as api:
        yield api


@pytest.fixture
async def client(api: FakeApi) -> AsyncIterator[Client]:
    """Of the fake."""
    async with Client(api.connection) as client:
        yield client


@pytest.fixture
def time() -> Time:
    """A clock that runs only while somebody sleeps."""
    return Time()


def new(api: FakeApi, name: str, **metadata: Any) -> dict[str, Any]:
    """Create a pod behind the network."""
    return api.add({**POD, "metadata": {"name": name, **metadata}})


def label(api: FakeApi, name: str, value: str) -> None:
    """Change a pod behind the network."""
    body = json.dumps({"metadata": {"labels": {"x": value}}}).encode()
    path = f"/api/v1/namespaces/default/pods/{name}"
    assert (
        api.handle(Request("PATCH", path, body=body, content_type="application/merge-patch+json")).status
        == 200
    )


def end(api: FakeApi, name: str) -> None:
    """Delete a pod behind the network."""
    assert api.handle(Request("DELETE", f"/api/v1/namespaces/default/pods/{name}")).status == 200


def truth(api: FakeApi) -> dict[str, str]:
    """Name -> version, as it is."""
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in api.objects("pods")}


def event(kind: str, name: str, version: int, **fields: Any) -> bytes:
    """A line of a watch."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": metadata, **fields}}).encode() + b"\n"


async def test_first_everything_then_every_change(api: FakeApi, client: Client) -> None:
    """A complete list, also if it is empty; then the changes in order."""
    async with Follower(client) as follower:
        await follower.until(lambda: follower.lists == 1)
        assert follower.batches[0].replaced == []
        assert follower.reflector.synced
        new(api, "a")
        label(api, "a", "1")
        end(api, "a")
        new(api, "b")
        await follower.until(lambda: follower.picture.names == ["b"])
        changes = ["ADDED a", "MODIFIED a", "MODIFIED a", "DELETED a", "ADDED b"]
        assert [" ".join(change) for change in follower.changes] == changes
        assert (follower.lists, follower.reflector.counts.events) == (1, 5)
    async with Follower(client) as follower:
        await follower.until(lambda: follower.picture.names == ["b"])
        assert follower.changes == []


async def test_a_cut_misses_nothing(api: FakeApi, client: Client, time: Time) -> None:
    """The stream goes on from the last version seen: no new list, nothing twice, and at once."""
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])
        time.now += 10
        api.cut_watches()
        end(api, "a")
        new(api, "b")
        await follower.until(lambda: follower.picture.names == ["b"])
        assert follower.changes == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
        assert (follower.lists, follower.reflector.counts.reconnects, time.waits) == (1, 1, [])


async def test_a_reset_misses_nothing(api: FakeApi, client: Client, time: Time) -> None:
    """As a clean end."""
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        api.cut_watches(reset=True)
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])
        assert follower.lists == 1


async def test_fault_20_a_forgotten_version_leads_to_a_new_list(
    api: FakeApi, client: Client, time: Time
) -> None:
    """What ended meanwhile is not in it; nothing is told twice."""
    for name in ("a", "b"):
        new(api, name)
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        api.cut_watches()
        end(api, "a")
        new(api, "c")
        api.compact()
        await follower.until(lambda: follower.picture.names == ["b", "c"])
        assert (follower.lists, follower.changes, follower.reflector.counts.relists) == (2, [], 1)
        label(api, "b", "1")
        await follower.until(lambda: follower.changes == [("MODIFIED", "b")])


async def test_a_410_by_http_leads_to_a_new_list_too(api: FakeApi, client: Client, time: Time) -> None:
    """Some servers answer like that."""
    api.faults.refuse(answering(when("watch"), 410, status_body(410, "too old")), times=1)
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: follower.lists == 2)
        await follower.until(lambda: api.watches == 1)


async def test_a_server_that_always_forgets_is_not_stormed(api: FakeApi, client: Client, time: Time) -> None:
    """Lists succeed and watches do not: the pause between rounds grows all the same."""
    api.faults.refuse(answering(when("watch"), 410, status_body(410, "too old")))
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: follower.lists >= 12)
        assert follower.lists <= time.now + 3
        assert max(time.waits) == 20 * 1.25


async def test_a_server_that_was_away_and_has_forgotten_is_listed_at_once(
    api: FakeApi, client: Client, time: Time
) -> None:
    """The waits of the outage do not count against it: work goes on within half a minute (P10)."""
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        await api.stop()
        await follower.until(lambda: len(time.waits) >= 6)
        new(api, "a")
        api.compact()
        await api.start()
        before = len(time.waits)
        await follower.until(lambda: follower.picture.names == ["a"])
        assert len(time.waits) <= before + 1  # the one that it was in


async def test_another_error_event_is_waited_out_and_listed(api: FakeApi, client: Client, time: Time) -> None:
    """Then all is well again."""
    broken = b'{"type":"ERROR","object":' + status_body(500, "etcd is confused") + b"}\n"
    told: list[str] = []

    def lines(request: Request, lines: list[bytes]) -> list[bytes]:
        return [*lines, broken] if lines and not told.append("once") and len(told) == 1 else lines

    api.faults.lines = lines
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        new(api, "a")
        await follower.until(lambda: follower.lists == 2)
        assert time.waits == [1.25]
        new(api, "b")
        await follower.until(lambda: follower.picture.names == ["a", "b"])
        assert follower.reflector.problem == ""


async def test_fault_21_silence_is_noticed(api: FakeApi, client: Client, time: Time) -> None:
    """A stream on which not even bookmarks come is left for a new one, which goes on from the last version."""
    async with Follower(client, time=time, idle_s=0.1) as follower:
        await follower.until(lambda: api.watches == 1)
        api.silence()
        new(api, "a")
        await follower.until(lambda: follower.reflector.counts.reconnects >= 2)
        assert follower.picture.names == []
        api.speak()
        await follower.until(lambda: follower.picture.names == ["a"])
        assert follower.lists == 1


async def test_a_collection_that_is_always_silent_is_no_trouble(
    api: FakeApi, client: Client, time: Time
) -> None:
    """Where nothing happens there may be no bookmarks either: each new stream begins at once."""
    async with Follower(client, time=time, idle_s=0.1) as follower:
        for number in range(4):
            await follower.until(
                lambda n=number: follower.reflector.counts.reconnects == n and api.watches == 1
            )
            time.now += 40
        await follower.until(lambda: follower.reflector.counts.reconnects == 4)
        assert time.waits == []
        assert follower.lists == 1


async def test_fault_22_a_server_that_closes_every_watch_is_not_stormed(
    api: FakeApi, client: Client, time: Time
) -> None:
    """Nothing comes of the connections: 0, 1, 2, 4 … 20 s between them, plus a jitter."""
    api.faults.refuse(answering(when("watch"), 200, b""))
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.counts["watch", "pods"] >= 10)
        assert time.waits[:7] == [1.25, 2.5, 5.0, 10.0, 20.0, 25.0, 25.0]
        assert follower.lists == 1
        api.faults.clear()
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])


async def test_fault_22_connections_that_bring_something_are_spaced_too(
    api: FakeApi, client: Client, time: Time
) -> None:
    """One event each, then the end: on average more than a second apart, and no more than that."""
    version = iter(range(100, 10_000))
    api.faults.refuse(
        lambda request: (200, event("MODIFIED", "a", next(version)), {}) if request.watching else None
    )
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: follower.reflector.counts.events >= 40)
        connects, elapsed = api.counts["watch", "pods"], time.now
        assert elapsed / 2 < connects - 3 < elapsed


async def test_a_server_that_is_away_is_waited_for(api: FakeApi, client: Client, time: Time) -> None:
    """It is said what is wrong; then the stream goes on, and nothing is missed."""
    new(api, "a")
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        await api.stop()
        await follower.until(lambda: len(time.waits) > 5)
        assert "Connect call failed" in follower.reflector.problem
        assert not follower.reflector.synced
        new(api, "b")
        await api.start()
        await follower.until(lambda: follower.picture.names == ["a", "b"])
        assert follower.reflector.synced
        assert follower.lists == 1


async def test_a_list_is_tried_until_it_succeeds(api: FakeApi, client: Client, time: Time) -> None:
    """Through refusals, malformed answers and a Retry-After; nothing is told before it is complete."""
    api.faults.refuse(answering(when("list"), 403, status_body(403, "not yet")), times=2)
    api.faults.refuse(answering(when("list"), 200, b"{"), times=1)
    api.faults.refuse(too_many(when("list"), retry_after_s=60), times=1)
    new(api, "a")
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: follower.lists == 1)
        assert follower.picture.names == ["a"]
        assert time.waits == [1.25, 2.5, 75.0]
        assert follower.reflector.synced


async def test_fault_8_disorder_never_leads_back(api: FakeApi, client: Client, time: Time) -> None:
    """Events twice, out of order, old ones again: the picture checks every step, and is true in the end."""
    for seed in range(10):
        api.faults.lines = Shuffled(seed)
        chance = random.Random(seed)
        async with Follower(client, time=time) as follower:
            await follower.until(lambda: api.watches == 1)
            for step in range(60):
                disturb(api, chance, f"s{seed}-{step}")
                if step % 10 == 0:
                    await follower.until(lambda: follower.reflector.version >= api.store.version)
            await follower.until(lambda f=follower: f.picture.versions == truth(api))
            assert follower.reflector.counts.outdated > 0
            assert follower.lists == 1


def disturb(api: FakeApi, chance: random.Random, name: str) -> None:
    """Create, change or delete a pod."""
    names = list(truth(api))
    kind = chance.random()
    if not names or kind < 0.4:
        new(api, name)
    elif kind < 0.75:
        label(api, chance.choice(names), name)
    else:
        end(api, chance.choice(names))


async def test_what_has_ended_stays_ended(api: FakeApi, client: Client) -> None:
    """A late event of it is dropped; another pod of its name is another pod."""
    new(api, "a")
    uid = api.objects("pods")[0]["metadata"]["uid"]
    async with Follower(client) as follower:
        await follower.until(lambda: api.watches == 1)
        ghost = json.dumps({**POD, "metadata": {"name": "a", "uid": uid, "resourceVersion": "8"}}).encode()
        api.faults.lines = lambda request, lines: [*lines, b'{"type":"ADDED","object":' + ghost + b"}\n"]
        end(api, "a")
        await follower.until(lambda: follower.reflector.counts.outdated > 0)
        assert follower.picture.names == []
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])
        assert uid not in follower.picture.pods


async def test_what_leaves_a_selector_may_come_back(api: FakeApi, client: Client) -> None:
    """It is DELETED and ADDED with the same uid, and a higher version."""
    async with aclosing(
        Reflector(client, "/api/v1/pods", Pod, params={"labelSelector": "x=1"}).changes()
    ) as batches:
        assert (await anext(batches)).replaced == []
        new(api, "a", labels={"x": "1"})
        label(api, "a", "2")
        label(api, "a", "1")
        seen: list[str] = []
        while len(seen) < 3:
            seen += [change for change, _ in (await anext(batches)).changed]
        assert seen == ["ADDED", "DELETED", "ADDED"]


async def test_a_stale_list_is_not_believed(api: FakeApi, client: Client, time: Time) -> None:
    """What a server tells from an old cache would bring back what has ended. It is asked again."""
    new(api, "a")
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        api.freeze_lists(times=STALE_LISTS - 1)
        end(api, "a")
        new(api, "b")
        await follower.until(lambda: follower.picture.names == ["b"])
        api.cut_watches()
        new(api, "c")
        api.compact()
        await follower.until(lambda: follower.picture.names == ["b", "c"])
        assert follower.reflector.counts.outdated == STALE_LISTS - 1
        assert follower.lists == 2


async def test_a_stale_list_that_is_repeated_is_believed(api: FakeApi, client: Client, time: Time) -> None:
    """Versions really go back when etcd is restored from a backup."""
    new(api, "a")
    async with aclosing(
        Reflector(client, "/api/v1/pods", Pod, clock=time, sleep=time.sleep, jitter=lambda: 0.5).changes()
    ) as batches:
        assert len((await anext(batches)).replaced or []) == 1
        old = b'{"metadata":{"resourceVersion":"3"},"items":[]}'
        api.faults.refuse(answering(when("list"), 200, old))
        api.faults.refuse(answering(when("watch"), 410, status_body(410, "too old")), times=1)
        batch = await anext(batches)
        assert batch.replaced == []
        assert api.counts["list", "pods"] == 1 + STALE_LISTS
        assert len(time.waits) == STALE_LISTS - 1
        uid = api.objects("pods")[0]["metadata"]["uid"]
        line = json.dumps(
            {"type": "ADDED", "object": {"metadata": {"uid": uid, "resourceVersion": "4"}}}
        ).encode()
        api.faults.refuse(answering(when("watch"), 200, line + b"\n"))
        assert [each.metadata.uid for _, each in (await anext(batches)).changed] == [uid]


async def test_fault_27_rubbish_is_skipped_and_counted(api: FakeApi, client: Client) -> None:
    """Lines that nobody can read, between good ones: all good ones arrive."""
    spoiled = Spoiled()
    api.faults.lines = spoiled
    async with Follower(client) as follower:
        await follower.until(lambda: api.watches == 1)
        for number in range(30):
            new(api, f"a{number}")
        await follower.until(lambda: len(follower.picture.names) == 30)
        assert follower.reflector.counts.skipped == spoiled.told == 30
        assert follower.lists == 1


async def test_fault_27_a_line_of_five_mebibytes(api: FakeApi, client: Client) -> None:
    """Is a line like any other."""
    async with Follower(client) as follower:
        await follower.until(lambda: api.watches == 1)
        new(api, "a", annotations={"long": "x" * (5 << 20)})
        new(api, "b")
        await follower.until(lambda: follower.picture.names == ["a", "b"])
        found = next(each for each in follower.picture.pods.values() if each.metadata.name == "a")
        assert len(found.metadata.annotations["long"]) == 5 << 20


async def test_fault_27_an_event_beyond_the_limit(api: FakeApi, client: Client) -> None:
    """Is dropped and counted; those around it are not."""
    async with Follower(client, longest_line_bytes=100_000) as follower:
        await follower.until(lambda: api.watches == 1)
        new(api, "a")
        new(api, "b", annotations={"long": "x" * 200_000})
        new(api, "c")
        await follower.until(lambda: follower.picture.names == ["a", "c"])
        assert follower.reflector.counts.skipped == 1


async def test_fault_27_an_object_that_cannot_be_decoded_is_not_gone(api: FakeApi, client: Client) -> None:
    """It is named as unread, in events and lists; only its end is told as an end."""
    body = {
        "metadata": {"resourceVersion": "10"},
        "items": [{"metadata": {"name": "b", "uid": "uid-b"}, "spec": 7}],
    }
    api.faults.refuse(answering(when("list"), 200, json.dumps(body).encode()))
    told = (
        event("ADDED", "a", 11)
        + event("MODIFIED", "a", 12, spec=7)
        + event("DELETED", "a", 13, status="gone")
    )
    api.faults.refuse(answering(when("watch"), 200, told), times=1)
    async with Follower(client, time=Time()) as follower:
        await follower.until(lambda: follower.reflector.counts.reconnects > 0)
        listed, changed = follower.batches[:2]
        assert (listed.replaced, [each.uid for each in listed.unread]) == ([], ["uid-b"])
        assert follower.changes == [("ADDED", "a"), ("DELETED", "a")]
        assert [(each.uid, each.resource_version) for each in changed.unread] == [("uid-a", "12")]
        assert follower.reflector.counts.skipped == 3
        assert follower.reflector.version == 13


async def test_many_events_are_few_batches(api: FakeApi, client: Client) -> None:
    """Who was busy while 5,000 events came gets them in some big pieces, in order."""
    reflector = Reflector(client, "/api/v1/pods", Pod)
    async with aclosing(reflector.changes()) as batches:
        await anext(batches)
        first = asyncio.ensure_future(anext(batches))
        new(api, "first")
        await first
        for number in range(5000):
            new(api, f"a{number}")
        sizes: list[int] = []
        names: list[str] = []
        while len(names) < 5000:
            batch = await anext(batches)
            sizes.append(len(batch.changed))
            names += [each.metadata.name for _, each in batch.changed]
        assert names == [f"a{number}" for number in range(5000)]
        assert len(sizes) < 100


async def test_bookmarks_save_a_list(client: Client) -> None:
    """While only other kinds are written, the version moves with them: after a cut nothing is too old."""
    async with (
        FakeApi(bookmark_s=0.02) as api,
        Client(api.connection) as client,
        Follower(client) as follower,
    ):
        await follower.until(lambda: api.watches == 1)
        for number in range(5):
            api.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}})
        await follower.until(lambda: follower.reflector.version == api.store.version)
        api.compact()
        api.cut_watches()
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])
        assert (follower.lists, follower.reflector.counts.reconnects) == (1, 1)


async def test_silence_can_be_measured(api: FakeApi, client: Client, time: Time) -> None:
    """In seconds since the server was last heard."""
    async with Follower(client, time=time) as follower:
        await follower.until(lambda: api.watches == 1)
        time.now += 7
        assert follower.reflector.silent_s == 7
        new(api, "a")
        await follower.until(lambda: follower.picture.names == ["a"])
        assert follower.reflector.silent_s == 0


async def test_who_stops_reading_stops_the_watch(api: FakeApi, client: Client) -> None:
    """No connection is left behind."""
    follower = Follower(client)
    async with follower:
        await follower.until(lambda: api.watches == 1)
    async with Follower(client) as other:
        await other.until(lambda: api.counts["watch", "pods"] == 2 and api.watches == 1)


@pytest.mark.parametrize("seed", range(12))
async def test_the_picture_is_true_after_any_trouble(api: FakeApi, time: Time, seed: int) -> None:
    """Cuts, resets, lost answers, forgotten versions, duplicates, rubbish and outages, in any order."""
    chance = random.Random(seed)
    # A connection that the fake accepts while it stops stays open, and nobody answers there: it is given up soon.
    async with (
        Client(api.connection, timeout_s=2) as client,
        Follower(client, time=time, page=3, idle_s=2) as follower,
    ):
        for step in range(80):
            for number in range(chance.randrange(4)):
                disturb(api, chance, f"p{step}-{number}")
            match chance.randrange(14):
                case 0:
                    api.cut_watches()
                case 1:
                    api.cut_watches(reset=True)
                case 2:
                    api.compact()
                case 3:
                    api.faults.lines = chance.choice([None, duplicated, Spoiled()])
                case 4:
                    api.faults.refuse(answering(when("list"), 500, b"no"), times=1)
                case 5:
                    api.faults.drop(when("watch"))
                case 6:
                    api.faults.lose(when("list"))
                case 7:
                    await api.stop()
                    disturb(api, chance, f"p{step}-down")
                    await api.start()
                case 8 | 9:
                    await follower.until(lambda: follower.reflector.version >= api.store.version)
                case _:
                    await asyncio.sleep(0.001 * chance.randrange(5))
        await follower.until(lambda: follower.picture.versions == truth(api))


PIECES = st.lists(st.binary(max_size=40).map(lambda noise: noise.replace(b"x", b"\n")), max_size=30)


@given(PIECES)
def test_lines_do_not_depend_on_how_a_stream_is_cut(pieces: list[bytes]) -> None:
    """The same bytes give the same lines."""
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)]
    *whole, _ = b"".join(pieces).split(b"\n")
    assert found == [line for line in whole if line]
    assert lines.drain_dropped() == 0


@given(PIECES)
def test_lines_that_are_too_long_are_dropped_whole(pieces: list[bytes]) -> None:
    """And only those: the next one is read from its beginning."""
    lines = Lines(longest_bytes=10)
    found = [line for piece in pieces for line in lines.feed(piece)]
    *whole, _ = b"".join(pieces).split(b"\n")
    complete = {bytes(line) for line in whole}
    assert all(line in complete for line in found)
    assert [line for line in whole if line and len(line) <= 10] == [line for line in found if len(line) <= 10]


def test_a_line_that_never_ends_takes_no_memory() -> None:
    """It is dropped as soon as it is too long, and counted once."""
    lines = Lines(longest_bytes=1000)
    for _ in range(1000):
        assert lines.feed(b"x" * 100) == []
    assert lines.drain_dropped() == 1
    assert lines.feed(b"x\nnext\n") == [b"next"]
    assert lines.drain_dropped() == 0


def test_memory_of_the_dead_is_bounded() -> None:
    """The oldest graves are forgotten; nothing of the living is."""
    memory = Memory()
    memory.begin(5)
    assert memory.is_news(Metadata(uid="back", resource_version="7"), buried=True)
    assert memory.is_news(Metadata(uid="back", resource_version="8"), buried=False)
    assert memory.is_news(Metadata(uid="living", resource_version="6"), buried=False)
    for number in range(GRAVES + 10):
        assert memory.is_news(Metadata(uid=f"u{number}", resource_version=str(10 + number)), buried=True)
    assert not memory.is_news(Metadata(uid="living", resource_version="6"), buried=False)
    assert not memory.is_news(Metadata(uid="back", resource_version="8"), buried=False)
    assert not memory.is_news(Metadata(uid=f"u{GRAVES}", resource_version="9"), buried=False)
    assert not memory.is_news(Metadata(uid="another", resource_version="5"), buried=False)
    assert len(memory._versions) == GRAVES + 2
    assert memory.newest == 10 + GRAVES + 9


def test_memory_begins_again_with_a_list() -> None:
    """After a restored backup versions are lower than those of yesterday, and news all the same."""
    memory = Memory()
    memory.begin(5)
    assert memory.is_news(Metadata(uid="u", resource_version="9"), buried=False)
    memory.begin(3)
    assert memory.newest == 3
    assert memory.is_news(Metadata(uid="u", resource_version="4"), buried=False)
