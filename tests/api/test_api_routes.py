"""Every route, asked as a client asks: what it passes to the service and what it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient
from fake_service import FakeService, workflow_view
from structlog.testing import capture_logs

import flowsched.web
from flowsched import errors

DOCUMENT = b'{"name": "germline", "stages": []}'


async def test_a_submission_is_accepted_and_says_where_it_is(api: TestClient, service: FakeService) -> None:
    """202, its id, its address; the bytes arrive as they were sent."""
    answer = await api.post("/api/v1/workflows", data=DOCUMENT)
    assert answer.status == 202
    assert await answer.json() == {"id": "wf1", "created": True, "url": "/api/v1/workflows/wf1", "notes": []}
    assert answer.headers["Location"] == "/api/v1/workflows/wf1"
    assert await (await api.get("/api/v1/workflows/wf1/document")).read() == DOCUMENT


async def test_the_same_key_is_accepted_once(api: TestClient, service: FakeService) -> None:
    """200 and the same id for the same body, 409 for another."""
    headers = {"Idempotency-Key": "key-1"}
    first = await api.post("/api/v1/workflows", data=DOCUMENT, headers=headers)
    again = await api.post("/api/v1/workflows", data=DOCUMENT, headers=headers)
    other = await api.post("/api/v1/workflows", data=b'{"name": "x"}', headers=headers)
    assert (first.status, again.status, other.status) == (202, 200, 409)
    assert (await again.json())["id"] == "wf1"
    assert (await other.json())["title"] == "The present state does not allow this"
    assert len(service.workflows) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "ä"])
async def test_a_key_is_short_printable_text(api: TestClient, key: str) -> None:
    """Anything else is a 400 about the header."""
    answer = await api.post("/api/v1/workflows", data=DOCUMENT, headers={"Idempotency-Key": key})
    assert answer.status == 400
    assert (await answer.json())["faults"][0]["path"] == "Idempotency-Key"


async def test_lists_pass_their_filters_on(api: TestClient, service: FakeService) -> None:
    """All of them, typed; the rest at their defaults."""
    service.add()
    query = {
        "state": "RUNNING",
        "name": "germline",
        "queue": "q",
        "label": "a=b=c",
        "run": "r1",
        "ref": "w1",
        "search": "germ",
        "user": "ada",
        "since": "7d",
        "until": "2026-11-01",
        "live": "true",
        "limit": "7",
        "page_token": "0",
    }
    answer = await api.get("/api/v1/workflows", params=query)
    assert (await answer.json())["workflows"] == []  # no id begins so
    await api.get("/api/v1/workflows")
    await api.get("/api/v1/workflows/wf1/tasks", params={"stage": "align", "state": "RUNNING", "limit": "1"})
    assert service.asked == [
        {
            "state": "RUNNING",
            "name": "germline",
            "queue": "q",
            "label": "a=b=c",
            "run": "r1",
            "ref": "w1",
            "search": "germ",
            "user": "ada",
            "since": "7d",
            "until": "2026-11-01",
            "live": True,
            "limit": 7,
            "page_token": "0",
        },
        {
            "state": None,
            "name": None,
            "queue": None,
            "label": None,
            "run": None,
            "ref": None,
            "search": None,
            "user": None,
            "since": None,
            "until": None,
            "live": False,
            "limit": 100,
            "page_token": None,
        },
        {"stage": "align", "state": "RUNNING", "limit": 1, "page_token": None},
    ]


async def test_views_are_answered_as_they_are(api: TestClient, service: FakeService) -> None:
    """Workflow, stages, a task, reasons, queues, nodes; times in UTC."""
    workflow = service.add()
    view = await (await api.get(f"/api/v1/workflows/{workflow}")).json()
    assert view["created_at"] == "2026-03-01T12:01:00Z"
    assert [s["name"] for s in await (await api.get(f"/api/v1/workflows/{workflow}/stages")).json()] == [
        "align",
        "call",
    ]
    task = await (await api.get(f"/api/v1/workflows/{workflow}/tasks/align/2")).json()
    assert (task["index"], task["attempts"][0]["pod"]) == (2, "fs-align-2-1")
    reasons = await (await api.get(f"/api/v1/workflows/{workflow}/explain", params={"stage": "call"})).json()
    assert (reasons[0]["stage"], reasons[0]["numbers"]) == ("call", {"free": 2000, "asked": 4000})
    placed = await (await api.get(f"/api/v1/workflows/{workflow}/tasks/call/0/explain")).json()
    assert placed[0]["stage"] == "call"
    assert [queue["name"] for queue in await (await api.get("/api/v1/queues")).json()] == ["default"]
    assert (await (await api.get("/api/v1/nodes")).json())[0]["allocatable"]["cpu"] == 8000


async def test_a_timeline_is_packed_for_clients_that_can_unpack(
    api: TestClient, service: FakeService
) -> None:
    """10,000 tasks are 100 kB so; `limit` and `page_token` are passed on."""
    path = f"/api/v1/workflows/{service.add()}/timeline"
    packed = await api.get(path, params={"limit": "3", "page_token": "0.4"})
    assert packed.headers["Content-Encoding"] in ("gzip", "deflate")
    line = await packed.json()
    assert (line["states"], line["nodes"], line["started_ms"]) == (["RUNNING"], ["node-0"], [5, 6, None])
    plain = await api.get(path, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert await plain.json() == line
    assert service.asked == [{"limit": 3, "page_token": "0.4"}, {"limit": 10_000, "page_token": None}]
    assert (await api.get(path, params={"limit": "50001"})).status == 400


@pytest.mark.parametrize("kind", ["cancel", "pause", "resume", "retry"])
async def test_commands_reach_the_service(api: TestClient, service: FakeService, kind: str) -> None:
    """With a reason, and with no body at all."""
    workflow = service.add(state="FAILED")
    path = f"/api/v1/workflows/{workflow}/{kind}"
    assert (await api.post(path, json={"reason": "because"})).status == 200
    service.workflows[workflow].state = "FAILED"
    assert (await api.post(path)).status == 200
    assert service.commands == [(workflow, kind, {"reason": "because"}), (workflow, kind, None)]


async def test_a_command_that_the_state_forbids_is_a_conflict(api: TestClient, service: FakeService) -> None:
    """409 with the service's words."""
    workflow = service.add()
    answer = await api.post(f"/api/v1/workflows/{workflow}/retry")
    assert answer.status == 409
    assert "only what failed can be tried again" in (await answer.json())["detail"]


