"""flowsched on the real nodes, installed by its Helm chart as docs/kubernetes.md says, with a PostgreSQL of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from flowsched.client import Client
from tests.kubernetes.hollow.binaries import find
from tests.kubernetes.nodes.cluster import PATIENCE_S, RealCluster
from tests.object_store import Store
from tests.postgres import Server
from tests.programs import NotStarted, Program

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "deploy" / "helm" / "flowsched"
WORKFLOWS: Final = ROOT / "workflows"
#: By the samtools and bcftools of an image, as shell commands.
VARIANT_CALLING: Final = ROOT / "tests" / "workflows" / "variant-calling-containers.json"
SYSTEM: Final = "flowsched-system"
TENANT: Final = "flowsched"
TOKEN: Final = "a-token-of-these-tests-only"
AGENT_KEY: Final = "a-key-of-the-agents-of-these-tests"
CLAIM: Final = "lab"
STORE: Final = "store"
TASKS_USER: Final = 1000  # tasks.runAsUser of the chart
_ORIGIN_PORT: Final = 8480


class Installation:
    """A release of the chart, from `install` to the cluster's end.

    Args:
        cluster: Where; its images are brought there.
        database: A PostgreSQL that listens on the cluster's network.
        replicas: Of the service.
        shared: Whether tasks have a volume that all nodes see, `shared_folder`.

    Attributes:
        store: An S3 server of this machine with the bucket `lab`; agents read from it, and stage-out writes to it.
        origin: Where the nodes fetch inputs from: `data/` and `programs/` of our workflows, and what is put into
            `origin_folder`.
        shared_folder: Of this machine, and at the same path in the pods of tasks. It is their user's, as an administrator would
            give it to them; nothing else is set: no umask, no group, no mode of a file.
    """

    def __init__(
        self, cluster: RealCluster, database: Server, replicas: int = 2, *, shared: bool = False
    ) -> None:
        self.cluster = cluster
        self.database = database
        self.replicas = replicas
        self.shared_folder = cluster.folder / "shared"
        self._shared = shared
        self.store = Store(cluster.network.address)
        self.origin = f"http://{cluster.network.address}:{_ORIGIN_PORT}"
        self.origin_folder = cluster.folder / "origin"
        python = [
            sys.executable,
            "-u",
            "-m",
            "http.server",
            str(_ORIGIN_PORT),
            "--bind",
            cluster.network.address,
        ]
        self._origin = Program(
            [*python, "--directory", str(self.origin_folder)], cluster.folder / "origin.log"
        )

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()

    def install(self) -> None:
        """Install the chart; both replicas are ready, and so is an agent on each node."""
        self.origin_folder.mkdir(exist_ok=True)
        for name in ("data", "programs"):
            (self.origin_folder / name).symlink_to(WORKFLOWS / name)
        self._origin.start()
        self.store.start()
        self.cluster.load("flowsched", "samtools", "numpy")
        self.database.execute("CREATE DATABASE flowsched TEMPLATE template0")
        if self._shared:  # agents mount it
            self.shared_folder.mkdir()
            os.chown(self.shared_folder, TASKS_USER, TASKS_USER)
        self.helm("install", "flowsched", str(CHART), "--create-namespace", *self.values())
        keys = {"stringData": dict(self.store.variables), "metadata": {"name": STORE, "namespace": TENANT}}
        secret = json.dumps({"apiVersion": "v1", "kind": "Secret", **keys})
        self.cluster.kubectl("apply", "-f", "-", stdin=secret)
        if self._shared:
            self._share()
        self.ready()

    def _share(self) -> None:
        size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
        volume = {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLAIM},
            "spec": {"capacity": size, "accessModes": modes, "hostPath": {"path": str(self.shared_folder)}, "storageClassName": "",
                     "persistentVolumeReclaimPolicy": "Retain"},
        }  # fmt: skip
        claim = {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, "namespace": TENANT},
            "spec": {"accessModes": modes, "resources": {"requests": size}, "volumeName": CLAIM, "storageClassName": ""},
        }  # fmt: skip
        for each in (volume, claim):
            self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))

    def uninstall(self) -> None:
        """Take the release away, and its namespaces."""
        self.helm("uninstall", "flowsched")
        self._origin.kill()
        self.store.stop()
        self.cluster.kubectl("delete", "namespace", SYSTEM, TENANT, "--ignore-not-found")
        self.database.execute("DROP DATABASE flowsched WITH (FORCE)")

    def values(self, **more: str) -> list[str]:
        """The options with which this release is installed and upgraded."""
        address = self.cluster.network.address
        values = {
            "database.url": f"postgresql://flowsched@{address}:5432/flowsched",
            "token.value": TOKEN,
            "agentKey.value": AGENT_KEY,
            "replicas": str(self.replicas),
            "resources.requests.cpu": "100m",
            "agent.cache.size": "1Gi",
            "agent.networks[0]": f"{address}/32",
            "tasks.stepsSecret": STORE,
            **{
                f"agent.extraEnv[{number}].{field}": text
                for number, variable in enumerate(self.store.variables.items())
                for field, text in zip(("name", "value"), variable, strict=True)
            },
            **(
                {
                    "tasks.shared[0].claim": CLAIM,
                    "tasks.shared[0].path": str(self.shared_folder),
                    "agent.shared[0].path": str(self.shared_folder),
                    "agent.shared[0].volume.hostPath.path": str(self.shared_folder),
                }
                if self._shared
                else {}
            ),
            **more,
        }
        return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def helm(self, *arguments: str) -> str:
        """Run helm in the release's namespace.

        Raises:
            NotStarted: It failed; the message has its words.
        """
        done = subprocess.run(
            [str(find("helm")), *arguments, "--namespace", SYSTEM],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=self.cluster.environment,
        )  # fmt: skip
        if done.returncode:
            raise NotStarted(f"helm {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def ready(self) -> None:
        """Wait until the service and the agents are rolled out, and none of the replicas before them leads any more."""
        for what in ("deployment/flowsched", "daemonset/flowsched-agent"):
            self.cluster.kubectl("-n", SYSTEM, "rollout", "status", what, f"--timeout={PATIENCE_S}s")
        end = time.monotonic() + PATIENCE_S
        while any("deletionTimestamp" in pod["metadata"] for pod in self.pods("service")):
            if time.monotonic() > end:
                raise NotStarted("a replica of before is still there")
            time.sleep(0.5)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The release's own pods: of the `service`, or of the `node-agent`."""
        label = f"app.kubernetes.io/component={component}"
        found: list[dict[str, Any]] = self.cluster.get("pods", "-n", SYSTEM, "-l", label)["items"]
        return found

    def url(self) -> str:
        """Where a ready replica answers, one of the last node where there is one: its pod's address, which this machine reaches.

        Raises:
            NotStarted: None gets ready.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for pod in sorted(
                self.pods("service"), key=lambda pod: pod["spec"].get("nodeName", ""), reverse=True
            ):
                conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
                if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                    return f"http://{pod['status']['podIP']}:8470"
            time.sleep(0.5)
        raise NotStarted(
            f"no replica is ready: {self.cluster.kubectl('-n', SYSTEM, 'describe', 'pods')[-3000:]}"
        )

    def requests(self) -> list[str]:
        """The paths that were asked of the origin, in order: also how tasks tell this machine where they are."""
        log = (self.cluster.folder / "origin.log").read_text(encoding="utf-8")
        return re.findall(r'"GET (\S+) HTTP', log)

    def client(self) -> Client:
        """The SDK against one of the replicas."""
        return Client(self.url(), TOKEN)

    def document(self, path: Path, image: str | None = None) -> Mapping[str, Any]:
        """A workflow's document with its inputs where the nodes find them, at an HTTP origin of this machine.

        Its tasks may take long: Kubernetes counts from a pod's arrival on its node, and on a busy machine the init containers
        wait for minutes.

        Args:
            path: The document; its inputs lie in `workflows/`.
            image: What every stage runs in, where the document names none. It asks for a tenth of a core a task then.
        """
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for stage in document["stages"]:
            stage["timeout"] = f"{PATIENCE_S}s"
            if image is not None:
                stage["container"] = {"image": image}
                for role in stage.get("roles", {"": stage}).values():
                    role["resources"] = {"cpu": "100m", "memory": "128Mi"}
            for each in stage.get("inputs", ()):
                if "uri" in each:
                    each["uri"] = f"{self.origin}/{each['uri']}"
        return document
