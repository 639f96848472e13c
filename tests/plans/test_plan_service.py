"""The whole service: plans are kept, and the calls of a run get their ranks from its plan."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog.testing
from aiohttp import web

import flowsched
from flowsched import app, errors
from flowsched.app import EngineSettings
from flowsched.control.leading import dispatch
from flowsched.control.planning.plans import LateRanks
from flowsched.engine.step import step
from flowsched.errors import FlowschedError, NotFound, Unavailable
from flowsched.store import plans
from flowsched.workflow.spec import Call

from .fake_cromwell import FakeCromwell, cromwell
from .test_hostile import packed
from .wdl_cases import WDLS, inputs_of

ROOT = "5a6b7c8d-0000-4000-8000-000000000001"
OTHER = "5a6b7c8d-0000-4000-8000-000000000002"
WDL = (WDLS / "haplotype-caller.wdl").read_text()
INPUTS = inputs_of("haplotype-caller")


@pytest.fixture
async def far() -> AsyncIterator[tuple[FakeCromwell, str]]:
    async with cromwell() as found:
        yield found


@pytest.fixture
async def service(tmp_path: Path, far: tuple[FakeCromwell, str]) -> AsyncIterator[app.Running]:
    settings = app.Settings(root=tmp_path / "root", port=0, engines=EngineSettings(cromwell=far[1]))
    async with app.running(settings) as running:
        yield running


@pytest.fixture
async def client(service: app.Running) -> AsyncIterator[flowsched.Client]:
    async with flowsched.Client(service.url, timeout=600) as made:  # each plan starts a process
        yield made


def call_of(run: str, node: str, name: str = "one-of-a-run", **more: Any) -> dict[str, Any]:
    call = {"run": run, "run_name": "r", "source": "cromwell", "node": node} | more.pop("call", {})
    stage = {"name": name, "command": ["true"]}
    return {"name": name, "call": call, "stages": [stage]} | more


async def rank_of(client: flowsched.Client, document: dict[str, Any]) -> int:
    """The rank that a call has once it is accepted, as it will be read again after a restart."""
    run = await client.submit(document)
    stored = json.loads(await client.document(run.id))
    found: int = stored["call"].get("rank_ms", 0)
    return found


async def test_a_plan_is_kept_listed_and_removed(client: flowsched.Client) -> None:
    """A plan of the same run takes the place of the earlier one."""
    first = await client.plan(WDL, inputs=INPUTS, run="night-1")
    assert [node.tasks for node in first.plan.nodes] == [1, 4, 1]
    assert [stage.cpu_millicores for stage in first.stages] == [4000, 8000, 1000]
    assert {path: rank.rank_ms for path, rank in first.ranks.items()} == {
        "HaplotypeCallerGvcf.CramToBam": 180_000,
        "HaplotypeCallerGvcf.HaplotypeCaller": 120_000,
        "HaplotypeCallerGvcf.MergeGvcfs": 60_000,
    }
    assert first.files["s3://genomics/NA12878/NA12878.cram"] == [
        "HaplotypeCallerGvcf.CramToBam",
    ]
    again = await client.plan(WDL, inputs=INPUTS, run="night-1")
    other = await client.plan(WDL)
    assert [plan.id async for plan in client.plans()] == [other.id, again.id]
    assert [plan.id async for plan in client.plans(run="night-1", page=1)] == [again.id]
    assert (await client.get_plan(again.id)).plan == first.plan
    with pytest.raises(errors.NotFound, match=first.id):
        await client.get_plan(first.id)
    await client.delete_plan(again.id)
    with pytest.raises(errors.NotFound):
        await client.delete_plan(again.id)


async def test_calls_of_a_run_get_the_ranks_of_its_plan(client: flowsched.Client) -> None:
    """By any of the names that engines give a call; the run may be named by Cromwell's id within a longer text."""
    await client.plan(WDL, inputs=INPUTS, run=ROOT)
    assert await rank_of(client, call_of(ROOT, "HaplotypeCallerGvcf.CramToBam")) == 180_000
    assert await rank_of(client, call_of(ROOT, "HaplotypeCaller")) == 120_000
    assert await rank_of(client, call_of(f"cromwell-{ROOT}", "HaplotypeCallerGvcf.MergeGvcfs")) == 60_000


