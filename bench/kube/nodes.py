"""What flowsched adds to pods on real nodes: from submission to the start of one task, and pods/s of many tasks.

    python bench/kube/nodes.py [--rounds 9] [--tasks 200] [--times 2] [--init none|true|python] [--files] [--keep] [--unconfined]

Two real nodes on this machine (`make kube-node`; Linux, root), flowsched as its chart installs it. The baseline are pods made by
kubectl's means: `nodeName` set, an init container and an empty volume that it shares with the task (what an init container is
for), the same image, command and requests, half of them on each node. The init container runs `true` of the task's image, or
starts Python in flowsched's image, as whatever fetches a pod's inputs has to; with `--init none` there is none.

A task without files has no stage-in container, so that it does less than a raw pod with an init container; `--init none` is its
equal. With `--files` each task also writes an output of one byte, and has stage-in: `--init python` is its equal.

Both sides clean up: a raw pod is deleted 2 s after its start, as the collectors of Argo, of Jobs with a TTL, and of flowsched do;
`--keep` leaves the raw ones until the turn has ended. Both have the security context of the level `restricted`, which the chart's
namespace of tasks enforces; `--unconfined` lets the raw ones do without.

A task says that it runs by a connection to this program, so no clock but this one's counts. One task: seconds from the request to
the connection, in turns, medians. Many: tasks/s from the first request to the last connection, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from flowsched.client import Client as Flowsched  # noqa: E402
from flowsched.cluster.kubernetes.api.client import Client  # noqa: E402
from flowsched.cluster.kubernetes.pods.manifest import CONFINED  # noqa: E402
from tests.images import FLOWSCHED, image  # noqa: E402
from tests.kubernetes.nodes.cluster import RealCluster  # noqa: E402
from tests.kubernetes.nodes.installed import Installation  # noqa: E402
from tests.postgres import Server  # noqa: E402

NAMESPACE: Final = "default"
_SAY: Final = "exec 3<>/dev/tcp/$HOST/$PORT; echo $0 >&3"
_NAMES: Final = itertools.count()


class Ear:
    """Where tasks say that they run.

    Attributes:
        heard: When each did, by what it said.
    """

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.changed = asyncio.Condition()
        self.port = 0

    async def listen(self, address: str) -> None:
        """Listen for ever."""
        server = await asyncio.start_server(self._said, address, 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]

    async def _said(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = time.perf_counter()
        name = (await reader.readline()).decode().strip()
        self.heard.setdefault(name, at)
        writer.close()
        async with self.changed:
            self.changed.notify_all()

    async def all_of(self, names: list[str]) -> float:
        """When the last of them said so."""
        async with asyncio.timeout(900), self.changed:
            await self.changed.wait_for(lambda: all(name in self.heard for name in names))
        return max(self.heard[name] for name in names)


class Contest:
    """Both sides, on one cluster."""

    def __init__(
        self,
        installed: Installation,
        ear: Ear,
        client: Client,
        flowsched: Flowsched,
        given: argparse.Namespace,
    ) -> None:
        self.installed, self.ear, self.client, self.flowsched = installed, ear, client, flowsched
        self.given = given
        self.image = image("debian").name
        self.variables = {"HOST": installed.cluster.network.address, "PORT": str(ear.port)}

    async def raw(self, tasks: int) -> float:
        """Seconds until so many pods have said that they run."""
        names = [f"raw-{next(_NAMES)}" for _ in range(tasks)]
        begun = time.perf_counter()
        gate = asyncio.Semaphore(32)

        async def create(number: int) -> None:
            async with gate:
                body = json.dumps(self._manifest(names[number], f"node-{number % 2}")).encode()
                answer = await self.client.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body=body)
                if answer.status != 201:
                    raise SystemExit(f"the API server refused a pod: {answer}")

        await asyncio.gather(*map(create, range(tasks)))
        cleaner = asyncio.create_task(self._clean_up(names))
        taken = await self.ear.all_of(names) - begun
        cleaner.cancel()
        await asyncio.to_thread(
            self.installed.cluster.kubectl, "-n", NAMESPACE, "delete", "pods", "--all", "--now", timeout_s=600
        )
        return taken

    async def _clean_up(self, names: list[str]) -> None:
        """Delete each pod 2 s after its start: it has ended then."""
        left = set() if self.given.keep else set(names)
        while left:
            await asyncio.sleep(0.5)
            for name in [
                name for name in left if self.ear.heard.get(name, math.inf) < time.perf_counter() - 2
            ]:
                await self.client.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
                left.remove(name)

    async def ours(self, tasks: int) -> float:
        """Seconds until so many tasks of a workflow have said that they run."""
        names = [f"ours-{next(_NAMES)}" for _ in range(tasks)]
        stage = {
            "name": "say",
            "container": {"image": self.image},
            "scatter": {"items": names},
            "command": ["bash", "-c", _SAY.replace("$0", "$FLOWSCHED_ITEM")],
            "env": self.variables,
            "resources": {"cpu": "5m", "memory": "8Mi"},
        }
        if self.given.files:
            stage |= {
                "command": ["bash", "-c", _SAY.replace("$0", "$FLOWSCHED_ITEM") + "; echo > said"],
                "outputs": [{"name": "said", "path": "said"}],
            }
        begun = time.perf_counter()
        run = await self.flowsched.submit({"name": "bench", "stages": [stage]})
        taken = await self.ear.all_of(names) - begun
        view = await run.wait(300)
        if view.state != "SUCCEEDED":
            raise SystemExit(f"the workflow ended {view.state}")
        return taken

    def _manifest(self, name: str, node: str) -> dict[str, Any]:
        mounts = [{"name": "work", "mountPath": "/work"}]
        resources = {"requests": {"cpu": "5m", "memory": "8Mi"}}
        main = {
            "name": "task", "image": self.image, "command": ["bash", "-c", _SAY, name], "volumeMounts": mounts,
            "resources": resources,
            "env": [{"name": key, "value": value} for key, value in self.variables.items()],
        }  # fmt: skip
        first = {
            "volumeMounts": mounts,
            "name": "first",
            "image": self.image,
            "command": ["true"],
            "resources": resources,
        }
        if self.given.init == "python":
            first |= {"image": FLOWSCHED, "command": ["python", "-c", "pass"]}
        spec = {
            "volumes": [{"name": "work", "emptyDir": {}}],
            "nodeName": node, "restartPolicy": "Never", "containers": [main],
            "automountServiceAccountToken": False, "enableServiceLinks": False,
        }  # fmt: skip
        if not self.given.unconfined:
            ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)
            spec["securityContext"] = ids | {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            first["securityContext"] = main["securityContext"] = CONFINED
        if self.given.init != "none":
            spec["initContainers"] = [first]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def quiet(installed: Installation) -> None:
    """Wait until no pod of the last turn is left on the nodes, and a moment more, which differs: kubelets look once a second."""
    while True:
        pods = await asyncio.to_thread(installed.cluster.get, "pods", "--all-namespaces")
        if all(pod["metadata"]["namespace"] not in (NAMESPACE, "flowsched") for pod in pods["items"]):
            break
        await asyncio.sleep(1)
    await asyncio.sleep(3 + random.random())


async def measure(installed: Installation, given: argparse.Namespace) -> None:
    """Print each turn and the medians."""
    ear = Ear()
    await ear.listen(installed.cluster.network.address)
    async with Client(installed.cluster.connection) as client, installed.client() as flowsched:
        contest = Contest(installed, ear, client, flowsched, given)
        for side in (contest.raw, contest.ours):  # to warm up
            await side(2)
        one: dict[str, list[float]] = {"raw": [], "ours": []}
        many: dict[str, list[float]] = {"raw": [], "ours": []}
        for found, count, turns in ((one, 1, given.rounds), (many, given.tasks, given.times)):
            for turn in range(turns if count else 0):
                for name in ("raw", "ours") if turn % 2 else ("ours", "raw"):
                    await quiet(installed)
                    found[name].append(await getattr(contest, name)(count))
                print(f"{count}: ours {found['ours'][-1]:.2f} s, raw {found['raw'][-1]:.2f} s", flush=True)
    if one["ours"]:
        ours, raw = statistics.median(one["ours"]), statistics.median(one["raw"])
        print(f"one task: {ours:.2f} s from submission to start, raw pod {raw:.2f} s, ratio {ours / raw:.2f}")
    if many["ours"]:
        ours, raw = (given.tasks / statistics.median(many[name]) for name in ("ours", "raw"))
        print(f"{given.tasks} tasks: {ours:.2f} a second, raw pods {raw:.2f}, ratio {ours / raw:.2f}")


def main() -> None:
    """Read the options, build the cluster, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--init", choices=("none", "true", "python"), default="true")
    parser.add_argument("--files", action="store_true", help="tasks write an output")
    parser.add_argument("--keep", action="store_true", help="delete raw pods at the end of their turn")
    parser.add_argument("--unconfined", action="store_true", help="raw pods without a security context")
    given = parser.parse_args()
    with RealCluster() as cluster:
        database = Server(address=cluster.network.address)
        try:
            database.start()
            installed = Installation(cluster, database)
            installed.install()
            cluster.load("debian")
            asyncio.run(measure(installed, given))
        finally:
            database.remove()


if __name__ == "__main__":
    main()
