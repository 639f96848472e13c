"""GA4GH TES over HTTP: create, look, list, cancel, as clients do it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from flowsched.errors import Unavailable
from flowsched.executor.protocol import TransferFailed
from tests.cluster.fake import Outcome
from tests.tes.conftest import BOTH, TES, Tes, World

HELLO: dict[str, Any] = {"name": "hello", "executors": [{"image": "alpine", "command": ["echo", "hi"]}]}
FULL_BODY: dict[str, Any] = {
    "name": "count",
    "description": "count lines",
    "inputs": [{"path": "/in/a.txt", "content": "a\n"}, {"path": "/in/b", "url": "file:///data/b", "type": "FILE"}],
    "outputs": [{"path": "/out/n.txt", "url": "/data/n.txt"}],
    "resources": {"cpu_cores": 1, "ram_gb": 1.5, "disk_gb": 3, "preemptible": True, "zones": ["z"],
                  "backend_parameters": {"Queue": "default", "VmSize": "big"}},
    "executors": [{"image": "alpine", "command": ["wc", "-l", "/in/a.txt"], "workdir": "/out", "stdin": "/in/b",
                   "stdout": "/out/n.txt", "stderr": "/out/err", "env": {"A": "1"}, "ignore_error": True}],
    "volumes": ["/scratch"],
    "tags": {"project": "x", "nothing": None},
}  # fmt: skip


async def test_a_task_runs_and_is_told_in_three_views(tes: Tes) -> None:
    """MINIMAL has two fields; BASIC leaves out contents, streams and the system's words; FULL has all that was sent."""
    ident = await tes.create(FULL_BODY)
    full = await tes.until(ident)
    assert full["state"] == "COMPLETE"
    assert full["inputs"] == [
        {"path": "/in/a.txt", "content": "a\n", "type": "FILE"},
        {"path": "/in/b", "url": "file:///data/b", "type": "FILE"},
    ]
    assert full["outputs"] == [{"path": "/out/n.txt", "url": "/data/n.txt", "type": "FILE"}]
    assert full["executors"] == FULL_BODY["executors"]
    assert full["resources"] == {
        "cpu_cores": 1, "ram_gb": 1.5, "disk_gb": 3.0, "preemptible": True, "zones": ["z"],
        "backend_parameters": {"Queue": "default"},
    }  # fmt: skip
    assert full["tags"] == {"project": "x"}
    assert full["volumes"] == ["/scratch"]
    assert full["logs"][0]["metadata"]["vm_price_per_hour_usd"] == "0"
    assert full["logs"][0]["start_time"] < full["logs"][0]["end_time"]
    assert "system_logs" not in full["logs"][0]
    basic = await tes.get(ident, "BASIC")
    assert basic["inputs"][0] == {"path": "/in/a.txt", "type": "FILE"}
    assert {name for log in basic["logs"] for step in log["logs"] for name in step} <= {
        "exit_code", "start_time", "end_time",
    }  # fmt: skip
    assert await tes.get(ident, "MINIMAL") == {"id": ident, "state": "COMPLETE"}


@pytest.mark.parametrize("prefix", ["/ga4gh/tes/v1", "/v1", ""])
async def test_every_prefix_is_the_same_server(tes: Tes, prefix: str) -> None:
    """Create, look and cancel under each; service-info in both shapes."""
    ident = await tes.create(HELLO, prefix=prefix)
    assert (await tes.get(ident, "MINIMAL", prefix=prefix))["id"] == ident
    assert (await (await tes.api.get(f"{prefix}/tasks")).json())["tasks"][0]["id"] == ident
    answer = await tes.api.post(f"{prefix}/tasks/{ident}:cancel")
    assert (answer.status, await answer.json()) == (200, {})
    info = await (await tes.api.get(f"{prefix}/service-info")).json()
    assert info["type"] == {"group": "org.ga4gh", "artifact": "tes", "version": "1.1.0"}
    assert "gpuCount" in info["tesResources_backend_parameters"]
    old = await (await tes.api.get(f"{prefix}/tasks/service-info")).json()
    assert set(old) == {"name", "doc", "storage"}


