"""Plans over HTTP: what reaches the service, and what comes back."""

from __future__ import annotations

from aiohttp import FormData
from aiohttp.test_utils import TestClient
from fake_service import FakeService

from flowsched.workflow.views import CromwellSource, PlanBody


async def test_a_plan_is_made_from_json(api: TestClient, service: FakeService) -> None:
    """201, with its place; the source may have as many lines as it likes."""
    body = {
        "source": "version 1.0\n" * 2000,
        "imports": {"a.wdl": "x"},
        "inputs": {"w.n": [1]},
        "sizes": {"/f": 7},
        "run": "r",
    }
    answer = await api.post("/api/v1/plans", json=body)
    assert (answer.status, answer.headers["Location"]) == (201, "/api/v1/plans/p2")
    assert (await answer.json())["run"] == "r"
    assert service.plans.asked == [PlanBody(**body)]


async def test_a_plan_is_made_of_a_run_of_cromwell(api: TestClient, service: FakeService) -> None:
    """Its address and its id reach the service, which knows whom it may ask."""
    await api.post("/api/v1/plans", json={"cromwell": {"url": "http://c", "root_workflow_id": "x"}})
    assert service.plans.asked == [PlanBody(cromwell=CromwellSource(url="http://c", root_workflow_id="x"))]


async def test_plans_are_listed_shown_and_removed(api: TestClient) -> None:
    """What is gone is gone."""
    assert [plan["id"] for plan in (await (await api.get("/api/v1/plans?limit=5")).json())["plans"]] == ["p1"]
    shown = await (await api.get("/api/v1/plans/p1")).json()
    assert (shown["plan"]["nodes"][0]["path"], shown["plan"]["nodes"][0]["tasks"]) == ("germline.align", 3)
    assert (await api.delete("/api/v1/plans/p1")).status == 200
    assert (await api.get("/api/v1/plans/p1")).status == 404
    assert (await api.delete("/api/v1/plans/p1")).status == 404


async def test_a_body_beyond_the_limit_is_refused(api: TestClient, service: FakeService) -> None:
    """As for workflows: 413, in either form; nothing reaches the service."""
    assert (await api.post("/api/v1/plans", json={"source": "x" * (11 << 20)})).status == 413
    form = FormData(default_to_multipart=True)
    form.add_field("workflowSource", "x\n" * (6 << 20))
    assert (await api.post("/api/v1/plans", data=form)).status == 413
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert (await api.post("/api/v1/plans", data=b"x" * (1 << 20), headers=headers)).status == 400
    assert service.plans.asked == []


async def test_a_page_of_another_origin_makes_no_plan(api: TestClient, service: FakeService) -> None:
    """It costs a minute of CPU at most, and still nobody else's page may ask for it."""
    answer = await api.post("/api/v1/plans", json={"source": "x"}, headers={"Origin": "http://evil.example"})
    assert (answer.status, service.plans.asked) == (403, [])
