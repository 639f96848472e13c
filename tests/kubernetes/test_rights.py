"""Which verbs the service really uses: everything it can do, done once on a real API server, and compared with the recording.

`FLOWSCHED_RECORD=1` writes the recording anew; `tests/deploy/test_rights.py` compares it with the roles.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.cluster.kubernetes.pods.gang_objects import GangObjects
from flowsched.executor.foreign import Evict
from flowsched.values import replace
from tests.kubernetes.conftest import running as started
from tests.kubernetes.definitions import apply_crds
from tests.kubernetes.device_world import device_class, publish
from tests.kubernetes.exec_world import KubeWorld, make
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes

RECORDING = Path(__file__).parent.parent / "deploy" / "recorded-verbs.json"
GANG = {
    "name": "g",
    "stages": [
        {"name": "g", "gang": True, "roles": {"w": {"replicas": 2, "command": ["sleep", "2"]}}},
    ],
}
STAGE = {"name": "s", "command": ["true"], "resources": {"cpu": 1}}
Calls = set[tuple[str, str]]
#: Of each form, what a group of three asks for.
SPECS: dict[Form, dict[str, Any]] = {
    Form.NATIVE_ALPHA: {"schedulingPolicy": {"gang": {"minCount": 3}}},
    Form.SCHEDULER_PLUGINS: {"minMember": 3},
    Form.VOLCANO: {"minMember": 3},
}


def pod(name: str, scheduler: str, form: Form, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """A pod of the group `third`, in whatever form."""
    links: dict[Form, dict[str, Any]] = {
        Form.NATIVE_ALPHA: {},
        Form.SCHEDULER_PLUGINS: {"labels": {"scheduling.x-k8s.io/pod-group": "third"}},
        Form.VOLCANO: {"annotations": {"scheduling.k8s.io/group-name": "third"}},
    }
    native = {"schedulingGroup": {"podGroupName": "third"}} if form is Form.NATIVE_ALPHA else {}
    container = {
        "name": "main",
        "image": "x",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "metadata": {"name": name, **links[form]},
        "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [container], **native, **spec,
        },
    }  # fmt: skip


async def own_gang(running: Running, world: KubeWorld) -> None:
    """A gang of ours runs to its end; somebody makes its objects a second time; its logs are read."""
    submitted = await running.service.submit(json.dumps(GANG).encode())

    async def live() -> Any:
        pods = running.leader.dispatcher.state.work.pods if running.leader.dispatcher is not None else {}
        return [name for name in pods if running.cluster.pods.object_of(name)]

    names = await running.until(live)
    order = running.cluster.pods.order_of(names[0])
    assert order is not None
    await GangObjects(running.cluster.client, world.settings().release, running.cluster.form).ready(
        order, print
    )
    await running.cluster._api_logs(running.cluster.pods.object_of(names[0]), "stdout", 0, 10)
    await running.ended(submitted.id)


async def claimed_gpus(running: Running, world: KubeWorld) -> None:
    """A task with half a GPU runs to its end; its claim is made, looked up, and removed."""
    stage = {"name": "s", "command": ["true"], "resources": {"cpu": 1, "gpu": 0.5}}
    submitted = await running.service.submit(json.dumps({"name": "gpu", "stages": [stage]}).encode())
    await running.ended(submitted.id)
    devices = running.cluster._devices
    assert devices is not None
    await devices._read("no-such-claim", print)  # what follows a conflict
    await running.until(lambda: _counted(running, ("delete", "resourceclaims.resource.k8s.io")))


async def handed_over(world: KubeWorld, settings: ClusterSettings, folder: Path) -> Calls:
    """A pod that another scheduler is to place; there is none."""
    settings = replace(settings, release=replace(settings.release, hand_over="default-scheduler"))
    async with serving(world.connection, settings, folder) as running:
        submitted = await running.service.submit(json.dumps({"name": "h", "stages": [STAGE]}).encode())
        await running.until(lambda: _counted(running, ("patch", "pods")))
        await running.service.command(submitted.id, "cancel")
        await running.ended(submitted.id)
        return set(running.cluster.client.calls)


async def third_parties(running: Running, world: KubeWorld, form: Form) -> None:
    """A foreign gang waits, is told why, is placed; one of its pods is fenced, one is evicted."""
    client, space, name = world.client, world.namespace, world.namespace
    pods = f"/api/v1/namespaces/{space}/pods"
    await make(client, f"/apis/{form.value}/namespaces/{space}/podgroups",
               {"apiVersion": form.value, "kind": "PodGroup", "metadata": {"name": "third"}, "spec": SPECS[form]})  # fmt: skip
    for number in range(2):
        await make(client, pods, pod(f"third-{number}", name, form))

    async def told() -> Any:
        answer = await client.call("GET", f"{pods}/third-0")
        conditions = json.loads(answer.body)["status"].get("conditions", [])
        return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)

    await running.until(told)
    await running.cluster.fence(list(running.cluster._view.waiting()))
    claim = {"metadata": {"name": "late"}, "spec": {"storageClassName": f"late-{space}", "accessModes": ["ReadWriteOnce"],
             "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    await make(client, f"/api/v1/namespaces/{space}/persistentvolumeclaims", claim)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "late"}}
    await make(client, pods, pod("third-2", name, form, volumes=[volume]))

    async def placed() -> Any:
        answer = await client.call("GET", f"{pods}/third-0")
        return json.loads(answer.body)["spec"].get("nodeName")

    await running.until(placed)
    found = json.loads((await client.call("GET", f"{pods}/third-0")).body)
    await running.cluster.evict_pods([Evict(found["metadata"]["uid"], space, "third-0", "a test")])
    await running.cluster._binding._check_bound(  # what follows a lost answer
        type("Order", (), {"uid": "x", "namespace": space, "name": "third-1", "node": "n"})(),
        f"{pods}/third-1",
        None,
    )
    await running.until(lambda: _counted(running, ("create", "pods/eviction")))
    await running.until(lambda: _counted(running, ("create", "events.events.k8s.io")))


async def _counted(running: Running, call: tuple[str, str]) -> bool:
    return call in running.cluster.client.calls


async def used(plane: ControlPlane, form: Form, wish: str, namespace: str, folder: Path) -> Calls:
    """Everything that a form of PodGroups has to do with, once; with the first of them all the rest, too."""
    first = form is Form.SCHEDULER_PLUGINS
    nodes = [NodeTemplate(f"{namespace}-node-{number}", cpu="16") for number in range(2 if first else 1)]
    agents: dict[str, Any] = {} if first else {"agents": False, "agent_port": 0}
    async with KubeWorld(plane.connection(), namespace, folder, nodes, **agents) as world:
        if form is not Form.NATIVE_ALPHA:
            await apply_crds(world.client)
        storage = {
            "metadata": {"name": f"late-{namespace}"},
            "provisioner": "none",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await make(world.client, "/apis/storage.k8s.io/v1/storageclasses", storage)
        driver = f"{namespace}.gpu.test"
        await device_class(world.client, driver)
        await publish(world.client, driver, nodes[0].name, ["gpu-a"])
        release = world.settings().release
        settings = ClusterSettings(
            replace(release, scheduler_name=namespace, gpu=GpuSettings(fractions="dra", driver=driver)),
            world.settings().agent_key, wish,
        )  # fmt: skip
        async with serving(world.connection, settings, folder / "service") as running:
            await own_gang(running, world)
            if first:
                await claimed_gpus(running, world)
            await third_parties(running, world, form)
            group = f"podgroups.{form.value.split('/')[0]}" + ("" if form is Form.VOLCANO else "/status")
            await running.until(lambda: _counted(running, ("patch", group)))
            group = f"podgroups.{form.value.split('/')[0]}"
            for kind in ("services", "secrets", group):
                await running.until(lambda kind=kind: _counted(running, ("delete", kind)))
            calls = set(running.cluster.client.calls)
            calls |= set(running.cluster.leader_lease.client.calls)
        if not first:
            return calls
        handed = replace(settings, release=replace(settings.release, gpu=GpuSettings()))
        return calls | await handed_over(world, handed, folder / "handed")


async def test_the_recorded_verbs_are_those_that_are_used(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """With each form of PodGroups; what `deploy/` allows is compared with this."""
    calls = await used(control_plane, Form.SCHEDULER_PLUGINS, "scheduler-plugins", namespace, tmp_path / "a")
    native = await asyncio.to_thread(started, ControlPlane(native_podgroups=True))
    try:
        for more in await asyncio.gather(
            used(control_plane, Form.VOLCANO, "volcano", f"{namespace}-v", tmp_path / "b"),
            used(native, Form.NATIVE_ALPHA, "native", "native", tmp_path / "c"),
        ):
            calls |= more
    finally:
        native.stop()
    text = json.dumps({"calls": sorted(map(list, calls))}, indent=1) + "\n"
    if os.environ.get("FLOWSCHED_RECORD") == "1":
        RECORDING.write_text(text)
    assert RECORDING.read_text() == text
