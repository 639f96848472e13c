"""`make demo-kubernetes`: flowsched installed by its chart on two real nodes of this machine, with real samtools and a gang.

    python -m tests.kubernetes.nodes.demo

Where this machine can have no real nodes the hollow ones show the same (`tests.kubernetes.hollow.demo`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from rich.console import Console
from rich.text import Text

from flowsched.client import Client, Run
from tests.images import image
from tests.kubernetes.hollow import demo as hollow
from tests.kubernetes.hollow.binaries import missing as hollow_missing
from tests.kubernetes.nodes.cluster import PATIENCE_S, RealCluster, missing
from tests.kubernetes.nodes.installed import VARIANT_CALLING, WORKFLOWS, Installation
from tests.postgres import NoPostgres, Server
from tests.programs import NotStarted

ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")


def main() -> int:
    """Exit code 0 when everything ended as it should."""
    console = Console(soft_wrap=True)
    if (why := missing()) is not None:
        if (also := hollow_missing()) is not None:
            console.print(f"error: no cluster for the demonstration. Real nodes: {why}. Hollow nodes: {also}")
            return 2
        console.print(
            f"No real nodes: {why}\nInstead, nodes that run pods' commands as processes of this machine:\n"
        )
        return asyncio.run(hollow.demonstrate(0, hollow.DEMO_S))
    begun = time.monotonic()
    database = None
    try:
        with RealCluster() as cluster:
            console.print(
                f"{time.monotonic() - begun:.0f} s: two nodes are Ready\n{cluster.kubectl('get', 'nodes', '-o', 'wide')}"
            )
            database = Server(address=cluster.network.address)
            database.start()
            installed = Installation(cluster, database)
            installed.install()
            console.print(f"{time.monotonic() - begun:.0f} s: helm install, and all is rolled out")
            good = asyncio.run(demonstrate(installed, console))
    except (NotStarted, NoPostgres) as error:
        console.print(f"The demo stops: {error}")
        return 1
    finally:
        if database is not None:
            database.remove()
    console.print(f"All in {time.monotonic() - begun:.0f} s.")
    return 0 if good else 1


async def demonstrate(installed: Installation, console: Console) -> bool:
    """Call variants with samtools images and train a gang, and show it; whether both succeed."""
    documents = (
        installed.document(VARIANT_CALLING),
        installed.document(WORKFLOWS / "parameter-server.json", image("numpy").name),
    )
    async with installed.client() as client:
        runs = [await client.submit(document) for document in documents]
        shown = told = ""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            views = [await run.view() for run in runs]
            line = "  ".join(
                f"{view.name}: {view.counts.get('SUCCEEDED', 0)}/{view.tasks} {view.state}" for view in views
            )
            if line != told:
                console.print(line)
                told = line
            if not shown and any(view.counts.get("RUNNING", 0) for view in views):
                shown = await asyncio.to_thread(_picture, installed)
                console.print(Text(shown))
            if all(view.state in ENDED for view in views):
                break
            await asyncio.sleep(0.5)
        good = all(view.state == "SUCCEEDED" for view in views)
        for run, stage, index, name in ((runs[0], "stats", 0, "summary"), (runs[1], "train", 2, "accuracy")):
            console.print(
                f"{name}: {(await _value(client, run, stage, index, name) or '').strip()}"
                if good
                else str(await run.explain())
            )
        return good


def _picture(installed: Installation) -> str:
    kubectl = installed.cluster.kubectl
    pods = kubectl("get", "pods", "--all-namespaces", "-o", "wide")
    groups = kubectl("get", "podgroups", "--all-namespaces")
    return f"\n$ kubectl get pods --all-namespaces -o wide\n{pods}\n$ kubectl get podgroups --all-namespaces\n{groups}"


async def _value(client: Client, run: Run, stage: str, index: int, name: str) -> str | None:
    task = await client.task(run.id, stage, index)
    return next(output.value for output in task.outputs if output.name == name)


if __name__ == "__main__":
    sys.exit(main())
