"""The steps in a task's pod: real processes against a real agent, over folders as a kubelet lays them out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.cluster.kubernetes.pods.container_task import files_variables
from flowsched.cluster.kubernetes.steps.program import fitted
from flowsched.cluster.node.container_paths import Refusal, SharedVolume, lay_out
from flowsched.executor.datasets import versioned
from flowsched.workflow.spec import Container, Delivered, Step
from tests.kubernetes import written
from tests.kubernetes.agent_world import Node, Served, order, reads, signed, writes
from tests.object_store import object_store

X = "flowsched:wf/a/0/1/x"
PATIENCE_S = 200


class PodWithSteps:
    """A pod on a node, and its steps as processes of their own."""

    def __init__(self, node: Node, told: Mapping[str, Any], agent: str, **env: str) -> None:
        self.node = node
        self.uid = node.pod()
        self.log = node.folder / "termination-log"
        self.log.write_bytes(b"")
        self.env = {
            "PATH": os.environ["PATH"],
            "FLOWSCHED_AGENT": agent,
            "FLOWSCHED_ORDER": signed(told)["order"],
            "FLOWSCHED_SIGNATURE": signed(told)["signature"],
            "FLOWSCHED_INPUTS": str(node.inputs(self.uid)),
            "FLOWSCHED_WORK": str(node.work(self.uid)),
            "FLOWSCHED_TERMINATION_LOG": str(self.log),
            "POD_UID": self.uid,
            **env,
        }
        self._started: list[Process] = []

    async def start(self, step: str) -> Process:
        module = "flowsched.cluster.kubernetes.steps.program"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, step, env=self.env, stdout=PIPE, stderr=PIPE
        )
        self._started.append(process)
        return process

    async def run(self, step: str) -> tuple[int, dict[str, Any]]:
        """Its exit code and its termination message."""
        return await self.ended(await self.start(step))

    async def ended(self, process: Process) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_S):
            _, err = await process.communicate()
        assert b"Traceback" not in err, err.decode()
        assert process.returncode is not None
        return process.returncode, json.loads(self.log.read_text())

    async def stage_out(self) -> Process:
        """Start it, and wait until it would notice a SIGTERM."""
        process = await self.start("stage-out")
        is_ready = await self.start("ready")
        async with asyncio.timeout(PATIENCE_S):
            assert await is_ready.wait() == 0
        return process

    async def end(self) -> None:
        for process in self._started:
            if process.returncode is None:
                process.kill()
                await process.wait()


class Rig:
    """An agent, and pods on its node."""

    def __init__(self, served: Served) -> None:
        self.agent = served
        self.pods: list[PodWithSteps] = []

    def pod(self, told: Mapping[str, Any], agent: str | None = None, **env: str) -> PodWithSteps:
        pod = PodWithSteps(self.agent.node, told, self.agent.url if agent is None else agent, **env)
        self.pods.append(pod)
        return pod


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Served(Node(tmp_path / "n"), long_poll_s=0.3) as served:
        made = Rig(served)
        yield made
        for pod in made.pods:
            await pod.end()


# --- stage-in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["signature", "order", "none"])
async def test_an_order_that_the_agent_refuses(rig: Rig, wrong: str) -> None:
    """Exit 64: asking again is no use."""
    pod = rig.pod(order())
    match wrong:
        case "signature":
            pod.env["FLOWSCHED_SIGNATURE"] = "0" * 64
        case "order":
            pod.env |= {f"FLOWSCHED_{k.upper()}": v for k, v in signed({"pod": 1}).items()}
        case _:
            del pod.env["FLOWSCHED_ORDER"]
    code, message = await pod.run("stage-in")
    assert (code, message["reason"]) == (64, "OrderRefused")


@pytest.mark.parametrize("step", ["stage-in", "stage-out"])
async def test_an_agent_that_cannot_be_reached(rig: Rig, step: str) -> None:
    """Exit 75, after the patience."""
    pod = rig.pod(order(), agent="http://127.0.0.1:9", FLOWSCHED_PATIENCE_S="0.5")
    process = await (pod.stage_out() if step == "stage-out" else pod.start(step))
    if step == "stage-out":
        process.terminate()
    code, message = await pod.ended(process)
    assert (code, message["reason"]) == (75, "AgentUnreachable")
    assert "127.0.0.1:9" in message["message"]


async def test_an_agent_that_comes_later(rig: Rig) -> None:
    """It is in trouble at first, then not there, then well: the step goes on asking."""
    rig.agent.put(X, b"1")
    asked = 0

    async def pass_on(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            return web.Response(status=503)
        if asked == 2:
            assert request.transport is not None
            request.transport.close()
        reply = await rig.agent.call("POST", request.path, key=None, data=await request.read())
        return web.Response(status=reply.status, body=reply.body)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{tail:.*}", pass_on)
    async with TestServer(app) as between:
        pod = rig.pod(order(inputs=[reads(X, "x")]), agent=str(between.make_url("")))
        assert await pod.run("stage-in") == (0, {"bytes_local": 1, "bytes_moved": 0})
    assert asked == 3


async def test_a_long_fetch_is_waited_for(rig: Rig) -> None:
    """Longer than the patience, since the agent says that it is at it."""
    go = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await go.wait()
        return web.Response(body=b"abc")

    app = web.Application()
    app.router.add_get("/x", slow)
    async with TestServer(app) as origin:
        told = order(inputs=[reads(str(origin.make_url("/x")), "x")])
        pod = rig.pod(told, FLOWSCHED_PATIENCE_S="0.5")
        process = await pod.start("stage-in")
        await asyncio.sleep(1.5)
        assert process.returncode is None
        go.set()
        assert await pod.ended(process) == (0, {"bytes_local": 0, "bytes_moved": 3})


async def test_patience_begins_anew_with_every_word_of_the_agent(rig: Rig) -> None:
    """It was at it for longer than the patience, and then in trouble for a moment: the step asks once more."""
    answers = [*[202] * 12, 503, 200]

    async def script(_: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response(status=answers.pop(0), body=b"{}")

    app = web.Application()
    app.router.add_post("/{tail:.*}", script)
    async with TestServer(app) as agent:
        pod = rig.pod(order(), agent=str(agent.make_url("")), FLOWSCHED_PATIENCE_S="3")
        assert await pod.run("stage-in") == (0, {"bytes_local": 0, "bytes_moved": 0})
    assert answers == []


async def test_a_packed_order(rig: Rig) -> None:
    """10,000 shards reach the agent through one variable."""
    uris = [f"flowsched:wf/call/{shard}/1/variants" for shard in range(10_000)]
    given = {"name": "calls", "uris": uris, "manifest": True, "path": "calls.manifest"}
    pod = rig.pod(order(inputs=[given]))
    assert pod.env["FLOWSCHED_ORDER"].startswith("z:")
    code, message = await pod.run("stage-in")
    assert (code, message["reason"], message["more"]) == (66, "InputLost", True)
    assert 0 < len(message["lost"]) < 10_000
    assert len(pod.log.read_bytes()) <= 4096


# --- stage-in without an agent -------------------------------------------------------------------------------


async def test_without_an_agent_the_pod_fetches_by_itself(rig: Rig) -> None:
    """From the origin into its own volume, laid out as an agent would have."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(body=request.path.encode())

    app = web.Application()
    app.router.add_get("/{name}", hello)
    async with TestServer(app) as origin:
        uris = [str(origin.make_url(path)) for path in ("/a.txt", "/b.txt")]
        manifest = {"name": "all", "uris": uris, "manifest": True, "path": "all.manifest"}
        gang = {"runs": [["w", 5, 1]], "service": "", "slots": 1, "port": 29500}
        told = order(inputs=[reads(uris[0], "one/a.txt"), manifest], gang=gang)
        pod = rig.pod(told, agent="", FLOWSCHED_NETWORKS="127.0.0.0/8")
        assert await pod.run("stage-in") == (0, {"bytes_local": 0, "bytes_moved": 12})
    inputs = pod.node.inputs(pod.uid)
    assert (inputs / "one" / "a.txt").read_bytes() == b"/a.txt"
    lines = (inputs / "all.manifest").read_text().splitlines()
    assert [Path(line).read_bytes() for line in lines] == [b"/a.txt", b"/b.txt"]
    assert sorted(path.name for path in inputs.iterdir()) == ["all.d", "all.manifest", "one"]
    assert (pod.node.work(pod.uid) / "hostfile").read_text() == "127.64.0.5 slots=1\n"


