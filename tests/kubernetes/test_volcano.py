"""Volcano's scheduler, where it has been built, runs beside our control plane: a comparison that is not a straw man."""

from __future__ import annotations

import json

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import container, create, ended, pod
from tests.kubernetes.hollow.binaries import find
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.volcano import BINARY, volcano

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        find(BINARY) is None, reason="no vc-scheduler: tests/tools/install_kube.sh --with-volcano"
    ),
]


async def test_volcano_places_the_gang_that_fits_and_not_the_other(own_control_plane: ControlPlane) -> None:
    """Three pods of one core on a node of three; of four pods it places none."""
    async with Client(own_control_plane.connection()) as client:
        await volcano(own_control_plane, client, period="100ms")
        async with HollowNodes(client, [NodeTemplate("n", cpu="3")]):
            for name, size in (("large", 4), ("small", 3)):
                group = {
                    "apiVersion": "scheduling.volcano.sh/v1beta1",
                    "kind": "PodGroup",
                    "metadata": {"name": name},
                    "spec": {"minMember": size, "minResources": {"cpu": str(size)}, "queue": "default"},
                }
                path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
                answer = await client.call("POST", path, body=json.dumps(group).encode())
                assert answer.status == 201, answer
                said = {"scheduling.k8s.io/group-name": name, "flowsched.io/hollow-runtime": "0"}
                for number in range(size):
                    main = container("main", resources={"requests": {"cpu": "1"}})
                    await create(
                        client,
                        "default",
                        f"{name}-{number}",
                        main,
                        annotations=said,
                        schedulerName="volcano",
                    )
            for number in range(3):
                assert (await ended(client, "default", f"small-{number}"))["status"]["phase"] == "Succeeded"
            for number in range(4):
                found = await pod(client, "default", f"large-{number}")
                assert found is not None
                assert "nodeName" not in found["spec"]