async def test_a_queue_is_changed_by_what_is_said(api: TestClient, service: FakeService) -> None:
    """What is left out is not passed on; null is a value."""
    answer = await api.put(
        "/api/v1/queues/lab", json={"weight": 3, "parent": None, "cap": {"cpu": "2", "memory": 5}}
    )
    assert answer.status == 200
    assert service.queue_settings["lab"] == {"weight": 3, "parent": None, "cap": {"cpu": "2", "memory": 5}}


async def test_a_queue_is_removed(api: TestClient, service: FakeService) -> None:
    """The answer is what it was; a second time there is none."""
    await api.put("/api/v1/queues/lab", json={"weight": 3})
    answer = await api.delete("/api/v1/queues/lab")
    assert (answer.status, (await answer.json())["weight"]) == (200, 3)
    assert "lab" not in service.queue_settings
    assert (await api.delete("/api/v1/queues/lab")).status == 404


async def test_faults_of_a_small_body_are_named_one_by_one(api: TestClient) -> None:
    """Types, ranges, unknown names."""
    body = {"weight": 0, "paused": "yes", "cap": {"cpu": []}, "guarantee": 3, "wieght": 2}
    answer = await api.put("/api/v1/queues/lab", json=body)
    assert answer.status == 400
    faults = {fault["path"]: fault["expected"] for fault in (await answer.json())["faults"]}
    assert faults == {
        "$.weight": "int >= 1",
        "$.paused": "true or false",
        "$.cap[...]": "int | float | str | null",
        "$.guarantee": 'an object, as {"cpu": 4, "memory": "8Gi"}',
        "$.wieght": "one of cap, guarantee, order, parent, paused, priority, reclaimable, weight",
    }


async def test_all_faults_of_a_query_are_named_at_once(api: TestClient) -> None:
    """Unknown, repeated, out of range, not of the type, of no known value."""
    query = "limit=0&limt=3&state=running&name=a&name=b&page_token=%00"
    answer = await api.get(f"/api/v1/workflows?{query}")
    assert answer.status == 400
    assert answer.content_type == "application/problem+json"
    found = {fault["path"]: (fault["found"], fault["expected"]) for fault in (await answer.json())["faults"]}
    assert found == {
        "?limit": ("'0'", "int >= 1"),
        "?limt": (
            "an unknown parameter",
            "one of label, limit, live, name, page_token, queue, ref, run, search, since, state, until, user",
        ),
        "?state": (
            "'running'",
            "one of CANCELLED, CANCELLING, ENGINE, FAILED, PAUSED, PENDING, QUEUED, RUNNING, SKIPPED, STAGING, STARTING, SUCCEEDED",
        ),
        "?name": ("2 values", "one value"),
        "?page_token": (r"'\x00'", "text without control characters"),
    }


