"""Pods that really run on hollow nodes: bound on a real API server, their containers are processes, their ends are told."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import (
    PATIENCE_S,
    bound,
    delete,
    ended,
    gone,
    python,
    running,
    shell,
    terminated,
)
from tests.kubernetes.hollow.containers import MARK
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

pytestmark = pytest.mark.kubernetes

#: A sidecar as flowsched's own: it tells that its handler is set, waits for SIGTERM, and leaves a message.
SIDECAR = """
import os, signal, sys
def leave(*_):
    open(os.environ["FLOWSCHED_TERMINATION_LOG"], "w").write("published " + open(os.environ["OUT"]).read())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
open(os.environ["READY"], "w").close()
while True:
    signal.pause()
"""


@pytest.fixture
def node(namespace: str) -> str:
    """The name of this test's first node."""
    return f"{namespace}-a"


@pytest.fixture
async def hollow(
    control_plane: ControlPlane, client: Client, node: str, tmp_path: Path
) -> AsyncIterator[HollowNodes]:
    """Two nodes with two cores each."""
    templates = [NodeTemplate(name, cpu="2") for name in (node, node[:-1] + "b")]
    certificate = control_plane.certificate
    async with HollowNodes(
        client, templates, "exec", tmp_path / "h", certificate=certificate, back_off_s=0.05
    ) as nodes:
        yield nodes


def marked(uid: str) -> list[int]:
    """The processes of a pod that live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={uid}/".encode() in environ:
                found.append(int(entry.name))
    return found


async def text(client: Client, namespace: str, name: str, container: str = "main") -> str:
    """What `kubectl logs` shows."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
    answer = await client.call("GET", path, params={"container": container})
    assert answer.ok, answer
    return answer.body.decode()


async def test_a_bound_pod_runs_and_succeeds(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Nobody but a test bound it; its logs are read through the API server, and its addresses are its own and its node's."""
    made = await bound(client, namespace, "p", node, shell("echo out; echo err >&2; printf unfinished"))
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Succeeded"
    assert terminated(found)["exitCode"] == 0
    assert terminated(found)["reason"] == "Completed"
    assert sorted((await text(client, namespace, "p")).splitlines()) == ["err", "out", "unfinished"]
    assert found["status"]["podIP"] != found["status"]["hostIP"]
    assert found["status"]["podIP"].startswith("127.")
    cri = hollow.root / "log/pods" / f"{namespace}_p_{made['metadata']['uid']}" / "main" / "0.log"
    assert " stdout F out\n" in cri.read_text()
    conditions = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert conditions == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
    }


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 7", 7, "Error"), ("kill -9 $$$$", 137, "Error"), ("kill -TERM $$$$", 143, "Error")],
)
async def test_a_failing_command_fails_its_pod(
    client: Client, hollow: HollowNodes, node: str, namespace: str, script: str, code: int, reason: str
) -> None:
    """An exit code is told as it is, a signal as 128 and its number. ($$ in a command is one $, as for a kubelet.)"""
    await bound(client, namespace, "p", node, shell(script))
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Failed"
    assert (terminated(found)["exitCode"], terminated(found)["reason"]) == (code, reason)


def sidecar(**fields: Any) -> dict[str, Any]:
    """The native sidecar of `SIDECAR`."""
    return python(
        SIDECAR,
        "stage-out",
        restartPolicy="Always",
        env=[{"name": "OUT", "value": "/work/out"}, {"name": "READY", "value": "/work/ready"}],
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
        **fields,
    )


READY = {"exec": {"command": ["sh", "-c", 'test -e "$READY"']}, "periodSeconds": 1, "failureThreshold": 60}


