"""Real Spark on a real API server: applications handed in by `spark-submit` in cluster mode, with Spark's own Volcano step.

pyspark is 450 MB, so it is no dependency of the tests: FLOWSCHED_SPARK_PYTHON names an interpreter that has it
(`python -m venv v && v/bin/pip install pyspark==4.3.0`; Java 17 or newer on PATH). CI does not have it and skips.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Reflector
from flowsched.cluster.kubernetes.objects.pod import Pod
from tests.kubernetes.hollow.controlplane import ControlPlane

VARIABLE: Final = "FLOWSCHED_SPARK_PYTHON"
IMAGE: Final = "spark-of-the-test"
GROUPS: Final = "/apis/scheduling.volcano.sh/v1beta1"
ENTRY_POINT: Final = Path(__file__).parent / "entrypoint.py"
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
_STEP: Final = "org.apache.spark.deploy.k8s.features.VolcanoFeatureStep"
_ACCOUNT: Final = "spark"
_SUBMIT_S: Final = 180.0
_FIND: Final = "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)"


@dataclass(frozen=True, slots=True)
class Spark:
    """An installation of Spark.

    Args:
        home: SPARK_HOME: the folder of the package pyspark.
        python: The interpreter that has it.
    """

    home: Path
    python: str

    @property
    def entry_point(self) -> list[str]:
        """What an image of it would run."""
        return [sys.executable, str(ENTRY_POINT), str(self.home), self.python]

    @property
    def pi(self) -> str:
        """Spark's own example in Python."""
        return f"local://{self.home}/examples/src/main/python/pi.py"


def find_spark() -> Spark | str:
    """The installation; or why there is none."""
    python = os.environ.get(VARIABLE)
    if not python:
        return f"{VARIABLE} does not name an interpreter that has pyspark (450 MB, so it is no dependency)"
    if shutil.which("java") is None:
        return "Spark needs java on PATH"
    try:
        found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"{VARIABLE}={python}: {error}"
    if found.returncode:
        return f"{VARIABLE}={python} cannot import pyspark"
    home = Path(found.stdout.strip())
    if not list(home.glob("jars/spark-kubernetes_*.jar")) or not list(home.glob("jars/volcano-client-*.jar")):
        return f"{home}/jars lacks Spark's Kubernetes client or Volcano's"
    return Spark(home, python)


@dataclass(frozen=True, slots=True)
class Moment:
    """The pods of all applications after one change.

    Attributes:
        up: (application, role) -> names of pods that have a node and have not ended.
        done: (application, role) -> names of pods that ended or were deleted.
    """

    up: dict[tuple[str, str], frozenset[str]]
    done: dict[tuple[str, str], frozenset[str]]

    def count(self, application: str) -> int:
        """How many pods of it are up."""
        return sum(len(names) for (one, _), names in self.up.items() if one == application)


@dataclass(slots=True)
class History:
    """What the API server told of a namespace's pods, change by change, in its own order."""

    moments: list[Moment] = field(default_factory=list)
    pods: dict[str, Pod] = field(default_factory=dict)
    gone: dict[str, Pod] = field(default_factory=dict)

    def take(self, change: str, pod: Pod) -> None:
        """One change."""
        if change == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
            self.gone[pod.metadata.uid] = pod
        else:
            self.pods[pod.metadata.uid] = pod
        up: dict[tuple[str, str], set[str]] = {}
        done: dict[tuple[str, str], set[str]] = {}
        for each in self.pods.values():
            if each.spec.node_name:
                ended = each.status.phase in ("Succeeded", "Failed")
                (done if ended else up).setdefault(_who(each), set()).add(each.metadata.name)
        for each in self.gone.values():
            done.setdefault(_who(each), set()).add(each.metadata.name)
        self.moments.append(
            Moment(*({key: frozenset(of) for key, of in part.items()} for part in (up, done)))
        )

    def drivers(self) -> dict[str, Pod]:
        """Application -> its driver's pod as it is now."""
        return {_who(pod)[0]: pod for pod in self.pods.values() if _who(pod)[1] == "driver"}

    def told(self) -> str:
        """What was up, moment by moment."""
        lines: list[str] = []
        for moment in self.moments:
            up = sorted(f"{one} {role} x{len(names)}".strip() for (one, role), names in moment.up.items())
            line = ", ".join(up) or "nothing"
            if not lines or lines[-1] != line:
                lines.append(line)
        return "\n".join(lines)

    def first(self, application: str, role: str) -> int:
        """At which moment a pod of this role was up first."""
        return next(at for at, moment in enumerate(self.moments) if moment.up.get((application, role)))


def _who(pod: Pod) -> tuple[str, str]:
    """(application, role); of a pod that is not Spark's its name."""
    labels = pod.metadata.labels
    return labels.get("test-app", pod.metadata.name), labels.get("spark-role", "")