async def test_without_an_agent_what_cannot_be_fetched_is_lost(rig: Rig, tmp_path: Path) -> None:
    """What other tasks made, files of the pod's own image, addresses that are not public."""
    (tmp_path / "f").write_text("x")
    uris = [X, (tmp_path / "f").as_uri(), "http://127.0.0.1:1/x"]
    inputs = [reads(uri, f"{number}", f"i{number}") for number, uri in enumerate(uris)]
    pod = rig.pod(order(inputs=inputs), agent="")
    code, message = await pod.run("stage-in")
    assert (code, message["reason"], message["lost"]) == (66, "InputLost", uris)
    assert list(pod.node.inputs(pod.uid).iterdir()) == []


# --- stage-out -----------------------------------------------------------------------------------------------


async def test_stage_out_waits_for_the_end_of_the_task(rig: Rig) -> None:
    """It idles until SIGTERM; then what the task has left is published, and told in the message."""
    pod = rig.pod(order(outputs=[writes("n", value=True), writes("big")]))
    process = await pod.stage_out()
    await asyncio.sleep(0.3)
    assert process.returncode is None
    (pod.node.work(pod.uid) / "n").write_text("42\n")
    (pod.node.work(pod.uid) / "big").write_bytes(bytes(1000))
    process.send_signal(signal.SIGTERM)
    base = "flowsched:wf/s/0/1"
    assert await pod.ended(process) == (
        0,
        {
            "outputs": [
                {"name": "n", "uri": f"{base}/n", "size_bytes": 3, "value": "42\n"},
                {"name": "big", "uri": f"{base}/big", "size_bytes": 1000, "value": None},
            ],
            "reason": "",
            "message": "",
        },
    )
    assert await rig.agent.replicas() == {f"{base}/n": 3, f"{base}/big": 1000}