async def test_the_text_null_is_no_filter_that_was_left_out(api: TestClient) -> None:
    """`?state=null` lists nothing by mistake, least of all everything."""
    answer = await api.get("/api/v1/workflows?state=null")
    assert answer.status == 400
    (fault,) = (await answer.json())["faults"]
    states = "CANCELLED, CANCELLING, ENGINE, FAILED, PAUSED, PENDING, QUEUED, RUNNING, SKIPPED, STAGING, STARTING, SUCCEEDED"
    expected = f"one of {states}"
    assert fault == {"path": "?state", "found": "'null'", "expected": expected}
    assert (await api.get("/api/v1/workflows?name=null")).status == 200


async def test_a_whole_number_may_be_written_with_a_point(api: TestClient, service: FakeService) -> None:
    """3.0 is an integer to JSON Schema, and so to programs that go by our description."""
    assert (await api.put("/api/v1/queues/lab", json={"weight": 3.0})).status == 200
    assert service.queue_settings["lab"] == {"weight": 3}
    assert (await api.put("/api/v1/queues/lab", json={"weight": 3.5})).status == 400


async def test_health_says_what_is_stuck(api: TestClient, service: FakeService) -> None:
    """Text for people and probes; HEAD for load balancers."""
    assert (await api.get("/livez")).status == 200
    assert (await api.head("/readyz")).status == 200
    service.alive = (False, "dispatch has not moved for 31 s")
    service.prepared = (False, "recovery: not finished")
    livez, readyz = await api.get("/livez"), await api.get("/readyz")
    assert (livez.status, await livez.text()) == (503, "dispatch has not moved for 31 s\n")
    assert (readyz.status, await readyz.text()) == (503, "recovery: not finished\n")


async def test_the_root_links_to_everything(api: TestClient) -> None:
    """JSON for programs, a page for browsers; each link leads somewhere."""
    links = (await (await api.get("/")).json())["links"]
    assert set(links) == {
        "ui",
        "workflows",
        "queues",
        "nodes",
        "events",
        "openapi",
        "docs",
        "metrics",
        "livez",
        "readyz",
    }
    for path in set(links.values()) - {"/api/v1/events"}:
        assert (await api.get(path)).status == 200, path


