"""What the tutorials tell people to type on Kubernetes, typed on the cluster of these tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Reader
from tests.images import image
from tests.kubernetes.hollow.binaries import find
from tests.kubernetes.nodes.cluster import KUBECTL, PATIENCE_S, RealCluster
from tests.kubernetes.nodes.installed import TOKEN, Installation
from tests.postgres import Server, binaries, start_or_skip

TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.fixture
def database(cluster: RealCluster) -> Iterator[Server]:
    """A PostgreSQL that pods reach."""
    server = start_or_skip(address=cluster.network.address)
    yield server
    server.remove()


def hello(folder: Path) -> Path:
    """workflows/hello-image.json with an image that the nodes have."""
    document = json.loads((ROOT / "workflows" / "hello-image.json").read_text())
    for stage in document["stages"]:
        stage["container"]["image"] = image("samtools").name
    path = folder / "hello-image.json"
    path.write_text(json.dumps(document))
    return path


def test_a_gang_from_python(installed: Installation, tmp_path: Path) -> None:
    """The last step of docs/tutorials/ml-engineer.md: the gang of one machine, in four pods."""
    kubectl = find(KUBECTL)
    assert kubectl is not None
    reader = Reader(
        tmp_path,
        environment={
            "KUBECONFIG": str(installed.cluster.plane.kubeconfig()),
            "FLOWSCHED_SERVER": installed.url(),
            "FLOWSCHED_TOKEN": TOKEN,
        },
        replaced={"docker.io/library/python:3.11-slim": image("numpy").name},
        programs=[kubectl.parent],
    )
    files = ("train.py", "submit_kubernetes.py")
    reader.follow(
        TUTORIALS / "ml-engineer.md",
        chosen=lambda block: block.title in files or "python submit_kubernetes.py" in block.text,
    )


@pytest.mark.slow
def test_an_operator_installs_backs_up_upgrades_restores_and_removes(
    cluster: RealCluster, our_image: None, database: Server, tmp_path: Path
) -> None:
    """docs/tutorials/operator.md, on nodes that have the images that a registry would have, and no release yet."""
    kubectl, helm = find(KUBECTL), find("helm")
    assert kubectl is not None
    assert helm is not None
    server = f"{cluster.network.address}:5432"
    reader = Reader(
        tmp_path,
        links=["deploy"],
        environment={"KUBECONFIG": str(cluster.plane.kubeconfig())},
        programs=[kubectl.parent, helm.parent, binaries()],
        replaced={
            "--host db.example.com --username postgres": f"--host {cluster.network.address} --username flowsched",
            "CREATE ROLE flowsched LOGIN PASSWORD '$password'": "SELECT 1",  # this server has the role
            "flowsched:$password@db.example.com:5432": f"flowsched@{server}",
            # Small nodes: 2 cores of this machine, shared with other tests.
            "helm install flowsched deploy/helm/flowsched": "helm install flowsched deploy/helm/flowsched"
            " --set resources.requests.cpu=100m --set agent.cache.size=1Gi",
            "registry.example.com/flowsched": "ghcr.io/flowsched/flowsched",
            "image.tag=0.2.0": "image.tag=0.1.0 --set logLevel=debug",
            "workflows/hello-image.json": str(hello(tmp_path)),
        },
    )
    try:
        reader.follow(TUTORIALS / "operator.md", timeout_s=PATIENCE_S)
    except BaseException:  # the tests after it install the release
        subprocess.run(
            [helm, "uninstall", "flowsched", "--ignore-not-found"],
            env=reader.environment,
            check=False,
            timeout=120,
        )
        raise