async def test_a_signal_before_it_waits_is_not_lost_on_it(rig: Rig) -> None:
    """From the moment that `ready` returns a SIGTERM is noticed, however soon it comes, and a second does no harm."""
    pod = rig.pod(order(outputs=[writes("n")]))
    (pod.node.work(pod.uid) / "n").write_text("1")
    process = await pod.stage_out()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    code, message = await pod.ended(process)
    assert (code, [each["name"] for each in message["outputs"]]) == (0, ["n"])


async def test_a_signal_while_it_publishes_does_not_end_it(rig: Rig) -> None:
    """Signals are blocked, not only waited for."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        asked.set()
        await go.wait()
        return web.Response(body=b'{"outputs": []}')

    app = web.Application()
    app.router.add_post("/{tail:.*}", slow)
    async with TestServer(app) as agent:
        pod = rig.pod(order(), agent=str(agent.make_url("")))
        process = await pod.stage_out()
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        process.terminate()
        go.set()
        assert await pod.ended(process) == (0, {"outputs": [], "reason": "", "message": ""})


async def test_nobody_is_ready_who_has_not_started(rig: Rig) -> None:
    """`ready` waits for stage-out of its own pod, not of another."""
    first, second = rig.pod(order("one")), rig.pod(order("two"))
    waiting = await second.start("ready")
    await first.stage_out()
    await asyncio.sleep(0.3)
    assert waiting.returncode is None
    await second.start("stage-out")
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting.wait() == 0


async def test_an_agent_that_is_restarted_meanwhile(rig: Rig) -> None:
    """The outputs of hours of work wait for it: on the same port it is found again."""
    pod = rig.pod(order(outputs=[writes("n")]))
    (pod.node.work(pod.uid) / "n").write_text("1")
    process = await pod.stage_out()
    port = rig.agent.door.port
    await rig.agent.door.close()
    await rig.agent.agent.close()
    process.terminate()
    await asyncio.sleep(0.5)
    assert process.returncode is None
    async with Served(pod.node, port=port) as again:
        code, message = await pod.ended(process)
        assert (code, message["outputs"][0]["size_bytes"]) == (0, 1)
        assert await again.replicas() == {"flowsched:wf/s/0/1/n": 1}


async def test_values_that_do_not_fit_into_the_message(rig: Rig) -> None:
    """They are left out, which is told; the agent has them all."""
    outputs = [writes(f"v{number}", value=True) for number in range(4)]
    pod = rig.pod(order(outputs=outputs))
    for number in range(4):
        (pod.node.work(pod.uid) / f"v{number}").write_text(str(number) * (100 if number == 0 else 3000))
    process = await pod.stage_out()
    process.terminate()
    code, message = await pod.ended(process)
    assert (code, message["more"]) == (0, True)
    assert [len(each["value"] or "") for each in message["outputs"]] == [100, 0, 0, 3000]
    assert len(pod.log.read_bytes()) <= 4096
    whole = (await rig.agent.call("GET", f"/v1/pods/{pod.uid}/outputs")).json
    assert [len(each["value"]) for each in whole["outputs"]] == [100, 3000, 3000, 3000]


async def test_without_an_agent_values_come_out_and_nothing_else(rig: Rig) -> None:
    """They fit into the message; files have nowhere to go."""
    pod = rig.pod(order(outputs=[writes("n", value=True)]), agent="")
    (pod.node.work(pod.uid) / "n").write_text("ä")
    process = await pod.stage_out()
    process.terminate()
    _, message = await pod.ended(process)
    assert message["outputs"] == [{"name": "n", "uri": "flowsched:wf/s/0/1/n", "size_bytes": 2, "value": "ä"}]
    other = rig.pod(order("other", outputs=[writes("f")]), agent="")
    (other.node.work(other.uid) / "f").write_text("x")
    process = await other.stage_out()
    process.terminate()
    _, message = await other.ended(process)
    assert (message["reason"], message["outputs"]) == ("OutputFailed", [])
    assert "no agent" in message["message"]


# --- the message ---------------------------------------------------------------------------------------------


def test_a_message_that_fits_stays_as_it_is() -> None:
    """To the last byte."""
    message = {"outputs": [], "reason": "", "message": "x" * 100}
    length = len(json.dumps(message))
    assert json.loads(fitted(message, length)) == message
    assert json.loads(fitted(message, length - 1))["more"] is True


@pytest.mark.parametrize("limit", [300, 1000, 4096])
@pytest.mark.parametrize(
    "message",
    [
        {
            "outputs": [
                {"name": f"n{i}", "uri": "u" * 50, "size_bytes": i, "value": "ü" * 90} for i in range(99)
            ]
        },
        {"lost": [f"flowsched:{i}" for i in range(5000)], "reason": "InputLost", "message": "é" * 5000},
        {"outputs": [], "reason": "OutputMissing", "message": '"\\\n' * 3000},
        {"reason": "OrderRefused", "message": "x" * 10_000, "pending": False},
    ],
)
def test_no_message_is_longer_than_a_kubelet_takes(message: dict[str, Any], limit: int) -> None:
    """It would be cut in the middle, and be no JSON any more."""
    text = fitted(message, limit)
    assert len(text.encode()) <= limit
    told = json.loads(text)
    assert told["more"] is True
    assert told.get("reason") == message.get("reason")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["nothing"], 2), ([], 2), (["stage-in"], 64), (["ready", "twice"], 2)]
)
def test_the_steps_are_commands(tmp_path: Path, arguments: list[str], code: int) -> None:
    """As a module, and below `flowsched pod`; what is no step is a wrong usage."""
    env = {"PATH": os.environ["PATH"], "FLOWSCHED_TERMINATION_LOG": str(tmp_path / "log")}
    typed = "from flowsched.cli.agent import pod; pod()"
    for start in (["-m", "flowsched.cluster.kubernetes.steps.program"], ["-c", typed]):
        command = [sys.executable, *start, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, timeout=PATIENCE_S)
        assert done.returncode == code, done.stderr


async def test_the_steps_import_little() -> None:
    """They start once or twice per task: no HTTP library, no numpy, no typer, and of flowsched next to nothing."""
    program = (
        "import sys, json; import flowsched.cluster.kubernetes.steps.program, http.client;"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules} | {n for n in sys.modules if n[:9] == 'flowsched'})))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=PIPE)
    out, _ = await process.communicate()
    loaded = set(json.loads(out))
    assert not {"aiohttp", "numpy", "typer", "msgspec", "fsspec", "structlog", "dataclasses"} & loaded
    assert {name for name in loaded if name.startswith("flowsched")} == {
        "flowsched", "flowsched.cluster", "flowsched.cluster.kubernetes", "flowsched.cluster.kubernetes.exit_codes",
        "flowsched.cluster.kubernetes.steps", "flowsched.cluster.kubernetes.steps.program",
    }  # fmt: skip


# --- objects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_agent", [True, False])
async def test_outputs_reach_a_store_by_the_agent_or_by_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_agent: bool
) -> None:
    """An agent that writes objects needs no credentials in the pod; else the pod uses its own. Both leave a dataset."""
    with object_store(monkeypatch) as bucket:
        container = Container((Step(("run",)),), outputs=(Delivered("/out/a", "s3://lab/a"),))
        layout = lay_out(container, ())
        assert not isinstance(layout, Refusal)
        variables = files_variables(written.task(container=container), layout, contents=True)
        env = {each["name"]: each["value"] for each in variables}
        if not by_agent:
            env |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        async with Served(Node(tmp_path / "n"), write_objects=by_agent) as served:
            rig = Rig(served)
            pod = rig.pod(order(delivers=[["s3://lab/a", False]]), **env)
            try:
                assert (await pod.run("stage-in"))[0] == 0
                process = await pod.stage_out()
                (served.node.inputs(pod.uid) / "d/0/a").write_text("ACGT")
                for note, text in (("begun", ""), ("code", "0\n")):
                    (served.node.work(pod.uid) / f"steps/0.{note}").write_text(text)
                process.send_signal(signal.SIGTERM)
                code, message = await pod.ended(process)
            finally:
                await pod.end()
            tag = bucket.head_object(Bucket="lab", Key="a")["ETag"].strip('"')
            assert (code, message["reason"]) == (0, ""), message
            assert message["delivered"] == [["/out/a", "s3://lab/a", 4, tag]]
            assert await served.replicas() == {versioned("s3://lab/a", tag): 4}


async def test_the_end_of_a_task_waits_for_no_copies(rig: Rig, tmp_path: Path) -> None:
    """All outputs are delivered: the message is there before the agent is asked, and an agent at work for long is left to it."""
    container = Container((Step(("run",)),), outputs=(Delivered("/out/a", f"{tmp_path}/results/a"),))
    layout = lay_out(container, (SharedVolume("lab", str(tmp_path)),))
    assert not isinstance(layout, Refusal)
    variables = files_variables(written.task(container=container), layout, contents=True)
    env = {each["name"]: each["value"] for each in variables}
    env |= {"FLOWSCHED_PATIENCE_S": "0.5", "FLOWSCHED_MESSAGE_BYTES": "100"}
    messages = []

    async def at_work(_: web.Request) -> web.Response:
        messages.append(pod.log.read_text())
        return web.Response(status=202, body=b"{}")

    app = web.Application()
    app.router.add_post("/{tail:.*}/outputs", at_work)
    async with TestServer(app) as agent:
        pod = rig.pod(order(), **env)
        assert (await pod.run("stage-in"))[0] == 0
        pod.env["FLOWSCHED_AGENT"] = str(agent.make_url(""))
        process = await pod.stage_out()
        (pod.node.inputs(pod.uid) / "d/0/a").write_text("ACGT")
        for note, text in (("begun", ""), ("code", "0\n")):
            (pod.node.work(pod.uid) / f"steps/0.{note}").write_text(text)
        process.send_signal(signal.SIGTERM)
        code, message = await pod.ended(process)
    assert (code, message["reason"], message["undelivered"]) == (0, "", 1), message
    assert json.loads(messages[0]) == message
