"""Volcano's own scheduler beside a control plane, for comparison: `tests/tools/install_kube.sh --with-volcano` builds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from tests.kubernetes.hollow.binaries import find
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.programs import NotStarted, Program, free_ports

BINARY: Final = "vc-scheduler"
_CRDS: Final = Path(__file__).resolve().parents[2] / "tests/kubernetes/crds"
_GROUP: Final = "/apis/scheduling.volcano.sh/v1beta1"
_CRD_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: It will not start without these kinds, though nobody here has any of them: (group, version, kind, plural).
_UNUSED: Final = (
    ("topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes"),
    ("nodeinfo.volcano.sh", "v1alpha1", "Numatopology", "numatopologies"),
)
#: As Volcano is installed, without what needs its other components.
CONFIGURATION: Final = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
_WAIT_S: Final = 200.0


async def volcano(
    plane: ControlPlane,
    client: Client,
    *,
    qps: int = 5000,
    period: str = "1s",
    configuration: str = CONFIGURATION,
) -> Program:
    """Install Volcano's CRDs and start its scheduler, for pods with `schedulerName: volcano`; it makes the queue `default`.

    Args:
        plane: Where it runs; it ends with that.
        client: Of its administrator.
        qps: Calls a second it allows itself; its own default is 2000.
        period: Between two cycles; 1s is its own default.
        configuration: Its actions and plugins.
    """
    binary = find(BINARY)
    if binary is None:
        raise NotStarted(f"no {BINARY}: run tests/tools/install_kube.sh --with-volcano")
    for document in (*_written(), *_bare()):
        answer = await client.call("POST", _CRD_PATH, body=json.dumps(document).encode())
        assert answer.ok or answer.reason == "AlreadyExists", answer
    for path in _served():
        await _until_served(client, path)
    # In a folder of its own: it reads this again at each change of anything beside it, such as a line of its own log.
    conf = plane.folder / "volcano" / "conf.yaml"
    conf.parent.mkdir(exist_ok=True)
    conf.write_text(configuration)
    metrics, health = free_ports(2)
    flags = (
        f"--kubeconfig={plane.kubeconfig()}",
        f"--scheduler-conf={conf}",
        f"--kube-api-qps={qps}",
        f"--kube-api-burst={qps}",
        f"--schedule-period={period}",
        f"--listen-address=127.0.0.1:{metrics}",
        f"--healthz-address=127.0.0.1:{health}",
        "--leader-elect=false",
        "--cache-dumper=false",
    )
    program = Program([str(binary), *flags], plane.folder / f"{BINARY}.log")
    plane.programs[BINARY] = program
    program.start()
    await open_queue(client, "default")
    return program


async def open_queue(client: Client, name: str) -> None:
    """Open a queue, which is otherwise done by Volcano's controller; nothing is placed from one that is not open."""
    path = f"{_GROUP}/queues/{name}"
    await _until_served(client, path)
    body = b'{"status": {"state": "Open"}}'
    answer = await client.call("PATCH", f"{path}/status", body=body, content_type=MERGE)
    assert answer.ok, answer


def _written() -> Iterable[dict[str, Any]]:
    """Volcano's own CRDs."""
    for path in sorted(_CRDS.glob("*.scheduling.volcano.sh.yaml")):
        yield yaml.safe_load(path.read_text())


def _bare() -> Iterable[dict[str, Any]]:
    """Kinds that only have to be there."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for group, version, kind, plural in _UNUSED:
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        served = {"name": version, "served": True, "storage": True, "schema": schema}
        spec = {"group": group, "scope": "Cluster", "names": names, "versions": [served]}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": spec,
        }


def _served() -> Iterable[str]:
    for kind in ("podgroups", "queues"):
        yield f"{_GROUP}/{kind}"
    for group, version, _, plural in _UNUSED:
        yield f"/apis/{group}/{version}/{plural}"


async def _until_served(client: Client, path: str) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not (await client.call("GET", path)).ok:  # noqa: ASYNC110 - nothing tells when it is served
            await asyncio.sleep(0.1)
