"""The scheduler's policy over HTTP: what goes in and comes out, and who is asked."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer
from fake_service import LIMITS, FakeService

from flowsched.api.server import build_api


async def test_a_profile_is_looked_at_and_replaced(api: TestClient) -> None:
    """As it was sent: the service reads it, YAML or JSON."""
    answer = await api.get("/api/v1/profile")
    assert (answer.status, (await answer.json())["name"]) == (200, "flowsched")
    answer = await api.put("/api/v1/profile", data=b'{"name": "lab"}')
    view = await answer.json()
    assert (answer.status, view["name"], view["since"]) == (200, "lab", "2026-03-01T12:00:00Z")
    assert view["refused"] is None


async def test_a_profile_with_faults_is_a_problem_with_each_of_them(api: TestClient) -> None:
    """422, as for a workflow document; a body that is too large is 413."""
    answer = await api.put("/api/v1/profile", data=b'{"window": 3}')
    problem = await answer.json()
    assert (answer.status, problem["faults"][0]["path"]) == (422, "$.name")
    answer = await api.put("/api/v1/profile", data=b" " * 5000)
    assert answer.status == 413


async def test_plugins_and_a_snapshot_are_answered(api: TestClient) -> None:
    """A list, and a file with a name."""
    (plugin,) = await (await api.get("/api/v1/plugins")).json()
    assert (plugin["name"], plugin["kind"], plugin["failures"], plugin["parameters"]) == (
        "only-ssd", "filter", 0, {},
    )  # fmt: skip
    answer = await api.get("/api/v1/snapshot")
    assert (answer.content_type, await answer.read()) == ("application/zip", b"PK snapshot")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="flowsched-snapshot.zip"'


async def test_the_leader_is_asked() -> None:
    """It is the one that schedules; a file passes through a standby as it is."""
    leading, standing = FakeService(), FakeService()
    async with TestServer(build_api(leading, limits=LIMITS)) as leader:
        standing.leads_at = str(leader.make_url("/"))
        async with TestClient(TestServer(build_api(standing, limits=LIMITS))) as client:
            assert (await client.put("/api/v1/profile", data=b'{"name": "lab"}')).status == 200
            assert (leading.policies.raw, standing.policies.raw) == (
                b'{"name": "lab"}', b'{"name": "flowsched"}',
            )  # fmt: skip
            answer = await client.get("/api/v1/snapshot")
            assert (answer.content_type, await answer.read()) == ("application/zip", b"PK snapshot")