async def test_the_page_at_the_root_is_still_there(tes: Tes) -> None:
    """Serving TES at the root takes nothing away."""
    assert (await (await tes.api.get("/")).json())["name"] == "flowsched"


async def test_the_default_view_is_the_short_one(tes: Tes) -> None:
    """As the specification says."""
    ident = await tes.create(HELLO)
    assert set(await (await tes.api.get(f"{TES}/tasks/{ident}")).json()) == {"id", "state"}


async def test_a_null_for_every_field_is_a_field_left_out(tes: Tes) -> None:
    """As pydantic-tes sends it."""
    ident = await tes.create(
        {
            "id": None, "state": None, "name": None, "description": None, "inputs": None, "outputs": None,
            "resources": {"cpu_cores": None, "preemptible": None, "ram_gb": None, "disk_gb": None, "zones": None,
                          "backend_parameters": None, "backend_parameters_strict": None},
            "executors": [{"image": "a", "command": ["x"], "workdir": None, "stdin": None, "stdout": None,
                           "stderr": None, "env": None, "ignore_error": None}],
            "volumes": None, "tags": {"parent_workflow_id": None}, "logs": None, "creation_time": None,
        }
    )  # fmt: skip
    task = await tes.until(ident)
    assert (task["state"], task["tags"], task["executors"]) == (
        "COMPLETE",
        {},
        [{"image": "a", "command": ["x"]}],
    )


async def test_fields_that_nobody_knows_are_ignored(tes: Tes) -> None:
    """Older and newer clients send others, also in the query."""
    ident = await tes.create({**HELLO, "project": "old", "future": {"deep": [1]}})
    assert "project" not in await tes.get(ident)
    assert (await tes.api.get(f"{TES}/tasks/{ident}?view=MINIMAL&new=1")).status == 200