async def _until_it_says(client: Client, namespace: str, name: str, word: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while word not in await text(client, namespace, name):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_what_ignores_sigterm_is_killed_when_its_grace_is_over(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """And with it a child that has left the session and its parent."""
    script = "trap '' TERM; setsid sleep 600 & echo ready; while :; do sleep 0.1; done"
    made = await bound(client, namespace, "p", node, shell(script))
    await running(client, namespace, "p")
    await _until_it_says(client, namespace, "p", "ready")
    await delete(client, namespace, "p", 1)
    await gone(client, namespace, "p")
    assert marked(made["metadata"]["uid"]) == []


async def test_a_child_that_was_left_behind_does_not_outlive_its_container(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """A container ends with its first process, whatever that has started."""
    made = await bound(client, namespace, "p", node, shell("setsid sleep 600 & exit 0"))
    await ended(client, namespace, "p")
    assert marked(made["metadata"]["uid"]) == []


async def test_names_in_mpis_file_of_hosts_are_replaced_too(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """An init container wrote it, the main container reads addresses."""
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    env = {"env": [{"name": "FLOWSCHED_HOSTFILE", "value": "/work/hostfile"}]}
    write = shell(f'echo "w.g.{namespace}.svc slots=2" > "$FLOWSCHED_HOSTFILE"', "stage-in", **mount, **env)
    read = shell('cat "$FLOWSCHED_HOSTFILE"', **mount, **env)
    names = {"hostname": "w", "subdomain": "g"}
    volumes = [{"name": "work", "emptyDir": {}}]
    await bound(client, namespace, "p", node, read, initContainers=[write], volumes=volumes, **names)
    found = await ended(client, namespace, "p")
    assert await text(client, namespace, "p") == f"{found['status']['podIP']} slots=2\n"


async def test_volumes_of_every_kind(client: Client, hollow: HollowNodes, node: str, namespace: str) -> None:
    """Files of a ConfigMap and a Secret; a claim is one folder for the pods of all nodes."""
    objects = {
        "configmaps": {"metadata": {"name": "c"}, "data": {"a.txt": "from map", "b.txt": "other"}},
        "secrets": {"metadata": {"name": "s"}, "stringData": {"key": "from secret"}},
    }
    for kind, document in objects.items():
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        assert (await client.call("POST", path, body=json.dumps(document).encode())).status == 201
    volumes = [
        {"name": "c", "configMap": {"name": "c", "items": [{"key": "a.txt", "path": "sub/renamed"}]}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "shared"}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/v/{one['name']}"} for one in volumes]
    env = [{"name": one["name"].upper(), "value": f"/v/{one['name']}"} for one in volumes]  # type: ignore[attr-defined]
    script = 'cat "$C/sub/renamed" "$S/key"; echo kept > "$PVC/file"'
    await bound(client, namespace, "p", node, shell(script, env=env, volumeMounts=mounts), volumes=volumes)
    assert (await ended(client, namespace, "p"))["status"]["phase"] == "Succeeded"
    assert await text(client, namespace, "p") == "from mapfrom secret\n"
    again = shell('cat "$PVC/file"', env=env[-1:], volumeMounts=mounts[-1:])
    await bound(client, namespace, "q", node[:-1] + "b", again, volumes=volumes[-1:])
    await ended(client, namespace, "q")
    assert await text(client, namespace, "q") == "kept\n"


async def test_nothing_is_left_when_the_nodes_end(
    client: Client, node: str, namespace: str, tmp_path: Path
) -> None:
    """No process, no Node; only files."""
    async with HollowNodes(client, [NodeTemplate(node)], "exec", tmp_path):
        made = await bound(client, namespace, "p", node, shell("trap '' TERM; sleep 600"))
        await running(client, namespace, "p")
    assert marked(made["metadata"]["uid"]) == []
    assert (await client.call("GET", f"/api/v1/nodes/{node}")).status == 404
    async with HollowNodes(client, [NodeTemplate(node)], "exec", tmp_path):
        found = await ended(client, namespace, "p")
    assert terminated(found)["exitCode"] == 137
    assert terminated(found)["reason"] == "ContainerStatusUnknown"


async def test_pods_live_on_while_the_api_server_is_away(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """What ended meanwhile is told when it is back; nothing is started twice."""
    async with Client(own_control_plane.connection()) as client:
        count = tmp_path / "starts"
        script = f"echo x >> {count}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        async with HollowNodes(client, [NodeTemplate("n")], "exec", tmp_path / "h"):
            await bound(client, "default", "p", "n", shell(script))
            await running(client, "default", "p")
            own_control_plane.kill()
            (tmp_path / "go").touch()
            await asyncio.sleep(0.3)
            await own_control_plane.restart_apiserver()
            assert (await ended(client, "default", "p"))["status"]["phase"] == "Succeeded"
    assert count.read_text() == "x\n"


def test_this_process_has_no_mark() -> None:
    """Or it would kill itself with a container."""
    assert MARK not in os.environ