async def test_a_label_names_the_plan_of_a_run_with_an_id_of_its_own(client: flowsched.Client) -> None:
    """As a workflow label of Cromwell becomes a tag of each task."""
    made = await client.plan(WDL, inputs=INPUTS)
    labels = {"flowsched-plan": made.id}
    assert await rank_of(client, call_of("r1", "MergeGvcfs", labels=labels)) == 60_000
    assert await rank_of(client, call_of("r1", "MergeGvcfs", labels={"flowsched-plan": "p0"})) == 0


async def test_a_rank_that_was_said_stays_and_one_that_nobody_knows_is_none(client: flowsched.Client) -> None:
    """The plan is asked only where the document says nothing."""
    await client.plan(WDL, inputs=INPUTS, run="r2")
    assert await rank_of(client, call_of("r2", "MergeGvcfs", call={"rank_ms": 7})) == 7
    assert await rank_of(client, call_of("r2", "NoSuchCall")) == 0
    assert await rank_of(client, call_of("another", "MergeGvcfs")) == 0


async def test_the_same_request_is_the_same_workflow_though_its_rank_was_written_in(
    client: flowsched.Client,
) -> None:
    """What is compared under an idempotency key is what the client sent."""
    await client.plan(WDL, inputs=INPUTS, run="r3")
    document = call_of("r3", "MergeGvcfs")
    first = await client.submit(document, idempotency_key="k")
    again = await client.submit(document, idempotency_key="k")
    assert (first.id, again.created) == (again.id, False)


PAIR = "version 1.0\nworkflow sub { call t as d output { } }\ntask t { command {} }"
FAN = """version 1.0
import "pair.wdl" as p
workflow w { call t as a  call t as b  call t as c  call p.sub as x  call p.sub as y }
task t { command {} }"""

#: What was learned under which name -> the runtimes of those calls that are known, and of the others.
KNOWN: list[tuple[dict[str, int], dict[str, int], int]] = [
    ({}, {}, 60_000),
    # a call is its path, or the workflow that has it and its name
    ({"w.a": 9_000, "w.b": 300, "w.x.d": 2_000}, {"w.a": 9_000, "w.b": 300, "w.x.d": 2_000}, 2_000),
    ({"sub.d": 2_000}, {"w.x.d": 2_000, "w.y.d": 2_000}, 2_000),
    ({"sub.d": 2_000, "w.y.d": 40}, {"w.x.d": 2_000, "w.y.d": 40}, 2_000),
    # a bare name counts where no call is known by its own
    ({"b": 300}, {"w.b": 300}, 300),
    ({"b": 300, "t": 70}, {"w.a": 70, "w.b": 300, "w.c": 70, "w.x.d": 70, "w.y.d": 70}, 0),
    ({"b": 300, "w.a": 9_000}, {"w.a": 9_000}, 9_000),
    ({"t": 300, "w.x.d": 2_000}, {"w.x.d": 2_000}, 2_000),
    # names of others
    ({"w": 1, "v.b": 1, "w.t": 1, "x.d": 1, "w.x": 1, "sub": 1}, {}, 60_000),
]


async def test_a_call_is_known_by_one_name_and_the_others_take_its_scale(
    client: flowsched.Client, service: app.Running
) -> None:
    """No time of another kind of name, and no minute, stands beside what was learned of the plan's own calls."""
    estimates = service.service._leader.dispatcher.state.work.estimates
    plan = (await client.plan(FAN, imports={"pair.wdl": PAIR})).id
    for learned, known, others in KNOWN:
        before = [estimates.learn(name, "task", runtime_ms) for name, runtime_ms in learned.items()]
        ranks = (await client.get_plan(plan)).ranks
        assert {path: rank.runtime_ms for path, rank in ranks.items() if rank.learned} == known
        assert {rank.runtime_ms for rank in ranks.values() if not rank.learned} <= {others}
        for each in before:
            estimates.recall(each)


async def test_the_stage_of_another_workflow_is_no_call_of_the_plan(
    client: flowsched.Client, service: app.Running
) -> None:
    """Stages have short names such as `align`, which many workflows use for different programs."""
    made = await client.plan(FAN, imports={"pair.wdl": PAIR})
    service.service._leader.dispatcher.state.work.estimates.learn("other", "b", 300)
    assert not (await client.get_plan(made.id)).ranks["w.b"].learned


