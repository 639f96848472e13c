"""How watches behave, on the real API server and on our fake. See `conformance`."""

from __future__ import annotations

import asyncio

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Refused
from tests.kubernetes.talk import PATIENCE_S, Talk, told


class WatchConformance:
    """One behaviour of watches per test."""

    @pytest.fixture
    def talk(self, client: Client, namespace: str) -> Talk:
        """In a namespace of the test's own."""
        return Talk(client, namespace)

    async def test_a_watch_tells_what_happens_after_a_version(self, talk: Talk) -> None:
        """Created, bound, ending, gone: an unbound or graceless end is first MODIFIED, then DELETED."""
        version = await talk.version(talk.pods)
        await talk.new_pod("a")
        await talk.bind("a", "some-node")
        await talk.delete(f"{talk.pods}/a", {"gracePeriodSeconds": 7})
        await talk.delete(f"{talk.pods}/a", {"gracePeriodSeconds": 0})
        await talk.new_pod("b")
        await talk.delete(f"{talk.pods}/b")
        events = await talk.next_events(8, talk.pods, resourceVersion=version)
        assert told(events) == [
            ("ADDED", "a"),
            ("MODIFIED", "a"),
            ("MODIFIED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "b"),
            ("DELETED", "b"),
        ]
        versions = [int(found["metadata"]["resourceVersion"]) for _, found in events]
        assert versions == sorted(set(versions))
        assert versions[0] > int(version)

    async def test_a_watch_without_a_version_begins_with_what_there_is(self, talk: Talk) -> None:
        """As ADDED; version 0 does the same."""
        await talk.new_pod("a")
        await talk.new_pod("b")
        for version in ({}, {"resourceVersion": "0"}):
            assert told(await talk.next_events(2, talk.pods, **version)) == [("ADDED", "a"), ("ADDED", "b")]

    async def test_what_happens_while_one_watches_is_told(self, talk: Talk) -> None:
        """At once, to all who watch."""
        version = await talk.version(talk.pods)
        watchers = [
            asyncio.create_task(talk.next_events(2, talk.pods, resourceVersion=version)) for _ in range(3)
        ]
        await asyncio.sleep(0.2)
        await talk.new_pod("a")
        await talk.bind("a", "some-node")
        for watcher in watchers:
            assert told(await watcher) == [("ADDED", "a"), ("MODIFIED", "a")]

    async def test_what_leaves_a_label_selector_is_deleted_for_its_watchers(self, talk: Talk) -> None:
        """And ADDED when it comes back, with a higher version."""
        version = await talk.version(talk.pods)
        await talk.new_pod("a", metadata={"labels": {"x": "1"}})
        for value in ("2", "1"):
            await talk.merge(f"{talk.pods}/a", {"metadata": {"labels": {"x": value}}})
        events = await talk.next_events(3, talk.pods, resourceVersion=version, labelSelector="x=1")
        assert told(events) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
        assert [found["metadata"]["labels"]["x"] for _, found in events] == ["1", "1", "1"]
        versions = [int(found["metadata"]["resourceVersion"]) for _, found in events]
        assert versions == sorted(set(versions))

    async def test_what_leaves_a_field_selector_is_deleted_for_its_watchers(self, talk: Talk) -> None:
        """A watch of unbound pods sees a bind as a deletion; the object is as it was before."""
        version = await talk.version(talk.pods)
        await talk.new_pod("a")
        await talk.bind("a", "some-node")
        events = await talk.next_events(2, talk.pods, resourceVersion=version, fieldSelector="spec.nodeName=")
        assert told(events) == [("ADDED", "a"), ("DELETED", "a")]
        assert "nodeName" not in events[1][1]["spec"]
        assert int(events[1][1]["metadata"]["resourceVersion"]) > int(
            events[0][1]["metadata"]["resourceVersion"]
        )

    async def test_a_watch_sees_only_its_namespace(self, talk: Talk) -> None:
        """A pod elsewhere comes between two of this namespace, and is not told."""
        version = await talk.version(talk.pods)
        other = "/api/v1/namespaces/default/pods"
        name = f"other-{talk.namespace}"
        await talk.new_pod("a")
        await talk.post(
            other,
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        )
        await talk.delete(f"{other}/{name}")
        await talk.new_pod("b")
        events = await talk.next_events(2, talk.pods, resourceVersion=version)
        assert told(events) == [("ADDED", "a"), ("ADDED", "b")]

    async def test_a_watch_ends_when_its_time_is_over(self, talk: Talk) -> None:
        """Without an ERROR: a clean end of the stream."""
        await talk.new_pod("a")
        async with asyncio.timeout(PATIENCE_S):
            events = [event async for event in talk.events(talk.pods, timeoutSeconds="1")]
        assert told(events) == [("ADDED", "a")]

    async def test_a_version_that_is_forgotten_is_told_by_an_error_event(self, talk: Talk) -> None:
        """HTTP 200, then ERROR with code 410, then the end. Here: from before the kind was defined."""
        from tests.kubernetes.conformance import define

        await talk.new_pod("a")
        group = f"w{talk.namespace}.example.com"
        await define(talk, group)
        events = await talk.next_events(2, f"/apis/{group}/v1/things", resourceVersion="1")
        assert len(events) == 1
        kind, status = events[0]
        assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")

    async def test_a_version_of_the_future_is_waited_for(self, talk: Talk) -> None:
        """In silence."""
        version = int(await talk.version(talk.pods)) + 1_000_000
        await talk.new_pod("a")
        watcher = asyncio.create_task(talk.next_events(1, talk.pods, resourceVersion=str(version)))
        done, _ = await asyncio.wait([watcher], timeout=1.5)
        assert not done
        watcher.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watcher

    async def test_a_version_that_is_none_is_refused(self, talk: Talk) -> None:
        """Before any event."""
        with pytest.raises(Refused) as refused:
            await talk.next_events(1, talk.pods, resourceVersion="abc")
        assert refused.value.answer.status == 500

    async def test_bookmarks_come_to_those_who_allow_them(self, talk: Talk) -> None:
        """They tell a version and nothing else: here at the end of the initial state."""
        await talk.new_pod("a")
        params = {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "allowWatchBookmarks": "true",
        }
        events = await talk.next_events(2, talk.pods, **params)
        assert [kind for kind, _ in events] == ["ADDED", "BOOKMARK"]
        metadata = events[1][1]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(metadata["resourceVersion"]) >= int(events[0][1]["metadata"]["resourceVersion"])
        assert "name" not in metadata

    async def test_a_write_that_changes_nothing_is_no_event(self, talk: Talk) -> None:
        """The next event is of the next change."""
        version = await talk.version(talk.pods)
        await talk.new_pod("a", metadata={"labels": {"x": "1"}})
        await talk.merge(f"{talk.pods}/a", {"metadata": {"labels": {"x": "1"}}})
        await talk.merge(f"{talk.pods}/a", {"metadata": {"labels": {"x": "2"}}})
        events = await talk.next_events(2, talk.pods, resourceVersion=version)
        assert [found["metadata"]["labels"]["x"] for _, found in events] == ["1", "2"]
