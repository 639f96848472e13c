"""flowsched's own pods on hollow nodes: agents from deploy/, tasks as they are released, data between nodes."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from msgspec import structs

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings, extras_of
from flowsched.cluster.kubernetes.orders import LIFE_MS
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.executor.protocol import InputFile, OutputFile
from flowsched.values import replace
from tests.kubernetes import written as w
from tests.kubernetes.bound import PATIENCE_S, bind, ended, running, terminated
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

pytestmark = pytest.mark.kubernetes

KEY = "a-key-of-thirty-two-bytes-or-more!"
DAEMONSET = Path(__file__).parents[2] / "deploy/kustomize/base/agent.yaml"


def agent_spec(node: str) -> dict[str, Any]:
    """The DaemonSet's pod, as its controller would make it for a node."""
    documents = list(yaml.safe_load_all(DAEMONSET.read_text()))
    spec: dict[str, Any] = next(one for one in documents if one["kind"] == "DaemonSet")["spec"]["template"][
        "spec"
    ]
    for name in ("serviceAccountName", "priorityClassName"):
        spec.pop(name, None)
    return spec | {"nodeName": node, "restartPolicy": "Always"}


async def post(client: Client, path: str, document: Mapping[str, Any] | bytes) -> dict[str, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    answer = await client.call("POST", path, body=body)
    assert answer.status == 201, answer
    made: dict[str, Any] = json.loads(answer.body)
    return made


@pytest.fixture
async def hollow(client: Client, namespace: str, tmp_path: Path) -> AsyncIterator[HollowNodes]:
    """Two nodes, each with an agent that has started."""
    secret = {
        "metadata": {"name": "flowsched-agent-key"},
        "data": {"key": base64.b64encode(KEY.encode()).decode()},
    }
    await post(client, f"/api/v1/namespaces/{namespace}/secrets", secret)
    nodes = [f"{namespace}-{letter}" for letter in "ab"]
    async with HollowNodes(client, [NodeTemplate(node) for node in nodes], "exec", tmp_path / "h") as hollow:
        for node in nodes:
            document = {"metadata": {"name": f"agent-{node}"}, "spec": agent_spec(node)}
            await post(client, f"/api/v1/namespaces/{namespace}/pods", document)
        for node in nodes:
            await running(client, namespace, f"agent-{node}")
        yield hollow


async def healthy(address: str) -> None:
    """Wait until the agent of a node answers."""
    end = time.monotonic() + PATIENCE_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            try:
                async with session.get(f"http://{address}:8475/healthz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            assert time.monotonic() < end, "no agent"
            await asyncio.sleep(0.1)


async def test_a_task_reads_what_another_one_wrote(
    client: Client, hollow: HollowNodes, namespace: str
) -> None:
    """Its input is linked from the node's cache; both publish their outputs after they have ended, and say so in their status."""
    node = f"{namespace}-a"
    for name in (node, f"{namespace}-b"):
        found = await client.get(f"/api/v1/nodes/{name}", dict[str, Any])
        assert found is not None
        addresses = {one["type"]: one["address"] for one in found["status"]["addresses"]}
        await healthy(addresses["InternalIP"])
    settings = ReleaseSettings(
        namespace=namespace,
        our_image="flowsched:test",
        default_image="task:test",
        agent_key=KEY.encode(),
        agent_port=8475,
    )
    script = 'cat "$1" > "$2" 2>/dev/null; echo "$3" >> "$2"'
    out = "$(FLOWSCHED_OUTPUT_TEXT)"
    first = w.task("fs-w1-one-0-1", "sh", "-c", script, "-", "/dev/null", out, "one", cpu_millicores=100)
    first = structs.replace(first, outputs=(OutputFile("text", "text", "flowsched:w1/one/0/text"),))
    second = w.task(
        "fs-w1-two-0-1", "sh", "-c", script, "-", "$(FLOWSCHED_INPUT_BEFORE)", out, "two", cpu_millicores=100
    )
    second = structs.replace(
        second,
        inputs=(InputFile("before", ("flowsched:w1/one/0/text",)),),
        outputs=(OutputFile("text", "text", "flowsched:w1/two/0/text", value=True),),
    )
    told = []
    for task in (first, second):
        now_ms = time.time_ns() // 1_000_000
        manifest = pod_manifest(task, settings, None, replace(extras_of(task), expires_ms=now_ms + LIFE_MS))
        assert isinstance(manifest, bytes), manifest
        name = msgspec.json.decode(manifest)["metadata"]["name"]
        await post(client, f"/api/v1/namespaces/{namespace}/pods", manifest)
        await bind(client, namespace, name, node)
        pod = await ended(client, namespace, name)
        assert pod["status"]["phase"] == "Succeeded", msgspec.json.encode(pod["status"]).decode()
        told.append(json.loads(terminated(pod, "stage-out")["message"]))
    assert [one["outputs"][0]["uri"] for one in told] == [
        "flowsched:w1/one/0/text",
        "flowsched:w1/two/0/text",
    ]
    assert told[0]["outputs"][0]["size_bytes"] == 4
    assert told[1]["outputs"][0]["value"] == "one\ntwo\n"
