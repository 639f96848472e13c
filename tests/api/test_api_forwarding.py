"""Replicas: a standby sends on to the leader what only that one knows."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer
from fake_service import LIMITS, FakeService

from flowsched.api.server import build_api
from flowsched.workflow.views import WaitingView

TOKEN = {"Authorization": "Bearer word"}


async def test_a_standby_answers_with_what_the_leader_knows() -> None:
    """Queues are the leader's; the caller's own token is checked here and there."""
    leading, standing = FakeService(), FakeService()
    async with TestServer(build_api(leading, token="word", limits=LIMITS)) as leader:
        standing.leads_at = str(leader.make_url("/"))
        async with TestClient(TestServer(build_api(standing, token="word", limits=LIMITS))) as client:
            made = await client.put("/api/v1/queues/gold", json={"weight": 3}, headers=TOKEN)
            assert made.status == 200
            assert "gold" in leading.queue_settings
            assert "gold" not in standing.queue_settings
            assert (await client.delete("/api/v1/queues/gold", headers=TOKEN)).status == 200
            assert "gold" not in leading.queue_settings
            assert (await client.get("/api/v1/queues")).status == 401


async def test_why_something_waits_is_known_by_every_replica() -> None:
    """Workflows are in the database; the leader alone knows why they wait. While it is silent the others answer without that."""
    waiting = WaitingView(stage="a", tasks=1, state="QUEUED", code="Insufficient", message="no room")
    leading, standing = FakeService(), FakeService()
    leading.add("w", state="QUEUED", waiting=waiting)
    standing.add("w", state="QUEUED")
    async with TestClient(TestServer(build_api(standing, limits=LIMITS))) as client:

        async def told() -> list[object]:
            one = await (await client.get("/api/v1/workflows/wf1")).json()
            listed = await (await client.get("/api/v1/workflows")).json()
            assert one["state"] == "QUEUED"
            return [view["waiting"] and view["waiting"]["message"] for view in (one, *listed["workflows"])]

        assert await told() == [None, None]
        async with TestServer(build_api(leading, limits=LIMITS)) as leader:
            standing.leads_at = str(leader.make_url("/"))
            assert await told() == ["no room", "no room"]
        assert await told() == [None, None]


async def test_a_leader_that_does_not_answer_is_said_to_be_away() -> None:
    """503 with its address, and when to come again."""
    standing = FakeService()
    standing.leads_at = "http://127.0.0.1:9"
    async with TestClient(TestServer(build_api(standing, limits=LIMITS))) as client:
        answer = await client.get("/api/v1/queues")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert "http://127.0.0.1:9 does not answer" in (await answer.json())["detail"]


async def test_two_standbys_do_not_send_a_request_round_for_ever() -> None:
    """Each believes that the other leads: the second answers for itself."""
    one, other = FakeService(), FakeService()
    async with TestServer(build_api(one, limits=LIMITS)) as first:
        other.leads_at = str(first.make_url("/"))
        async with TestClient(TestServer(build_api(other, limits=LIMITS))) as client:
            one.leads_at = str(client.make_url("/"))
            assert (await client.get("/api/v1/queues")).status == 200