@asynccontextmanager
async def followed(client: Client, namespace: str) -> AsyncIterator[History]:
    """The history of a namespace's pods from now on."""
    history = History()

    async def follow() -> None:
        reflector = Reflector(client, f"/api/v1/namespaces/{namespace}/pods", Pod)
        async with aclosing(reflector.changes()) as batches:
            async for batch in batches:
                for pod in batch.replaced or ():
                    history.take("ADDED", pod)
                for change, pod in batch.changed:
                    history.take(change, pod)

    following = asyncio.create_task(follow())
    try:
        yield history
    finally:
        following.cancel()
        await asyncio.wait({following})
    if not following.cancelled():
        following.result()


async def account(client: Client, namespace: str, folder: Path) -> Path:
    """Make the service account of drivers, with the rights Spark's documentation asks for; a file with its token."""
    rules = [
        {
            "apiGroups": [""],
            "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
        }
    ]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": namespace}
    named = {"metadata": {"name": _ACCOUNT}}
    await _post(client, accounts, named)
    await _post(client, f"{rbac}/roles", {**named, "rules": rules})
    await _post(client, f"{rbac}/rolebindings", {**named, "roleRef": reference, "subjects": [subject]})
    asked = {"spec": {"expirationSeconds": 7200}}
    made = await _post(client, f"{accounts}/{_ACCOUNT}/token", asked)
    token = folder / "driver-token"
    token.touch(mode=0o600)
    token.write_text(made["status"]["token"])
    return token


async def _post(client: Client, path: str, document: dict[str, Any]) -> dict[str, Any]:
    answer = await client.call("POST", path, body=json.dumps(document).encode())
    assert answer.ok, answer
    made: dict[str, Any] = json.loads(answer.body)
    return made


@dataclass(frozen=True, slots=True)
class Submitter:
    """Hands in applications.

    Args:
        spark: What with.
        plane: Where to.
        namespace: Where its pods go.
        scheduler: Their `schedulerName`.
        token: Of the drivers' service account.
        folder: For the template of the PodGroup.
        executors: Of each application.
    """

    spark: Spark
    plane: ControlPlane
    namespace: str
    scheduler: str
    token: Path
    folder: Path
    executors: int = 2

    async def submit(self, name: str, partitions: int = 4) -> None:
        """Hand in Spark's example Pi; returns once its driver's pod has been made."""
        command = [
            str(self.spark.home / "bin" / "spark-submit"),
            *("--master", f"k8s://{self.plane.url}", "--deploy-mode", "cluster", "--name", name),
            *(part for key, value in self._conf(name).items() for part in ("--conf", f"{key}={value}")),
            self.spark.pi,
            str(partitions),
        ]
        env = {
            **os.environ,
            "SPARK_HOME": str(self.spark.home),
            "PYSPARK_PYTHON": self.spark.python,
            "KUBECONFIG": str(self.plane.kubeconfig()),
        }
        log = self.folder / f"submit-{name}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(*command, env=env, stdout=out, stderr=out)
        try:
            async with asyncio.timeout(_SUBMIT_S):
                code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert code == 0, log.read_text()[-4000:]

    def _conf(self, name: str) -> dict[str, str]:
        kube = "spark.kubernetes"
        mounted = f"{kube}.authenticate.driver.mounted"
        return {
            f"{kube}.namespace": self.namespace,
            f"{kube}.container.image": f"{IMAGE}:4.3.0",
            f"{kube}.scheduler.name": self.scheduler,
            f"{kube}.driver.pod.featureSteps": _STEP,
            f"{kube}.executor.pod.featureSteps": _STEP,
            f"{kube}.scheduler.volcano.podGroupTemplateFile": str(self._template()),
            f"{kube}.driver.label.test-app": name,
            f"{kube}.executor.label.test-app": name,
            f"{kube}.driver.master": self.plane.url,
            f"{kube}.authenticate.driver.serviceAccountName": _ACCOUNT,
            f"{mounted}.oauthTokenFile": str(self.token),
            f"{mounted}.caCertFile": str(self.plane.certificate[0]),
            f"{kube}.submission.waitAppCompletion": "false",
            "spark.executor.instances": str(self.executors),
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no work before all executors are there
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
            "spark.ui.enabled": "false",
        }

    def _template(self) -> Path:
        """The PodGroup as users of Volcano write it: one pod is enough to start, on room for all."""
        pods = 1 + self.executors
        # Spark asks 1 cpu and 896 MiB for each: 512 and 384 of overhead.
        room = {"cpu": str(pods), "memory": f"{896 * pods}Mi"}
        document = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "spec": {"minMember": 1, "minResources": room},
        }
        path = self.folder / "podgroup.yaml"
        path.write_text(json.dumps(document))  # JSON is YAML
        return path