@pytest.mark.parametrize(
    ("body", "path", "found", "expected"),
    [
        (b"[]", "$", "array", "object"),
        (b"{}", "$.executors", "nothing", "a value: it is required"),
        ({"executors": []}, "$.executors", "an array of 0", "at least one executor"),
        ({"executors": [{"image": "a", "command": "x"}]}, "$.executors[0].command", "str", "array"),
        ({"executors": [{"image": "a", "command": []}]}, "$.executors[0].command", "an array of 0", "at least one entry"),
        ({**HELLO, "inputs": [{"path": "/a"}]}, "$.inputs[0]", "neither url nor content", "one of url and content"),
        ({**HELLO, "inputs": [{"path": "a", "url": "/a"}]}, "$.inputs[0].path", '"a"',
         "an absolute path of the container, without .. and control characters"),
        ({**HELLO, "inputs": [{"path": "/a", "url": "gs://b/c"}]}, "$.inputs[0].url", "gs://b/c",
         '/absolute/path, file:///path, http(s)://host/path or s3://bucket/key: the scheme "gs" is not supported'),
        ({**HELLO, "resources": {"ram_gb": -1}}, "$.resources.ram_gb", "-1.0", "a number from 0 to 2,147,483,647"),
        ({**HELLO, "resources": {"cpu_cores": "2"}}, "$.resources.cpu_cores", "str", "int | float | null"),
        ({**HELLO, "resources": {"backend_parameters": {"gpuCount": "many"}}}, "$.resources.backend_parameters.gpuCount",
         '"many"', "devices, as 1 or 0.5"),
        ({**HELLO, "resources": {"backend_parameters": {"VmSize": "x"}, "backend_parameters_strict": True}},
         "$.resources.backend_parameters.VmSize", 'the key "VmSize"',
         "one of queue, user, priority, gpuCount, gpuType, timeout, expectedRuntime, attempts, memoryFactor, fitMemory, gang "
         "(or backend_parameters_strict: false)"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_said_with_its_place(
    tes: Tes, body: Any, path: str, found: str, expected: str
) -> None:
    """400 with the path in the task that was sent, never in the document that it would have become."""
    faults = await tes.refused(body)
    assert path in faults, faults
    assert faults[path][0].strip('"') == found.strip('"')
    assert expected in faults[path][1]
    assert not any("stages" in place for place in faults)


@pytest.mark.parametrize(
    "raw", [b"", b"no", b'{"executors": [', b"\xff", b"[" * 100_000, b'{"executors": NaN}']
)
async def test_what_is_no_json_is_a_client_s_fault(tes: Tes, raw: bytes) -> None:
    """400, whatever the bytes."""
    assert (await tes.api.post(f"{TES}/tasks", data=raw)).status == 400


async def test_parameters_that_others_understand_are_no_fault_even_where_strict(tes: Tes) -> None:
    """Cromwell always sends `internal_path_prefix`."""
    ident = await tes.create(
        {**HELLO, "resources": {"backend_parameters": {"internal_path_prefix": "/x", "workflow_execution_identity": "me"},
                                "backend_parameters_strict": True}}
    )  # fmt: skip
    assert (await tes.until(ident))["state"] == "COMPLETE"


async def test_an_unknown_task_is_not_found_and_not_cancelled(tes: Tes) -> None:
    """404 for a look; 200 and an empty object for a cancel."""
    assert (await tes.api.get(f"{TES}/tasks/nope")).status == 404
    answer = await tes.api.post(f"{TES}/tasks/nope:cancel")
    assert (answer.status, await answer.json()) == (200, {})


async def test_a_cancelled_task_is_canceled(tes: Tes, world: World) -> None:
    """It keeps its last state until it is gone; a second cancel, and one of what has ended, are 200 too."""
    world.outcome = lambda pod: Outcome(runtime_ms=60_000)
    ident = await tes.create(HELLO)
    await tes.until(ident, "RUNNING")
    assert (await tes.api.post(f"{TES}/tasks/{ident}:cancel")).status == 200
    seen = set()
    async with asyncio.timeout(120):
        while (state := (await tes.get(ident, "MINIMAL"))["state"]) != "CANCELED":
            seen.add(state)
            await asyncio.sleep(0.005)
    assert seen <= {"RUNNING"}
    assert (await tes.api.post(f"{TES}/tasks/{ident}:cancel")).status == 200
    assert (await tes.get(ident))["state"] == "CANCELED"


@pytest.mark.parametrize(
    ("outcome", "state", "exit_codes", "says"),
    [
        (Outcome(exit_code=3, runtime_ms=5), "EXECUTOR_ERROR", [3], None),
        (Outcome(exit_code=137, reason="OOMKilled", message="used 3 GiB", runtime_ms=5), "EXECUTOR_ERROR", [137],
         "OOMKilled: used 3 GiB"),
    ],
)  # fmt: skip
async def test_failures_say_whose_they_are(
    tes: Tes, world: World, outcome: Outcome, state: str, exit_codes: list[int], says: str | None
) -> None:
    """An executor's exit code, or the system's words."""
    world.outcome = lambda pod: outcome
    task = await tes.until(await tes.create(HELLO))
    assert task["state"] == state
    assert [step["exit_code"] for step in task["logs"][-1]["logs"] if step["exit_code"]] == exit_codes
    assert task["logs"][-1].get("system_logs") == ([says] if says else None)


async def test_a_task_whose_input_is_not_there_says_which(tes: Tes, world: World) -> None:
    """It never ran: `system_logs` have the sentence of `explain`, also in a list; a cancelled one that of its cancel."""
    world.processes.refuse = lambda order: TransferFailed(
        order.uri, order.dest, 0, f"there is no {order.uri}", order.source, permanent=True
    )
    missing = {**HELLO, "inputs": [{"path": "/i", "url": "http://somewhere/nothing.fa"}]}
    task = await tes.until(await tes.create(missing))
    (told,) = await tes.process.service.explain(task["id"])
    assert (task["state"], task["logs"][-1]["system_logs"]) == ("SYSTEM_ERROR", [told.message])
    assert told.message == "InputMissing: there is no http://somewhere/nothing.fa"
    held = await tes.create({**HELLO, "resources": {"cpu_cores": 64}})
    await tes.process.service.command(held, "cancel", {"reason": "the disk is full"})
    task = await tes.until(held)
    assert task["logs"][-1]["system_logs"] == ["cancelled by request: the disk is full"]


async def said(tes: Tes, ident: str, word: str) -> dict[str, Any]:
    """A task once its logs say a word: the leader takes a task up some time after its creation."""
    async with asyncio.timeout(60):
        while word not in json.dumps((task := await tes.get(ident)).get("logs", [])):
            await asyncio.sleep(0.01)
    return task


async def test_a_task_that_waits_says_why(tes: Tes) -> None:
    """In `system_logs` of an entry without times, which is gone once it runs; the short views have nothing of it."""
    large = await tes.create({**HELLO, "resources": {"cpu_cores": 64}})
    task = await said(tes, large, "LargerThanNode")
    (entry,) = task["logs"]
    assert (task["state"], set(entry)) == ("QUEUED", {"logs", "outputs", "system_logs"})
    assert entry["system_logs"][0].startswith("LargerThanNode: "), entry
    assert "logs" not in await tes.get(large, "BASIC")
    assert set(await tes.get(large, "MINIMAL")) == {"id", "state"}

    await tes.process.service.put_queue("night", {"paused": True})
    held = await tes.create({**HELLO, "resources": {"backend_parameters": {"queue": "night"}}})
    (entry,) = (await said(tes, held, "Paused"))["logs"]
    assert entry["system_logs"] == [
        "Paused: queue 'night' is paused; `flowsched queue set night --resume` lets it go on"
    ]
    listed = await tes.list(view="FULL", state="QUEUED")
    assert [task["logs"][0]["system_logs"] for task in listed["tasks"] if task["id"] == held] == [
        ["Paused: queue 'night' is paused; `flowsched queue set night --resume` lets it go on"]
    ]
    await tes.process.service.put_queue("night", {"paused": False})
    assert "system_logs" not in (await tes.until(held))["logs"][0]


async def test_a_lost_attempt_is_queued_again_and_has_a_log_of_its_own(tes: Tes, world: World) -> None:
    """Never PREEMPTED; the first attempt is the first log."""
    outcomes = iter([Outcome(gone="Preempted", runtime_ms=20)])
    world.outcome = lambda pod: next(outcomes, Outcome(runtime_ms=20))
    task = await tes.until(await tes.create(HELLO))
    assert task["state"] == "COMPLETE"
    assert [log.get("system_logs") for log in task["logs"]] == [["Preempted"], None]


@BOTH
async def test_lists_are_filtered(tes: Tes) -> None:
    """By prefix of the name, by tags (an empty value is any), by state; newest first."""
    first = await tes.create({**HELLO, "name": "a_1", "tags": {"foo": "bar", "od\"d'$.": "x"}})
    second = await tes.create({**HELLO, "name": "a%2", "tags": {"foo": "bat"}})
    third = await tes.create({**HELLO, "name": "b", "tags": {}})
    for ident in (first, second, third):
        await tes.until(ident)
    asked: list[tuple[list[tuple[str, str]], list[str]]] = [
        ([], [third, second, first]),
        ([("name_prefix", "a_")], [first]),
        ([("name_prefix", "a")], [second, first]),
        ([("name_prefix", "A")], []),
        ([("name_prefix", "a%")], [second]),
        ([("tag_key", "foo")], [second, first]),
        ([("tag_key", "foo"), ("tag_value", "")], [second, first]),
        ([("tag_key", "foo"), ("tag_value", "bar")], [first]),
        ([("tag_key", "foo"), ("tag_key", "od\"d'$."), ("tag_value", "bar"), ("tag_value", "x")], [first]),
        ([("tag_key", "fo")], []),
        ([("state", "COMPLETE")], [third, second, first]),
        ([("state", "RUNNING")], []),
        ([("state", "PREEMPTED")], []),
    ]
    for params, expected in asked:
        answer = await tes.api.get(f"{TES}/tasks", params=params)
        assert [task["id"] for task in (await answer.json())["tasks"]] == expected, params


@BOTH
async def test_pages_are_stable_under_new_tasks(tes: Tes) -> None:
    """What arrives between two pages neither repeats nor hides a task; the last page has no token."""
    old = [await tes.create({**HELLO, "name": f"t{number}"}) for number in range(5)]
    first = await tes.list(page_size=2, view="BASIC")
    await tes.create({**HELLO, "name": "later"})
    second = await tes.list(page_size=2, page_token=first["next_page_token"])
    third = await tes.list(page_size=2, page_token=second["next_page_token"])
    ids = [task["id"] for page in (first, second, third) for task in page["tasks"]]
    assert ids == list(reversed(old))
    assert "next_page_token" not in third
    assert first["tasks"][0]["name"] == "t4"


@pytest.mark.parametrize(
    "query", ["page_size=2048", "page_size=-1", "page_token=x", "view=full", "state=DONE"]
)
async def test_a_bad_list_is_refused(tes: Tes, query: str) -> None:
    """400."""
    assert (await tes.api.get(f"{TES}/tasks?{query}")).status == 400


async def test_128_kib_of_content_are_taken(tes: Tes) -> None:
    """The least that the specification asks for, and what is above a limit is 413."""
    content = "x" * (128 << 10)
    ident = await tes.create(
        {**HELLO, "inputs": [{"path": "/a", "content": content, "url": "gs://ignored/x"}]}
    )
    assert (await tes.get(ident))["inputs"][0]["content"] == content
    answer = await tes.api.post(
        f"{TES}/tasks", json={**HELLO, "inputs": [{"path": "/a", "content": "x" * (1 << 21)}]}
    )
    assert answer.status == 413


@BOTH
async def test_a_task_that_expired_is_still_answered(tes: Tes, world: World) -> None:
    """Its state and logs outlive its workflow, for 30 days; then it is gone."""
    from flowsched.control.leading.retention import Expiry

    world.outcome = lambda pod: Outcome(exit_code=3, runtime_ms=5)
    ident = await tes.create({**HELLO, "tags": {"a": "b"}})
    before = await tes.until(ident)
    service, dispatcher = tes.process.service, tes.process.leader.dispatcher
    assert dispatcher is not None
    day = 86_400_000
    expiry = Expiry(tes.process.database, dispatcher, service._executor, keep_days=1, clock=world.clock)
    for days, status in ((2, 200), (29, 200), (31, 404)):
        world.skew_ms = days * day
        await expiry.once()
        service.tes._known._tasks.clear()  # as after a restart
        answer = await tes.api.get(f"{TES}/tasks/{ident}", params={"view": "FULL"})
        assert answer.status == status, days
        if status == 200:
            assert await answer.json() == before
            assert (await tes.list(state="EXECUTOR_ERROR", tag_key="a"))["tasks"] == [
                {"id": ident, "state": "EXECUTOR_ERROR"}
            ]
    assert (await tes.api.get(f"/api/v1/workflows/{ident}")).status == 404


async def test_a_task_is_a_workflow_too(tes: Tes) -> None:
    """With the same id, its tags as labels, and `explain`, `logs` and all the rest."""
    ident = await tes.create({**HELLO, "tags": {"flowsched-plan": "p1"}})
    view = await (await tes.api.get(f"/api/v1/workflows/{ident}")).json()
    assert (view["name"], view["labels"]) == ("hello", {"flowsched-plan": "p1"})
    document = json.loads(await (await tes.api.get(f"/api/v1/workflows/{ident}/document")).read())
    assert [step["command"] for step in document["stages"][0]["steps"]] == [["echo", "hi"]]


async def document(tes: Tes, ident: str) -> dict[str, Any]:
    return dict(json.loads(await (await tes.api.get(f"/api/v1/workflows/{ident}/document")).read()))


async def test_who_reads_what_whom_wrote_is_known(tes: Tes) -> None:
    """Tasks of one run, by the names of their files; also by a process that has just begun to accept them."""
    tags = {"workflow": "wf-1"}
    out = {"path": "/o", "url": "file:///data/1.txt"}
    first = await tes.create({**HELLO, "tags": {**tags, "step": "one"}, "outputs": [out]})
    given = {"path": "/i", "url": "/data/1.txt"}
    second = await tes.create({**HELLO, "tags": {**tags, "step": "two"}, "inputs": [given]})
    tes.process.service.tes._edges._runs.clear()  # as after a restart
    third = await tes.create({**HELLO, "tags": {**tags, "step": "three"}, "inputs": [given]})
    other = await tes.create({**HELLO, "tags": {"workflow": "wf-2", "step": "two"}, "inputs": [given]})
    calls = [(await document(tes, ident))["call"] for ident in (first, second, third, other)]
    assert [call.get("after") for call in calls] == [None, ["one"], ["one"], None]
    assert {call["run"] for call in calls} == {"wf-1", "wf-2"}


@BOTH
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"executors": [{"image": "a", "command": ["x"]}], "name": "\\ud800"}', (200, 400)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "name": "a\\u0000b", "description": "\\u0000"}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "tags": {"a": "\\u0000"}}', (400,)),
        (b'{"executors": [{"image": "a", "command": ["x\\u0000"]}]}', (400,)),
        (b'{"executors": [{"image": "--privileged", "command": ["x"]}]}', (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"], "env": {"A=B": "x"}}]}', (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"ram_gb": 1e308}}', (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"ram_gb": 1e-300}}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"cpu_cores": 1e400}}', (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"cpu_cores": 0.0000001}}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"cpu_cores": ' + b"9" * 400 + b"}}", (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "resources": {"cpu_cores": ' + b"9" * 5000 + b"}}", (400,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "tags": {"\xf0\x9f\x92\xa9": "\xe2\x80\xae"}}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "tags": {"workflow": "\\n", "step": "\\u0001"}}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["x"]}], "tags": {"workflow": "a\\tb\\u0085"}}', (200,)),
        (b'{"executors": [{"image": "a", "command": ["' + b"x" * 70_000 + b'"]}]}', (413,)),
    ],
)  # fmt: skip
async def test_odd_values_are_taken_or_refused(tes: Tes, raw: bytes, status: tuple[int, ...]) -> None:
    """Never a 5xx; what was taken can be read in every view and listed."""
    answer = await tes.api.post(f"{TES}/tasks", data=raw)
    assert answer.status in status, await answer.text()
    if answer.status == 200:
        ident = (await answer.json())["id"]
        await tes.get(ident)
        tes.process.service.tes._known._tasks.clear()
        await tes.get(ident)
        assert (await tes.list(view="FULL"))["tasks"][0]["id"] == ident