async def test_a_page_that_is_not_built_says_how_to_build_it(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The page says `make ui`; once it is there it is served, without a restart."""
    monkeypatch.setattr("flowsched.api.handlers.pages.files", lambda package: tmp_path)
    shutil.copytree(
        Path(flowsched.web.__file__).parent, tmp_path / "web", ignore=shutil.ignore_patterns("dist", "ui")
    )
    page = await api.get("/ui")
    assert (page.status, page.content_type) == (200, "text/html")
    assert "make ui" in await page.text()
    assert (await api.get("/ui/app.js")).status == 404
    built = tmp_path / "web" / "dist"
    built.mkdir()
    (built / "index.html").write_text("<p>built</p>")
    (built / "app.js").write_text("1")
    assert await (await api.get("/ui")).text() == "<p>built</p>"
    script = await api.get("/ui/app.js")
    assert (script.content_type, await script.text()) == ("text/javascript", "1")


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (errors.InvalidRequest("no"), 400),
        (errors.Unauthorized("no"), 401),
        (errors.Forbidden("no"), 403),
        (errors.NotFound("no"), 404),
        (errors.Conflict("no"), 409),
        (errors.TooLarge("no"), 413),
        (errors.Unsupported("no"), 422),
        (errors.StorageBusy("no"), 503),
    ],
)
async def test_errors_of_the_service_become_problems(
    api: TestClient, service: FakeService, raised: errors.FlowschedError, status: int
) -> None:
    """Status, title and words of the error, and where it happened."""
    service.failure = raised
    answer = await api.get("/api/v1/nodes")
    assert answer.status == status
    assert answer.content_type == "application/problem+json"
    assert await answer.json() == {
        "type": "about:blank",
        "title": raised.title,
        "status": status,
        "detail": "no",
        "instance": "/api/v1/nodes",
        "faults": [],
    }
    assert ("Retry-After" in answer.headers) == (status == 503)


@pytest.mark.parametrize("broken", [RuntimeError("password=hunter2"), errors.StaleWrite("row 5 at hunter2")])
async def test_a_bug_shows_an_id_and_nothing_else(
    api: TestClient, service: FakeService, broken: Exception
) -> None:
    """The log has the traceback under the same id."""
    service.failure = broken
    with capture_logs() as logged:
        answer = await api.get("/api/v1/nodes")
    text = await answer.text()
    assert answer.status == 500
    assert "hunter2" not in text
    number = json.loads(text)["instance"].removeprefix("urn:flowsched:error:")
    assert [(entry["error_id"], entry["exc_info"]) for entry in logged] == [(number, broken)]


async def test_errors_of_the_server_itself_are_problems_too(api: TestClient) -> None:
    """No route, no such method: said, with what is possible."""
    missing = await api.get("/api/v2/x")
    assert (missing.status, missing.content_type) == (404, "application/problem+json")
    wrong = await api.delete("/api/v1/workflows")
    assert (wrong.status, wrong.content_type, wrong.headers["Allow"]) == (
        405, "application/problem+json", "GET,HEAD,POST",
    )  # fmt: skip


async def test_logs_are_read_in_parts(api: TestClient, service: FakeService) -> None:
    """Plain text, with where to go on and whether to."""
    workflow = service.add()
    service.log["stderr"] = b"0123456789"
    path = f"/api/v1/workflows/{workflow}/tasks/align/1/logs"
    first = await api.get(path, params={"stream": "stderr", "limit": "4", "offset": "2"})
    assert (first.content_type, await first.read()) == ("text/plain", b"2345")
    assert (first.headers["Flowsched-Next-Offset"], first.headers["Flowsched-More"]) == ("6", "true")
    last = await api.get(path, params={"stream": "stderr", "offset": "6"})
    assert (await last.read(), last.headers["Flowsched-More"]) == (b"6789", "false")
    assert (await api.get(path.replace("/1/", "/9/"))).status == 404
    assert (await api.get(path.replace("/1/", "/-1/"))).status == 400


async def test_the_last_lines_of_a_log(api: TestClient, service: FakeService) -> None:
    """From there on in parts, as ever; an offset beside it is a fault, and so are a million lines and one."""
    workflow = service.add()
    service.log["stderr"] = b"one\ntwo\nthree\n"
    path = f"/api/v1/workflows/{workflow}/tasks/align/1/logs?stream=stderr"
    first = await api.get(f"{path}&tail=2&limit=5")
    assert (await first.read(), first.headers["Flowsched-Next-Offset"]) == (b"two\nt", "9")
    assert await (await api.get(f"{path}&offset=9")).read() == b"hree\n"
    assert await (await api.get(f"{path}&tail=0")).read() == b""
    followed = await api.get(f"{path}&tail=1&follow=true")
    assert (await followed.read(), followed.headers["Flowsched-Next-Offset"]) == (b"three\n", "8")
    wrong = await api.get(f"{path}&tail=2&offset=1")
    assert (wrong.status, (await wrong.json())["detail"]) == (
        400,
        "found offset and tail, expected one of them: each says where to begin",
    )
    assert (await api.get(f"{path}&tail=1000001")).status == 400
    assert (await api.get(f"{path}&tail=-1")).status == 400


async def test_an_engine_says_how_its_run_has_ended(api: TestClient, service: FakeService) -> None:
    """A state of the end and why; another state is refused with those that there are."""
    service.workflows["r1"] = workflow_view(1, id="r1", state="ENGINE", source="miniwdl")
    answer = await api.post("/api/v1/workflows/r1/ended", json={"state": "FAILED", "reason": "no output"})
    told = await answer.json()
    assert (answer.status, told["state"], told["reason"]) == (200, "FAILED", "no output")
    answer = await api.post("/api/v1/workflows/r1/ended", json={"state": "RUNNING"})
    assert answer.status == 400


async def test_several_workflows_are_cancelled_by_one_request(api: TestClient, service: FakeService) -> None:
    """Each once; those that do not exist are named. A body without ids is refused."""
    workflow = service.add()
    body = {"workflows": [workflow, workflow, "none"], "reason": "enough"}
    answer = await (await api.post("/api/v1/cancel", json=body)).json()
    assert [view["id"] for view in answer["workflows"]] == [workflow]
    assert answer["refused"] == {"none": "there is no workflow with the id none"}
    assert service.commands == [(workflow, "cancel", {"reason": "enough"})]
    for wrong in ({}, {"workflows": []}, {"workflows": ["w"], "user": "ada"}):
        assert (await api.post("/api/v1/cancel", json=wrong)).status in (400, 422)


async def test_a_drain_says_when_and_why(api: TestClient, service: FakeService) -> None:
    """All may be left out: then nothing new starts from now on, and what runs ends by itself."""
    path = "/api/v1/nodes/node-0/drain"
    said = {"grace": "5m", "start": "2026-12-04T18:00Z", "reason": "new disk", "by": "ada"}
    assert (await (await api.post(path, json=said)).json())["drain"]["by"] == "ada"
    assert service.drained == {"node-0": (300_000, "2026-12-04T18:00Z", "new disk", "ada")}
    assert (await api.post(path)).status == 200
    assert service.drained == {"node-0": (None, None, "", "")}
    for wrong in ({"grace": "soon"}, {"grace": -1}, {"reason": "a\nb"}, {"until": "18:00"}):
        assert (await api.post(path, json=wrong)).status in (400, 422)
