"""Pods that really run on hollow nodes: bound on a real API server, their containers are processes, their ends are told."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import (
    PATIENCE_S,
    bound,
    container,
    create,
    delete,
    ended,
    gone,
    pod,
    python,
    running,
    shell,
    terminated,
    until,
)
from tests.kubernetes.hollow.containers import MARK
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

pytestmark = pytest.mark.kubernetes

#: Writes what is piped into it as the container's termination message.
SAY = 'cat > "$FLOWSCHED_TERMINATION_LOG"'
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


async def test_a_program_that_does_not_exist_cannot_start(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Exit code 128, StartError, and the name of the program."""
    await bound(client, namespace, "p", node, container("main", "no-such-program"))
    end = terminated(await ended(client, namespace, "p"))
    assert (end["exitCode"], end["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found' in end["message"]


async def test_a_pod_without_a_command_waits_with_a_reason(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """What an image would run is not known; deleted, the pod is gone at once."""
    await bound(client, namespace, "p", node, container("main"))
    found = await until(
        client,
        namespace,
        "p",
        lambda found: "ErrImageNeedsCommand" in json.dumps(found["status"].get("containerStatuses", [])),
    )
    assert found["status"]["phase"] == "Pending"
    await delete(client, namespace, "p")
    await gone(client, namespace, "p")


async def test_the_entry_point_of_a_known_image_is_run(
    client: Client, node: str, namespace: str, tmp_path: Path
) -> None:
    """By the longest beginning of the image's name; the pod's arguments follow it."""
    known = {"tool": ["false"], "tool:2": ["sh", "-c", 'echo "$0 $1"']}
    async with HollowNodes(client, [NodeTemplate(node)], "exec", tmp_path, entry_points=known):
        made = {"name": "main", "image": "tool:2.1", "args": ["one", "two"]}
        pod = await bound(client, namespace, "p", node, made)
        assert (await ended(client, namespace, "p"))["status"]["phase"] == "Succeeded"
        log = tmp_path / "log/pods" / f"{namespace}_p_{pod['metadata']['uid']}" / "main/0.log"
        assert log.read_text().endswith("stdout F one two\n")


async def test_init_containers_run_one_after_another(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Each sees what the one before left in a volume; the main container comes last."""
    shared = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    env = {"env": [{"name": "FILE", "value": "/work/told"}]}
    add = 'sleep 0.1; echo "$0" >> "$FILE"; cat "$FILE"'
    await bound(
        client,
        namespace,
        "p",
        node,
        container("main", "sh", "-c", add, "three", **shared, **env),
        initContainers=[
            container("first", "sh", "-c", add, "one", **shared, **env),
            container("second", "sh", "-c", add, "two", **shared, **env),
        ],
        volumes=[{"name": "work", "emptyDir": {}}],
    )
    await ended(client, namespace, "p")
    assert await text(client, namespace, "p") == "one\ntwo\nthree\n"


async def test_a_failed_init_container_ends_the_pod(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Its exit code and message are told, and what would have followed has not been started."""
    broken = shell(f'echo \'{{"reason":"InputLost"}}\' | {SAY}; exit 66', "stage-in")
    await bound(client, namespace, "p", node, shell("echo never"), initContainers=[broken])
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Failed"
    assert terminated(found, "stage-in")["exitCode"] == 66
    assert terminated(found, "stage-in")["message"] == '{"reason":"InputLost"}\n'
    main = found["status"]["containerStatuses"][0]["state"]
    assert main == {"waiting": {"reason": "PodInitializing"}}


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


async def test_a_native_sidecar_ends_after_the_main_container(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """It is told to when the main container has ended; its message is in the pod's status before the pod succeeds."""
    main = shell(
        'echo -n 42 > "$OUT"',
        env=[{"name": "OUT", "value": "/work/out"}],
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
    )
    work = [{"name": "work", "emptyDir": {}}]
    await bound(
        client, namespace, "p", node, main, initContainers=[sidecar(startupProbe=READY)], volumes=work
    )
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Succeeded"
    assert terminated(found, "stage-out")["exitCode"] == 0
    assert terminated(found, "stage-out")["message"] == "published 42"
    assert terminated(found)["finishedAt"] <= terminated(found, "stage-out")["finishedAt"]


async def test_a_sidecar_may_block_sigterm_and_wait_for_it(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Then it needs no handler: the kernel keeps a blocked signal even for the first process of a container."""
    script = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open(os.environ["READY"], "w").close()
signal.sigwait({signal.SIGTERM})
open(os.environ["FLOWSCHED_TERMINATION_LOG"], "w").write("heard")
"""
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    env = [{"name": "READY", "value": "/work/ready"}]
    waits = python(script, "waits", restartPolicy="Always", env=env, startupProbe=READY, **mount)
    volumes = [{"name": "work", "emptyDir": {}}]
    grace = {"terminationGracePeriodSeconds": 600}
    await bound(client, namespace, "p", node, shell("true"), initContainers=[waits], volumes=volumes, **grace)
    assert terminated(await ended(client, namespace, "p"), "waits")["message"] == "heard"


async def test_a_sidecar_without_a_handler_is_killed_after_its_grace(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """As the first process of a real container it does not get a SIGTERM that it does not handle; the pod succeeds nonetheless."""
    deaf = container("deaf", "sleep", "600", restartPolicy="Always")
    await bound(
        client,
        namespace,
        "p",
        node,
        shell("true"),
        initContainers=[deaf],
        terminationGracePeriodSeconds=1,
    )
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Succeeded"
    assert terminated(found, "deaf")["exitCode"] == 137


async def test_a_sidecar_that_fails_is_started_again(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """It counts its restarts, and the main container goes on."""
    flaky = shell("exit 1", "flaky", restartPolicy="Always")
    await bound(client, namespace, "p", node, shell("sleep 600"), initContainers=[flaky])
    found = await until(
        client,
        namespace,
        "p",
        lambda found: found["status"].get("initContainerStatuses", [{}])[0].get("restartCount", 0) >= 2,
    )
    assert found["status"]["initContainerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert "running" in found["status"]["containerStatuses"][0]["state"]
    await delete(client, namespace, "p", 1)
    await gone(client, namespace, "p")


async def test_a_container_restarts_until_it_succeeds(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """With restartPolicy OnFailure: its third run finds what the two before have left."""
    script = 'echo x >> "$FILE"; test "$(wc -l < "$FILE")" = 3'
    main = shell(
        script,
        env=[{"name": "FILE", "value": "/work/runs"}],
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
    )
    volumes = [{"name": "work", "emptyDir": {}}]
    await bound(client, namespace, "p", node, main, restartPolicy="OnFailure", volumes=volumes)
    found = await ended(client, namespace, "p")
    assert found["status"]["phase"] == "Succeeded"
    assert found["status"]["containerStatuses"][0]["restartCount"] == 2


async def test_a_deleted_pod_has_its_grace(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """SIGTERM reaches it, what it does then is done, and the object goes only afterwards."""
    script = """
import os, signal, sys, time
def leave(*_):
    time.sleep(0.3)
    open(os.environ["FILE"], "w").write("left in peace")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""
    mount = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    main = python(script, env=[{"name": "FILE", "value": "/host/said"}], **mount)
    volumes = [{"name": "host", "hostPath": {"path": "/data"}}]
    made = await bound(client, namespace, "p", node, main, volumes=volumes)
    await running(client, namespace, "p")
    await _until_it_says(client, namespace, "p", "ready")
    await delete(client, namespace, "p", 60)
    await gone(client, namespace, "p")
    assert (hollow.root / "host" / node / "data/said").read_text() == "left in peace"
    assert marked(made["metadata"]["uid"]) == []
    await _until_empty(hollow.root / "pods", hollow.root / "log/pods")


async def _until_empty(*folders: Path) -> None:
    """A kubelet removes a pod's volumes when it has ended, and its logs when its object is gone."""
    end = time.monotonic() + PATIENCE_S
    while any(list(folder.iterdir()) for folder in folders):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


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


async def test_a_pod_that_takes_too_long_is_failed(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """After activeDeadlineSeconds, whatever it says to SIGTERM."""
    main = shell("trap 'exit 0' TERM; while :; do sleep 0.05; done")
    await bound(client, namespace, "p", node, main, activeDeadlineSeconds=1)
    found = await ended(client, namespace, "p")
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "DeadlineExceeded")


async def test_a_pod_that_does_not_fit_is_refused(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """The node has two cores; the first pod holds one and a half. When it has gone another one may come."""
    resources = {"resources": {"requests": {"cpu": "1500m"}}}
    await bound(client, namespace, "one", node, shell("sleep 600", **resources))
    await running(client, namespace, "one")
    await bound(client, namespace, "two", node, shell("true", **resources))
    found = await ended(client, namespace, "two")
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "OutOfcpu")
    assert "requested: 1500, used: 1500, capacity: 2000" in found["status"]["message"]
    await delete(client, namespace, "one", 1)
    await gone(client, namespace, "one")
    await bound(client, namespace, "three", node, shell("true", **resources))
    assert (await ended(client, namespace, "three"))["status"]["phase"] == "Succeeded"


async def test_a_lost_node_says_nothing(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Its processes are dead and its Node is gone, but the pod still looks as if it ran. Back again, it tells the truth."""
    made = await bound(client, namespace, "p", node, shell("sleep 600"))
    await running(client, namespace, "p")
    await hollow.lose(node)
    assert marked(made["metadata"]["uid"]) == []
    assert (await client.call("GET", f"/api/v1/nodes/{node}")).status == 404
    found = await pod(client, namespace, "p")
    assert found is not None
    assert found["status"]["phase"] == "Running"
    await bound(client, namespace, "late", node, shell("true"))
    await hollow.recover(node)
    assert (await ended(client, namespace, "p"))["status"]["phase"] == "Failed"
    assert (await ended(client, namespace, "late"))["status"]["phase"] == "Succeeded"


async def test_a_node_can_become_unreachable_cordoned_and_smaller(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """The three things that happen to nodes while they exist, as the API server tells them."""
    await hollow.cordon(node)
    await hollow.shrink(node, {"cpu": "1"})
    path = f"/api/v1/nodes/{node}"
    found = await client.get(path, dict[str, Any])
    assert found is not None
    assert found["spec"]["unschedulable"] is True
    assert found["status"]["allocatable"]["cpu"] == "1"
    asks = shell("true", resources={"requests": {"cpu": "1500m"}})
    await bound(client, namespace, "p", node, asks)
    assert (await ended(client, namespace, "p"))["status"]["reason"] == "OutOfcpu"
    await hollow.lose(node, delete=False)
    found = await client.get(path, dict[str, Any])
    assert found is not None
    ready = next(one for one in found["status"]["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "Unknown"
    assert {taint["effect"] for taint in found["spec"]["taints"]} == {"NoSchedule", "NoExecute"}
    await client.call("DELETE", path)  # as it is lost, nobody else takes it away


async def test_nodes_heartbeat(client: Client, node: str, namespace: str, tmp_path: Path) -> None:
    """Each has a Lease that is renewed and goes with it."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
    async with HollowNodes(client, [NodeTemplate(node)], "exec", tmp_path, heartbeat_s=0.05):
        seen: set[str] = set()
        end = time.monotonic() + PATIENCE_S
        while len(seen) < 3:
            lease = await client.get(path, dict[str, Any])
            seen |= {lease["spec"]["renewTime"]} if lease else set()
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        assert lease is not None
        assert lease["metadata"]["ownerReferences"][0]["name"] == node


async def test_gang_members_find_each_other_before_they_have_started(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Names in the environment become addresses; the second to start listens at the address that the first was told."""
    domain = f"g.{namespace}.svc"
    env = [
        {"name": "MASTER", "value": f"m.{domain}"},
        {"name": "HOSTS", "value": f"m.{domain}.cluster.local:80,w.{domain}:81 not.a.name"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    worker = """
import os, socket, time
while True:
    try:
        with socket.create_connection((os.environ["MASTER"], 7777)) as s:
            print(s.recv(9).decode(), os.environ["HOSTS"])
            break
    except OSError:
        time.sleep(0.05)
"""
    master = """
import os, socket
s = socket.create_server((os.environ["POD_IP"], 7777))
c, _ = s.accept()
c.sendall(b"hello")
"""
    await bound(client, namespace, "worker", node, python(worker, env=env), hostname="w", subdomain="g")
    await running(client, namespace, "worker")
    other = node[:-1] + "b"
    await bound(client, namespace, "master", other, python(master, env=env), hostname="m", subdomain="g")
    worker_pod = await ended(client, namespace, "worker")
    master_pod = await ended(client, namespace, "master")
    told = await text(client, namespace, "worker")
    m, w = master_pod["status"]["podIP"], worker_pod["status"]["podIP"]
    assert told == f"hello {m}:80,{w}:81 not.a.name\n"


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


async def test_a_missing_secret_is_waited_for(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """The container says what it waits for, and starts when that is there."""
    source = {"secretKeyRef": {"name": "s", "key": "token"}}
    main = shell('echo "$TOKEN"', env=[{"name": "TOKEN", "valueFrom": source}])
    await bound(client, namespace, "p", node, main)
    found = await until(
        client,
        namespace,
        "p",
        lambda found: "secret" in json.dumps(found["status"].get("containerStatuses", [])),
    )
    waiting = found["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": 'not found: secret "s"'}
    secret = {"metadata": {"name": "s"}, "stringData": {"token": "hush"}}
    path = f"/api/v1/namespaces/{namespace}/secrets"
    assert (await client.call("POST", path, body=json.dumps(secret).encode())).status == 201
    await ended(client, namespace, "p")
    assert await text(client, namespace, "p") == "hush\n"


async def test_volumes_of_every_kind(client: Client, hollow: HollowNodes, node: str, namespace: str) -> None:
    """Files of a ConfigMap, a Secret and the pod's own fields; a claim is one folder for the pods of all nodes."""
    objects = {
        "configmaps": {"metadata": {"name": "c"}, "data": {"a.txt": "from map", "b.txt": "other"}},
        "secrets": {"metadata": {"name": "s"}, "stringData": {"key": "from secret"}},
    }
    for kind, document in objects.items():
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        assert (await client.call("POST", path, body=json.dumps(document).encode())).status == 201
    field = {"path": "deep/name", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes = [
        {"name": "c", "configMap": {"name": "c", "items": [{"key": "a.txt", "path": "sub/renamed"}]}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "d", "downwardAPI": {"items": [field]}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "c"}}]}},
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "shared"}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/v/{one['name']}"} for one in volumes]
    env = [{"name": one["name"].upper(), "value": f"/v/{one['name']}"} for one in volumes]  # type: ignore[attr-defined]
    script = 'cat "$C/sub/renamed" "$S/key" "$D/deep/name" "$P/b.txt" "$P/key"; echo kept > "$PVC/file"'
    await bound(client, namespace, "p", node, shell(script, env=env, volumeMounts=mounts), volumes=volumes)
    assert (await ended(client, namespace, "p"))["status"]["phase"] == "Succeeded"
    assert await text(client, namespace, "p") == "from mapfrom secretpotherfrom secret\n"
    again = shell('cat "$PVC/file"', env=env[-1:], volumeMounts=mounts[-1:])
    await bound(client, namespace, "q", node[:-1] + "b", again, volumes=volumes[-1:])
    await ended(client, namespace, "q")
    assert await text(client, namespace, "q") == "kept\n"


async def test_a_service_accounts_token_is_one_of_this_pod(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """The API server knows by it who asks, and for which pod."""
    account = {"metadata": {"name": "robot"}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert (await client.call("POST", path, body=json.dumps(account).encode())).status == 201
    projected = {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}
    main = shell(
        'cat "$T"',
        env=[{"name": "T", "value": "/t/token"}],
        volumeMounts=[{"name": "t", "mountPath": "/t"}],
    )
    # An administrator may say whose pod this is: admission, which is off here, would check that.
    spec = {"serviceAccountName": "robot", "volumes": [{"name": "t", "projected": projected}]}
    await bound(client, namespace, "p", node, main, **spec)
    await ended(client, namespace, "p")
    review = {"spec": {"token": (await text(client, namespace, "p")).strip()}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    answer = await client.call("POST", path, body=json.dumps(review).encode())
    user = json.loads(answer.body)["status"]["user"]
    assert user["username"] == f"system:serviceaccount:{namespace}:robot"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]


async def test_what_a_pod_used_is_noted_on_it(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """CPU time and the largest resident memory of each container, for tests of accounting."""
    burn = "import time\nx = bytearray(80_000_000)\nwhile time.process_time() < 0.3: pass"
    await bound(client, namespace, "p", node, python(burn), initContainers=[shell("true", "first")])
    found = await ended(client, namespace, "p")
    usage = json.loads(found["metadata"]["annotations"]["flowsched.io/usage"])
    assert set(usage) == {"first", "main"}
    assert 300 <= usage["main"]["cpu_ms"] < 10_000
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # what forks counts too, until the exec
    assert 80_000_000 < usage["main"]["max_rss_bytes"] < max(200_000_000, ours + 1)


async def test_the_end_of_the_log_takes_the_place_of_a_message(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """Where the pod asks for that and the container fails without a word."""
    script = "for i in $(seq 1 200); do echo line $i; done; exit 1"
    main = shell(script, terminationMessagePolicy="FallbackToLogsOnError")
    await bound(client, namespace, "p", node, main)
    message = terminated(await ended(client, namespace, "p"))["message"]
    assert message.splitlines()[0] == "line 121"
    assert message.splitlines()[-1] == "line 200"


async def test_logs_can_be_followed(client: Client, hollow: HollowNodes, node: str, namespace: str) -> None:
    """From the last line on, until the container has ended."""
    script = 'echo one; echo two; while [ ! -e "$GO" ]; do sleep 0.05; done; echo three'
    mount = {"volumeMounts": [{"name": "host", "mountPath": "/h"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/h"}}]
    main = shell(script, env=[{"name": "GO", "value": "/h/go"}], **mount)
    await bound(client, namespace, "p", node, main, volumes=volumes)
    await running(client, namespace, "p")
    await _until_it_says(client, namespace, "p", "two")
    path = f"/api/v1/namespaces/{namespace}/pods/p/log"
    followed = b""
    async for piece in client.stream(path, params={"follow": "true", "tailLines": "1"}):
        followed += piece
        (hollow.root / "host" / node / "h/go").touch()
    assert followed == b"two\nthree\n"


async def test_a_pod_of_the_host_network_has_its_nodes_address(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """So has one with a host port, as nothing forwards it: a node agent is reached at the node's address."""
    await bound(client, namespace, "p", node, shell("sleep 600"), hostNetwork=True)
    ports = [{"containerPort": 8475, "hostPort": 8475}]
    await bound(client, namespace, "q", node, shell("sleep 600", ports=ports))
    for name in ("p", "q"):
        found = await running(client, namespace, name)
        assert found["status"]["podIP"] == found["status"]["hostIP"]
    await bound(client, namespace, "r", node, shell("true", ports=ports))
    assert (await ended(client, namespace, "r"))["status"]["reason"] == "NodePorts"


async def test_a_pod_that_is_deleted_by_force_leaves_no_process(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """The object goes at once, the process as soon as the node hears of it."""
    made = await bound(client, namespace, "p", node, shell("trap '' TERM; sleep 600"))
    await running(client, namespace, "p")
    uid = made["metadata"]["uid"]
    assert marked(uid) != []
    await delete(client, namespace, "p", 0)
    await gone(client, namespace, "p")
    end = time.monotonic() + PATIENCE_S
    while marked(uid):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


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


async def test_an_unbound_pod_is_left_alone(
    client: Client, hollow: HollowNodes, node: str, namespace: str
) -> None:
    """So is one that is bound to somebody else's node."""
    await create(client, namespace, "unbound", shell("true"))
    await bound(client, namespace, "foreign", "no-such-node", shell("true"))
    await bound(client, namespace, "own", node, shell("true"))
    await ended(client, namespace, "own")
    for name in ("unbound", "foreign"):
        found = await pod(client, namespace, name)
        assert found is not None
        assert found["status"]["phase"] == "Pending"


def test_this_process_has_no_mark() -> None:
    """Or it would kill itself with a container."""
    assert MARK not in os.environ
