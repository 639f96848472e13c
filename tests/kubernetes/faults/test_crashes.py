"""kill -9 of the real service around create and bind, on a real API server with nodes that really run the tasks (rows 1, 2, 39)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.crash.workloads import TASK
from tests.kubernetes.exec_world import make
from tests.kubernetes.faults.services import PATIENCE_S, Service, nursing
from tests.kubernetes.faults.witness import Witness
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.talk import Talk
from tests.soak import SOAK

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.soak]
PLUGINS = "scheduling.x-k8s.io/v1alpha1"

#: Where the service dies, and what it works on then. tests/crash kills it at all points that a local cluster has, too.
OWN = [
    "commit.after=kill@1", "launch.before=kill@1", "kube.created=kill@2", "kube.created=kill@5", "kube.bound=kill@2",
    "release.before=kill@1",
]  # fmt: skip
FOREIGN = ["bind.before=kill@1", "bind.after=kill@1", "kube.bound=kill@2"]
if SOAK:
    OWN += ["commit.before=kill@1", "commit.after=kill@2", "launch.after=kill@1", "kube.bound=kill@4"]
    FOREIGN += ["commit.before=kill@1"]


class Case:
    """One installation in a namespace of its own, that is killed once.

    Args:
        point: Where.
        talk: To the API server.
        witness: Of its namespace.
        service: Its process.
        marks: Where its tasks write down that they started.
    """

    def __init__(self, point: str, talk: Talk, witness: Witness, service: Service, marks: Path) -> None:
        self.point = point
        self.talk = talk
        self.witness = witness
        self.service = service
        self.marks = marks
        marks.mkdir(parents=True)

    def document(self) -> bytes:
        """A gang of three and a bag of two; one member fails where a release is wanted."""
        train = ["/bin/sh", str(TASK), str(self.marks), "work", "0.5"]
        roles: dict[str, Any] = {"worker": {"replicas": 3, "command": train, "resources": {"cpu": 0.1}}}
        if self.point.startswith("release."):
            fails = ["/bin/sh", str(TASK), str(self.marks), "flaky", "0.5"]
            long = ["/bin/sh", str(TASK), str(self.marks), "work", "2"]
            roles = {
                "worker": {"replicas": 2, "command": long, "resources": {"cpu": 0.1}},
                "odd": {"replicas": 1, "command": fails, "resources": {"cpu": 0.1}},
            }
        bag = {"name": "bag", "scatter": {"items": ["a", "b"]}, "command": train, "resources": {"cpu": 0.1}}
        gang = {"name": "train", "gang": True, "roles": roles, "retry": {"attempts": 3}}
        return json.dumps({"name": "killed", "stages": [gang, bag]}).encode()

    async def own(self) -> None:
        """Our own work survives the kill: all of it is done, nothing of it twice."""
        self.service.start(self.point)
        submitting = asyncio.create_task(self.service.submit(self.document(), "once"))
        await self.service.died()
        self.service.start()
        workflow = await submitting
        view = await self.service.ended(workflow)
        assert view.state == "SUCCEEDED", f"{self.point}: {view} {self.service.tail()}"
        known = Counter[str]()
        for row in [row async for row in self.service.client.tasks(workflow)]:
            task = await self.service.client.task(workflow, row.stage, row.index)
            good = [each for each in task.attempts if each.exit_code == 0 and not each.reason]
            assert good, f"{self.point}: {task}"
            assert len({each.attempt for each in task.attempts}) == len(task.attempts)
            known[row.stage] += len(task.attempts)
        await self.tidy()
        self.audit(known)

    def audit(self, known: Counter[str]) -> None:
        """No task ran beside itself, no attempt started twice, and none that nobody knows."""
        assert not list(self.marks.glob("*.DOUBLE")), self.point
        started = Counter[str]()
        for path in self.marks.glob("*.starts"):
            attempts = [line.split()[0] for line in path.read_text().splitlines()]
            assert len(set(attempts)) == len(attempts), f"{self.point}: {path.name}: {attempts}"
            started["train" if ".train." in path.name else "bag"] += len(attempts)
        assert len(list(self.marks.glob("*.starts"))) == 5, self.point
        assert started["bag"] == 2, f"{self.point}: a task that was lost before it ran, or adopted, ran twice"
        assert started["train"] <= known["train"]
        self.witness.judge()

    async def foreign(self) -> None:
        """Others' gang survives the kill: it is bound as a whole, each pod runs once."""
        space = self.talk.namespace
        group = {
            "apiVersion": PLUGINS,
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"minMember": 3},
        }
        assert (await self.talk.post(f"/apis/{PLUGINS}/namespaces/{space}/podgroups", group))[0] == 201
        for number in range(3):
            script = f"echo start >> {self.marks}/{number}.starts; sleep 0.5"
            container = {"name": "main", "image": "none", "command": ["/bin/sh", "-c", script],
                         "resources": {"requests": {"cpu": "100m"}}}  # fmt: skip
            pod = {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": f"m-{number}", "labels": {"scheduling.x-k8s.io/pod-group": "g"}},
                "spec": {"schedulerName": space, "restartPolicy": "Never", "containers": [container]},
            }  # fmt: skip
            assert (await self.talk.post(self.talk.pods, pod))[0] == 201
        self.service.start(self.point)
        await self.service.died()
        self.service.start()
        lives = self.witness.lives

        def done() -> bool:
            mine = [life for life in lives.values() if life.pod.metadata.namespace == space]
            return [life.pod.status.phase for life in mine] == ["Succeeded"] * 3

        await self.witness.until(done, PATIENCE_S)
        assert [path.read_text() for path in self.marks.glob("*.starts")] == ["start\n"] * 3, self.point
        self.witness.judge()

    async def tidy(self) -> None:
        """Wait until nothing is left of it (P5)."""
        left = ["?"]
        try:
            async with asyncio.timeout(300):
                while left:
                    await asyncio.sleep(0.3)
                    left = self.witness.here()
                    left += await self.talk.names(f"{self.talk.here}/services")
                    left += await self.talk.names(f"{self.talk.here}/secrets")
        except TimeoutError:
            raise AssertionError(
                f"{self.point}: after five minutes there are {left}: {self.service.tail()}"
            ) from None


async def test_fault_01_02_killed_around_create_and_bind(
    control_plane: ControlPlane, client: Client, crds: None, namespace: str, tmp_path: Path
) -> None:
    """Killed before and after each write to the database and to the API server: after a restart there is one pod for each
    attempt, everything ends well, nothing ran twice, gangs are whole, and nothing is left. Real processes, each killed once, on one
    real API server.
    """
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(nursing())
        nodes = [NodeTemplate(f"{namespace}-{number}", cpu="64", memory="64Gi") for number in range(2)]
        await stack.enter_async_context(
            HollowNodes(client, nodes, "exec", tmp_path / "hollow", heartbeat_s=None)
        )
        cases: list[Case] = []
        for number, point in enumerate((*OWN, *FOREIGN)):
            space = f"{namespace}-{number}"
            await make(client, "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": space}})
            service = Service(nursery, tmp_path / str(number), control_plane.kubeconfig(), space)
            stack.push_async_callback(service.close)
            witness = await stack.enter_async_context(Witness(client, space))
            cases.append(Case(point, Talk(client, space), witness, service, tmp_path / str(number) / "marks"))
        turns = asyncio.Semaphore(5)

        async def work(case: Case, own: bool) -> None:
            async with turns:
                await (case.own() if own else case.foreign())
                await case.service.close()

        async with asyncio.TaskGroup() as group:
            for number, case in enumerate(cases):
                group.create_task(work(case, number < len(OWN)))
