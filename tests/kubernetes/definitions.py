"""CustomResourceDefinitions of others, applied to an API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import yaml

from flowsched.cluster.kubernetes.api.client import Client

ROOT = Path(__file__).parent.parent.parent
FILES = (
    ROOT / "deploy" / "crds" / "podgroups.scheduling.x-k8s.io.yaml",
    ROOT / "tests" / "kubernetes" / "crds" / "podgroups.scheduling.volcano.sh.yaml",
    ROOT / "tests" / "kubernetes" / "crds" / "queues.scheduling.volcano.sh.yaml",
    ROOT / "tests" / "kubernetes" / "crds" / "noderesourcetopologies.topology.node.k8s.io.yaml",
)
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def apply_crds(client: Client) -> None:
    """Apply all, and wait until they are served."""
    for file in FILES:
        for document in yaml.safe_load_all(file.read_text()):
            if document is None:
                continue
            answer = await client.call("POST", _PATH, body=json.dumps(document).encode())
            assert answer.ok or answer.reason == "AlreadyExists", answer
            group, version = document["spec"]["group"], document["spec"]["versions"][0]["name"]
            path = f"/apis/{group}/{version}/{document['spec']['names']['plural']}"
            async with asyncio.timeout(200):
                while not (await client.call("GET", path)).ok:
                    await asyncio.sleep(0.1)