async def test_ranks_follow_what_was_learned(client: flowsched.Client, service: app.Running) -> None:
    """Tasks that have run under the name of a call say how long it takes, and how long those take of which nothing is known."""
    made = await client.plan(WDL, inputs=INPUTS)
    merge = "HaplotypeCallerGvcf.MergeGvcfs"
    assert (made.ranks[merge].learned, made.ranks[merge].runtime_ms) == (False, 60_000)
    service.service._leader.dispatcher.state.work.estimates.learn(merge, "task", 4_000)
    found = (await client.get_plan(made.id)).ranks
    assert (found[merge].learned, found[merge].rank_ms) == (True, 4_000)
    assert found["HaplotypeCallerGvcf.HaplotypeCaller"].rank_ms == 8_000


async def test_ranks_wait_for_the_step_that_changes_what_was_learned(
    client: flowsched.Client, service: app.Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks without the learned runtimes are minutes, and stay in documents of calls. A busy machine has each step in a thread."""
    made = await client.plan(WDL, inputs=INPUTS)
    merge = "HaplotypeCallerGvcf.MergeGvcfs"
    service.service._leader.dispatcher.state.work.estimates.learn(merge, "task", 4_000)
    begun, released = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        begun.set()
        released.wait(60)
        return step(*arguments, **named)

    monkeypatch.setattr(dispatch, "LONG_S", -1.0)
    monkeypatch.setattr(dispatch, "step", slow)
    await client.submit(call_of("r4", "NoSuchCall"))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(client.get_plan(made.id))
    await asyncio.wait([asked], timeout=0.5)
    released.set()
    assert (await asked).ranks[merge].rank_ms == 4_000


async def test_a_run_of_cromwell_is_planned_on_request(
    client: flowsched.Client, far: tuple[FakeCromwell, str]
) -> None:
    """Source, imports and inputs are those that were submitted; the plan goes by the run's id."""
    fake, url = far
    fake.runs[ROOT] = (
        'import "lib/t.wdl" as t\nworkflow w { Int n scatter (x in range(n)) { call t.t } }',
        {"w.n": 9},
        {"lib/t.wdl": "task t { command {} }"},
    )
    made = await client.plan_cromwell(url, ROOT)
    assert ([node.tasks for node in made.plan.nodes], made.run) == ([9], ROOT)
    assert fake.asked == [f"/api/workflows/v1/{ROOT}/metadata?includeKey=submittedFiles"]


async def test_a_run_of_cromwell_is_planned_when_its_first_call_arrives(
    client: flowsched.Client, far: tuple[FakeCromwell, str]
) -> None:
    """The first call is accepted at once, without a rank; the next ones have theirs."""
    fake, _ = far
    fake.runs[ROOT] = (WDL, INPUTS, {})
    assert await rank_of(client, call_of(ROOT, "CramToBam")) == 0
    while not [plan async for plan in client.plans(run=ROOT)]:
        await asyncio.sleep(0.02)
    assert await rank_of(client, call_of(ROOT, "HaplotypeCaller")) == 120_000
    assert {path.split("/")[4] for path in fake.asked} == {ROOT}


async def test_a_run_is_asked_for_until_cromwell_knows_it(
    client: flowsched.Client, far: tuple[FakeCromwell, str]
) -> None:
    """Its metadata are 404 for some seconds after the submission, then without the source for a moment; the run lives meanwhile."""
    fake, _ = far
    fake.runs[ROOT] = (WDL, INPUTS, {})
    fake.early = [404, 200]
    lasting = {"stages": [{"name": "s", "command": ["sleep", "300"]}]}
    await client.submit(call_of(ROOT, "CramToBam") | lasting)
    while not [plan async for plan in client.plans(run=ROOT)]:
        await asyncio.sleep(0.02)
    assert len(fake.asked) == 3
    assert await rank_of(client, call_of(ROOT, "HaplotypeCaller")) == 120_000
    assert "NotPlanned" not in [view.code for view in await client.explain(ROOT)]
    await client.cancel(ROOT)


async def test_a_run_that_has_ended_is_not_asked_for_again_until_a_call_comes(
    client: flowsched.Client,
    service: app.Running,
    far: tuple[FakeCromwell, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of a Cromwell that is not among the servers costs a question when a call comes, and none once it has ended."""
    fake, _ = far
    monkeypatch.setattr("flowsched.control.planning.plans.POLL_S", 0.05)
    for _ in range(2):
        before = len(fake.asked)
        made = await client.submit(call_of(OTHER, "HaplotypeCaller"))
        while len(fake.asked) == before:
            await asyncio.sleep(0.01)
        await client.wait(made.id)
        while service.service.plans.why_not(OTHER) is not None:  # until it is wanted no more
            await asyncio.sleep(0.02)
        asked = len(fake.asked)
        await asyncio.sleep(0.5)
        assert len(fake.asked) == asked
    assert {path.split("/")[4] for path in fake.asked} == {OTHER}


async def test_explain_says_why_a_run_has_no_plan(
    client: flowsched.Client, far: tuple[FakeCromwell, str]
) -> None:
    """Cromwell has no imports of WDL 1.0: what to do about it is said. A plan that a client posts for the run ends it."""
    fake, url = far
    wdl = 'version 1.0\nimport "lib/t.wdl" as t\nworkflow w { call t.t }'
    task = "version 1.0\ntask t { command {} }"
    fake.runs[ROOT] = (wdl, {}, {"lib/t.wdl": task})
    lasting = {"stages": [{"name": "s", "command": ["sleep", "300"]}]}
    await client.submit(call_of(ROOT, "w.t") | lasting)
    while not (told := [view for view in await client.explain(ROOT) if "imports" in view.message]):
        await asyncio.sleep(0.02)
    assert (told[0].code, told[0].tasks) == ("NotPlanned", 1)
    assert told[0].message == (
        f"no plan says which of its calls to run first: it imports lib/t.wdl, and the metadata of {url} have no imports of "
        "WDL 1.0 and later: name the folder that holds them in `serve --wdl-path` (FLOWSCHED_WDL_PATH), or post the plan with "
        "its imports (docs/plans.md)"
    )
    await client.plan(wdl, imports={"lib/t.wdl": task}, run=ROOT)
    assert "NotPlanned" not in [view.code for view in await client.explain(ROOT)]
    assert len(fake.asked) == 1
    await client.cancel(ROOT)


async def test_imports_are_found_in_the_folders_of_the_wdl_path(
    tmp_path: Path, far: tuple[FakeCromwell, str]
) -> None:
    """As in Cromwell's zip file of imports; and beside the workflow's own file, where it was submitted by its path."""
    fake, url = far
    (tmp_path / "wdl" / "lib").mkdir(parents=True)
    (tmp_path / "wdl" / "lib" / "t.wdl").write_text(
        'version 1.0\nimport "../u.wdl" as u\nworkflow t { call u.u }'
    )
    (tmp_path / "wdl" / "u.wdl").write_text("version 1.0\ntask u { command {} }")
    far_away = "https://example.org/pipelines/v2/lib/t.wdl"
    wdl = 'version 1.0\nimport "{}" as t\nworkflow w {{ call t.t }}'
    fake.runs |= {ROOT: (wdl.format("lib/t.wdl"), {}, {}), OTHER: (wdl.format(far_away), {}, {})}
    settings = app.Settings(
        root=tmp_path / "root", port=0, engines=EngineSettings(cromwell=url, wdl_path=str(tmp_path / "wdl"))
    )
    async with app.running(settings) as running, flowsched.Client(running.url) as client:
        made = await client.plan_cromwell(url, ROOT)
        by_url = await client.plan_cromwell(url, OTHER)
    assert [node.path for node in made.plan.nodes] == ["w.t.u"]
    assert (by_url.plan.nodes, made.plan.notes) == (made.plan.nodes, ())
    note = f"main.wdl:2:1: {far_away} was read from lib/t.wdl: flowsched fetches no import"
    assert by_url.plan.notes == (note,)


@pytest.mark.parametrize(
    ("url", "root", "error"),
    [
        ("http://169.254.169.254", ROOT, errors.Forbidden),
        ("http://127.0.0.1:1", ROOT, errors.Forbidden),
        ("", ROOT, errors.Forbidden),
        (None, "../../../admin", errors.InvalidRequest),
        (None, f"{ROOT}?x=", errors.InvalidRequest),
        (None, OTHER, errors.NotFound),
    ],
)
async def test_only_named_servers_are_asked_and_only_for_runs(
    client: flowsched.Client,
    far: tuple[FakeCromwell, str],
    url: str | None,
    root: str,
    error: type[Exception],
) -> None:
    """No other address, no other path."""
    fake, own = far
    with pytest.raises(error):
        await client.plan_cromwell(own if url is None else url, root)
    assert [path.split("/")[4] for path in fake.asked] == ([OTHER] if error is errors.NotFound else [])


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=302, headers={"Location": "http://169.254.169.254/"}),
        web.Response(status=500),
        web.Response(text="no json"),
        web.json_response({"submittedFiles": {"workflow": 7}}),
        web.json_response({"submittedFiles": {"workflow": "x", "inputs": "{"}}),
    ],
    ids=["redirect", "error", "text", "other types", "inputs"],
)
async def test_what_another_server_says_is_told_and_not_followed(
    answer: web.Response, far: tuple[FakeCromwell, str]
) -> None:
    """A redirect leads nowhere; what cannot be read is not available."""
    from flowsched.control.planning.plans import Cromwell

    fake, url = far
    fake.answer = answer
    with pytest.raises(errors.Unavailable):
        await Cromwell((url,)).submitted(url, ROOT)
    assert len(fake.asked) == 1


async def test_cromwells_own_form_can_be_posted(service: app.Running) -> None:
    """With several files of inputs, of which a later one wins, and a zip file."""
    form = aiohttp.FormData()
    source = 'version 1.0\nimport "t.wdl" as t\nworkflow w { input { Int n } scatter (x in range(n)) { call t.t } }'
    form.add_field("workflowSource", source, filename="w.wdl")
    form.add_field("workflowInputs", json.dumps({"w.n": 1}))
    form.add_field("workflowInputs_2", json.dumps({"w.n": 5}))
    form.add_field(
        "workflowDependencies", packed({"t.wdl": b"version 1.0\ntask t { command {} }"}), filename="d.zip"
    )
    form.add_field("workflowOptions", "{}")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/api/v1/plans", data=form) as answer,
    ):
        body = await answer.json()
    assert (answer.status, answer.headers["Location"]) == (201, f"/api/v1/plans/{body['id']}")
    assert [node["tasks"] for node in body["plan"]["nodes"]] == [5]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"workflowInputs": "{}"}, "no part workflowSource"),
        ({"workflowSource": "version 1.0", "workflowInputs": "["}, "workflowInputs: not JSON: "),
        ({"workflowSource": "version 1.0", "workflowInputs": "[]"}, "no JSON object of inputs"),
        ({"workflowSource": "version 1.0", "somethingElse": "x"}, "unknown parts: somethingElse"),
    ],
)
async def test_a_form_that_is_none_is_told_so(
    service: app.Running, fields: dict[str, str], detail: str
) -> None:
    """400, with what was expected."""
    with aiohttp.MultipartWriter("form-data") as form:
        for name, text in fields.items():
            form.append(text).set_content_disposition("form-data", name=name)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/api/v1/plans", data=form) as answer,
    ):
        body = await answer.json()
    assert answer.status == 400
    assert detail in body["detail"]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"{", 400, "not JSON: Expecting property name"),
        (b'{"source": 1}', 400, "Expected `str"),
        (b'{"sauce": "x"}', 400, "unknown field `sauce`"),
        (b"{}", 400, "give one of them"),
        (b'{"source": "version 1.0", "run": "\\u0000"}', 400, "printable ASCII"),
        (b'{"source": "version 1.0\\nworkflow w { call x }"}', 422, "main.wdl:2:14"),
        (b'{"source": "version 9.9\\nworkflow w { }"}', 422, "main.wdl:1:1"),
        (b'{"source": ""}', 422, "main.wdl"),
    ],
)
async def test_a_body_that_is_none_is_told_so(
    service: app.Running, body: bytes, status: int, detail: str
) -> None:
    """4xx, with the place."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/api/v1/plans", data=body) as answer,
    ):
        told = await answer.json()
    assert answer.status == status, told
    assert detail in told["detail"]


async def test_plans_are_kept_in_the_order_they_came_and_only_so_many(
    client: flowsched.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go."""
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    made = [(await client.plan("version 1.0\nworkflow w { }")).id for _ in range(3)]
    assert [plan.id async for plan in client.plans(page=1)] == [made[2], made[1]]


def test_a_setting_that_names_no_server_is_refused() -> None:
    """Before anything starts."""
    from flowsched.control.planning.plans import servers

    assert servers(" http://a:8000/ ,https://b/cromwell") == ("http://a:8000", "https://b/cromwell")
    for text in ("cromwell:8000", "file:///etc", "http://user@host", "http://a?x=1"):
        with pytest.raises(errors.ConfigurationError, match="FLOWSCHED_CROMWELL"):
            servers(text)


SUB = """version 1.0
workflow Sub { input { Int n }
  scatter (x in range(n)) { call Caller } call Merge { input: os = Caller.o } output { Int o = Merge.o } }
task Caller { command {} output { Int o = 1 } }
task Merge { input { Array[Int] os } command {} output { Int o = 1 } }"""
WGS = """version 1.0
import "sub.wdl" as s
workflow WGS { call s.Sub { input: n = 3 } call Done { input: o = Sub.o } }
task Done { input { Int o } command {} output { Int o2 = 1 } }"""


async def test_a_call_of_cromwell_over_tes_gets_the_rank_of_its_plan(
    client: flowsched.Client, service: app.Running, tmp_path: Path
) -> None:
    """In the form that Cromwell's TES backend sends it, with the sub-workflow that it is in; three calls are left from it on."""
    await client.plan(WGS, imports={"sub.wdl": SUB}, run=ROOT)
    folder = tmp_path / f"WGS/{ROOT}/call-Sub/Sub/{OTHER}/call-Caller/shard-2/execution"
    folder.mkdir(parents=True)
    (folder / "script").write_text("exit 0\n")
    script = {
        "name": "commandScript",
        "description": "Sub.Caller.commandScript",
        "path": str(folder / "script"),
    }
    task = {
        "name": "Sub.Caller",
        "description": f"{OTHER}:BackendJobDescriptorKey_CommandCallNode_Sub.Caller:2:1",
        "inputs": [script | {"url": str(folder / "script"), "type": "FILE"}],
        "executors": [{"image": "ubuntu", "command": ["/bin/bash", str(folder / "script")]}],
        "tags": {"workflow_id": OTHER, "root_workflow_id": ROOT, "parent_workflow_id": ROOT},
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/ga4gh/tes/v1/tasks", json=task) as answer,
    ):
        assert answer.status == 200, await answer.text()
        made = (await answer.json())["id"]
    call = json.loads(await client.document(made))["call"]
    assert (call["node"], call["shard"], call["rank_ms"]) == ("WGS.Sub.Caller", 2, 180_000)


async def test_the_calls_of_a_scatter_look_for_their_plan_once(
    service: app.Running, client: flowsched.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come together, and each would work out the ranks of the whole run on the event loop."""
    await client.plan(WDL, inputs=INPUTS, run=OTHER)
    book, asked = service.service.plans, []

    async def learned(names: Collection[str]) -> Mapping[str, int]:
        asked.append(names)
        await asyncio.sleep(0.1)
        return {}

    monkeypatch.setattr(book, "_learned", learned)
    call = Call(OTHER, "r", "cromwell", "HaplotypeCaller_GATK4_VCF.CramToBamTask")
    alone = await book.rank_ms(call, {})
    once = len(asked)
    book._known.clear()
    ranks = await asyncio.gather(*(book.rank_ms(call, {}) for _ in range(20)))
    assert len(asked) == 2 * once
    assert set(ranks) == {alone}


async def test_an_outage_of_the_database_is_no_news_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OutageLog` warns of it; what else goes wrong with ranks is a warning."""

    class Away:
        """First the database is away, then its answer is none."""

        def __init__(self) -> None:
            self.errors: list[FlowschedError] = [Unavailable("no database"), NotFound("no table")]

        async def newest(self) -> str | None:
            if self.errors:
                raise self.errors.pop(0)
            raise asyncio.CancelledError

        async def rank_ms(self, call: object, labels: object) -> int | None:
            raise AssertionError

    monkeypatch.setattr("flowsched.control.planning.plans.POLL_S", 0.0)
    with structlog.testing.capture_logs() as told, pytest.raises(asyncio.CancelledError):
        await LateRanks(Away(), lambda: None).run()
    assert [(line["log_level"], line["error"]) for line in told] == [
        ("debug", "no database"),
        ("warning", "no table"),
    ]