async def test_a_page_of_long_tasks_is_a_short_page(tes: Tes) -> None:
    """It ends after 16 MiB, and the next one goes on where it ended."""
    long = {**HELLO, "inputs": [{"path": f"/{n}", "content": "x" * (1 << 20)} for n in range(3)]}
    made = [await tes.create({**long, "name": f"t{number}"}) for number in range(8)]
    first = await tes.list(view="FULL")
    second = await tes.list(view="FULL", page_token=first["next_page_token"])
    assert [len(page["tasks"]) for page in (first, second)] == [6, 2]
    assert [task["id"] for page in (first, second) for task in page["tasks"]] == list(reversed(made))
    assert len((await tes.list(view="BASIC"))["tasks"]) == 8


async def test_the_ends_of_a_pods_logs_go_with_it(
    tes: Tes, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first attempt has written is not the second one's, and takes no memory after the end."""
    service = tes.process.service.tes

    async def tails(ident: str, attempt: int, node: str) -> tuple[str, str]:
        if attempt:
            raise Unavailable("the node is away")
        return "x" * 9_000, "y"

    monkeypatch.setattr(service, "_tails", tails)
    world.outcome = lambda pod: Outcome(exit_code=1, runtime_ms=60_000 if pod.attempt else 500)
    ident = await tes.create(HELLO | {"resources": {"backend_parameters": {"attempts": "2"}}})
    empty = service._known._bytes
    task = await tes.until(ident, "RUNNING")
    assert [step["stdout"] for step in task["logs"][0]["logs"]] == ["x" * 9_000]
    assert service._known._bytes == empty + 9_001
    while len((task := await tes.get(ident)).get("logs", ())) < 2 or task["state"] != "RUNNING":
        await asyncio.sleep(0.01)
    assert task["logs"][1]["logs"] == []
    assert service._known._bytes == empty
