"""The SDK against the real API on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_service import FakeService, workflow_view

from flowsched import Client, Workflow, errors
from flowsched.api.server import build_api
from flowsched.client import plain
from flowsched.tokens import account_name
from flowsched.values import replace
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.views import WorkflowPage

DOCUMENT = {"name": "germline", "stages": [{"name": "a", "command": ["true"]}]}


async def test_a_workflow_is_submitted_in_every_form(
    client: Client, service: FakeService, tmp_path: Path
) -> None:
    """A mapping, JSON text, a file and a workflow built in Python arrive as the same document."""
    built = Workflow("germline")
    built.stage("a", command=["true"])
    file = tmp_path / "germline.json"
    file.write_text(json.dumps(DOCUMENT))
    for form in (DOCUMENT, json.dumps(DOCUMENT).encode(), file, built):
        run = await client.submit(form)
        assert run.created
        assert json.loads(service.documents[run.id]) == DOCUMENT
    assert len(service.workflows) == 4


async def test_the_same_key_gives_the_same_run(client: Client) -> None:
    """And another document under that key is a conflict."""
    first = await client.submit(DOCUMENT, idempotency_key="k")
    second = await client.submit(DOCUMENT, idempotency_key="k")
    assert (second.id, second.created) == (first.id, False)
    with pytest.raises(errors.Conflict, match="was used for another document"):
        await client.submit({"name": "other"}, idempotency_key="k")


async def test_faults_of_a_document_arrive_one_by_one(client: Client) -> None:
    """`InvalidDocument` as the server raised it."""
    with pytest.raises(errors.InvalidDocument) as caught:
        await client.submit({"name": ""})
    assert caught.value.faults == (errors.Fault("$.name", "", "a name"),)


@pytest.mark.parametrize(
    "raised",
    [
        errors.NotFound("no such thing"),
        errors.Conflict("the state forbids it"),
        errors.TooLarge("too large: 3, the limit is 2"),
        errors.Unsupported("needs Kubernetes"),
        errors.InvalidRequest("not JSON"),
        errors.Forbidden("no"),
        errors.Unauthorized("who?"),
        errors.Unavailable("the database is away"),
    ],
)
async def test_errors_come_back_as_they_were_raised(
    client: Client, service: FakeService, raised: errors.FlowschedError
) -> None:
    """The class and the words; 503 after some attempts."""
    service.failure = raised
    with pytest.raises(type(raised), match=str(raised).replace("?", r"\?")):
        await client.nodes()


async def test_an_answer_that_was_lost_makes_no_second_workflow(service: FakeService) -> None:
    """The server accepts, the connection breaks before the answer: the client asks again with its key."""
    lost = 0

    @web.middleware
    async def lose_the_first_answer(request: web.Request, handler: object) -> web.StreamResponse:
        nonlocal lost
        response = await handler(request)  # type: ignore[operator]
        if request.method == "POST" and not lost:
            lost += 1
            assert request.transport is not None
            request.transport.abort()
        return response

    application = build_api(service)
    application.middlewares.insert(0, lose_the_first_answer)
    async with TestServer(application) as server, Client(str(server.make_url("/"))) as client:
        run = await client.submit(DOCUMENT)
    assert (lost, service.submissions, len(service.workflows)) == (1, 2, 1)
    assert run.id == "wf1"
    assert not run.created


async def test_a_retry_whose_answer_was_lost_is_not_sent_again(service: FakeService) -> None:
    """`retry` a second time could start again what failed again meanwhile: the user decides."""
    application = build_api(service)

    @web.middleware
    async def lose(request: web.Request, handler: object) -> web.StreamResponse:
        assert request.transport is not None
        service.submissions += 1
        request.transport.abort()
        return web.Response()

    application.middlewares.insert(0, lose)
    async with TestServer(application) as server, Client(str(server.make_url("/"))) as client:
        with pytest.raises(errors.Unavailable, match="no answer from"):
            await client.retry("wf1")
    assert service.submissions == 1


async def test_a_program_that_is_not_let_in_learns_where_the_token_is() -> None:
    """Below the error, in a traceback and in a notebook."""
    async with (
        TestServer(build_api(FakeService(), token="secret")) as server,
        Client(str(server.make_url("/")), token="wrong") as client,
    ):
        with pytest.raises(errors.Unauthorized) as refused:
            await client.nodes()
    assert "FLOWSCHED_TOKEN" in "".join(traceback.format_exception(refused.value))
    assert "`flowsched token`" in refused.value._render_traceback_()[-1]


async def test_nobody_there_says_what_to_do() -> None:
    """The message names the address and the command that would help."""
    async with Client("http://127.0.0.1:9", timeout=10, start_timeout=0) as client:
        with pytest.raises(errors.Unavailable, match="is `flowsched serve` running there"):
            await client.nodes()


async def test_something_else_at_the_address_is_said() -> None:
    """An HTML page is no answer of flowsched."""
    application = web.Application()

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    application.router.add_get("/{any:.*}", page)
    async with TestServer(application) as server, Client(str(server.make_url("/"))) as client:
        with pytest.raises(errors.FlowschedError, match="what answers at this address is no flowsched"):
            await client.nodes()
        with pytest.raises(errors.InvalidRequest, match=r"is no flowsched \(status 405"):
            await client.cancel("w")


async def test_a_certificate_that_is_not_trusted_is_said_with_what_to_do(tmp_path: Path) -> None:
    """At once, in the words of TLS: no waiting helps. The plain client of `cromwell submit` says it, too."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake -keyout tls.key -out tls.crt".split()
    await asyncio.to_thread(subprocess.run, made, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server = TestServer(web.Application(), scheme="https")
    await server.start_server(ssl=context)
    url = f"https://127.0.0.1:{server.port}"
    async with server, Client(url) as client:
        with pytest.raises(errors.ConfigurationError, match=r"not trusted \(self.signed.*SSL_CERT_FILE=FILE"):
            await client.nodes()
        with pytest.raises(plain.Unreachable, match=r"not trusted: self.signed.*SSL_CERT_FILE=FILE"):
            await asyncio.to_thread(plain.ask, "GET", url)


async def test_a_certificate_of_the_environment_is_trusted(tmp_path: Path) -> None:
    """SSL_CERT_FILE names the authority of the service. Without it the client refuses to talk to it."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = (
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake -addext subjectAltName=IP:127.0.0.1 "
        "-keyout tls.key -out tls.crt"
    ).split()
    await asyncio.to_thread(subprocess.run, made, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server = TestServer(web.Application(), scheme="https")
    await server.start_server(ssl=context)
    program = (
        "import asyncio, sys\n"
        "from flowsched import Client, errors\n"
        "async def main():\n"
        "    async with Client(sys.argv[1]) as client:\n"
        "        try: await client.nodes()\n"
        "        except errors.FlowschedError as error: print(type(error).__name__)\n"
        "asyncio.run(main())"
    )
    given = {"SSL_CERT_FILE": str(tmp_path / "tls.crt"), "SSL_CERT_DIR": str(tmp_path)}
    said = []
    async with server:
        for environment in (os.environ | given, os.environ):
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, f"https://127.0.0.1:{server.port}", stdout=asyncio.subprocess.PIPE,
                env=dict(environment),
            )  # fmt: skip
            out, _ = await asyncio.wait_for(done.communicate(), 60)
            said.append(out.decode().strip())
    assert said == ["InvalidRequest", "ConfigurationError"]


async def test_tls_with_a_service_that_speaks_none_is_said() -> None:
    """And a proxy's page says in its own words what is wrong the other way round."""
    application = web.Application()

    async def page(_: web.Request) -> web.Response:
        said = "<html>\r\n<head><title>400 The plain HTTP request was sent to HTTPS port</title></head>\r\n<body>"
        return web.Response(status=400, text=said, content_type="text/html")

    application.router.add_get("/{any:.*}", page)
    async with TestServer(application) as server:
        async with Client(f"https://127.0.0.1:{server.port}") as client:
            with pytest.raises(errors.ConfigurationError, match=r"no TLS at .* begins with http://"):
                await client.nodes()
        async with Client(str(server.make_url("/"))) as client:
            with pytest.raises(errors.InvalidRequest) as refused:
                await client.nodes()
    assert str(refused.value) == "400 The plain HTTP request was sent to HTTPS port"


async def test_lists_go_on_over_pages(client: Client, service: FakeService) -> None:
    """Five workflows in pages of two, newest first."""
    for _ in range(5):
        service.add()
    assert [view.id async for view in client.list(page=2)] == ["wf5", "wf4", "wf3", "wf2", "wf1"]
    assert [asked["page_token"] for asked in service.asked] == [None, "2", "4"]
    assert [view.index async for view in client.tasks("wf1", stage="align", page=2)] == [0, 1, 2]


async def test_what_ends_between_two_pages_is_listed_once(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service may have it on both: among those that live, and among those that have ended."""
    first, second = service.add(), service.add()
    alive, over = service.workflows[first], service.workflows[second]
    pages = {
        None: WorkflowPage(workflows=[alive], next_page_token="2"),
        "2": WorkflowPage(workflows=[replace(alive, state="SUCCEEDED"), over]),
    }

    async def list_workflows(**asked: Any) -> WorkflowPage:
        return pages[asked["page_token"]]

    monkeypatch.setattr(service, "list_workflows", list_workflows)
    assert [(view.id, view.state) async for view in client.list()] == [
        (first, "RUNNING"),
        (second, "RUNNING"),
    ]


async def test_everything_that_can_be_asked_has_a_type(client: Client, service: FakeService) -> None:
    """One call each."""
    workflow = service.add(labels={"sample": "<NA>"})
    assert (await client.get(workflow)).labels == {"sample": "<NA>"}
    assert [stage.name for stage in await client.stages(workflow)] == ["align", "call"]
    assert (await client.task(workflow, "align", 1)).attempts[0].pod == "fs-align-1-1"
    assert (await client.explain(workflow, "align"))[0].numbers == {"free": 2000, "asked": 4000}
    assert (await client.pause(workflow)).paused
    assert not (await client.resume(workflow)).paused
    assert (await client.cancel(workflow, "not needed")).cancel_requested
    assert service.commands[-1] == (workflow, "cancel", {"reason": "not needed"})
    found = await client.cancel_all([workflow, "none"], "enough")
    assert ([view.id for view in found.workflows], found.refused) == (
        [workflow],
        {"none": "there is no workflow with the id none"},
    )
    assert (await client.cancel_task(workflow, "align", 1, "hung")).reason == "Cancelled"
    assert service.commands[-1] == (f"{workflow}/align/1", "cancel_task", {"reason": "hung"})
    assert (await client.put_queue("lab", weight=3, cap={"cpu": "10"})).weight == 3
    assert service.queue_settings["lab"] == {"weight": 3, "cap": {"cpu": "10"}}
    assert {queue.name for queue in await client.queues()} == {"default", "lab"}
    assert [node.name for node in await client.nodes()] == ["node-0"]
    drained = await client.drain("node-0", grace="5m", reason="new disk", by="ada")
    assert (drained.state, drained.drain and drained.drain.by) == ("DRAINED", "ada")
    assert service.drained == {"node-0": (300_000, None, "new disk", "ada")}
    friday = datetime(2026, 12, 4, 18, tzinfo=UTC)
    await client.drain("node-0", start=friday)
    me = account_name(os.geteuid())
    assert service.drained == {"node-0": (None, "2026-12-04T18:00:00+00:00", "", me)}
    assert (await client.uncordon("node-0")).drain is None
    assert await client.ready() == (True, "ok")
    service.prepared = (False, "not leading")
    assert await client.ready() == (False, "not leading")


async def test_wait_returns_when_the_workflow_has_ended(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the events end, not at the next look, which would be tomorrow."""
    monkeypatch.setattr("flowsched.client.calls.CHECK_S", 86_400)
    monkeypatch.setattr("flowsched.client.calls.FIRST_CHECKS", 0)
    workflow = service.add()
    waiting = asyncio.create_task(client.wait(workflow))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    service.finish(workflow, "FAILED")
    assert (await asyncio.wait_for(waiting, 60)).state == "FAILED"


async def test_wait_gives_up_in_time(client: Client, service: FakeService) -> None:
    """And leaves no stream open behind it."""
    workflow = service.add()
    with pytest.raises(TimeoutError):
        await client.wait(workflow, timeout=0.1)
    async with asyncio.timeout(60):
        while service.streams_open:
            await asyncio.sleep(0.02)


async def test_wait_polls_where_no_stream_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that answers every event stream with 404 does not stop it."""
    monkeypatch.setattr("flowsched.client.calls.POLL_S", 0.01)
    views = iter(["RUNNING", "RUNNING", "SUCCEEDED"])
    application = web.Application()

    async def show(_: web.Request) -> web.Response:
        import msgspec

        return web.Response(body=msgspec.json.encode(workflow_view(1, state=next(views))))

    application.router.add_get("/api/v1/workflows/wf1", show)
    async with TestServer(application) as server, Client(str(server.make_url("/"))) as client:
        assert (await client.wait("wf1", timeout=60)).state == "SUCCEEDED"


def test_task_states_of_the_api_are_those_of_the_engine() -> None:
    """The API spells them out for OpenAPI."""
    from typing import get_args

    from flowsched.api.handlers.workflows import TaskStateName

    assert get_args(get_args(TaskStateName)[0]) == tuple(TaskState.__members__)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8470", "'localhost:8470' has no scheme: write http://localhost:8470"),
        ("10.0.0.7", "'10.0.0.7' has no scheme: write http://10.0.0.7"),
        ("[::1]:8470", "'[::1]:8470' has no scheme: write http://[::1]:8470"),
        ("ftp://host", "'ftp://host' is no URL such as http://127.0.0.1:8470"),
        ("http://host:99999", "'http://host:99999' is no URL such as http://127.0.0.1:8470"),
    ],
)
def test_a_server_that_is_no_url_is_refused_with_what_to_write(url: str, words: str) -> None:
    """`--server host:port` was a traceback of the HTTP library."""
    with pytest.raises(errors.ConfigurationError) as refused:
        Client(url)
    assert str(refused.value) == words
