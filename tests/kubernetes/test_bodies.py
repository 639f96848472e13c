"""Bodies of the calls about our own pods, in literals; and all that we write as a real API server takes it."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import msgspec
import pytest
from msgspec import structs

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.labels import ours
from flowsched.cluster.kubernetes.objects.request_bodies import binding, deletion
from flowsched.cluster.kubernetes.pods.gang_objects import gang_secret, gang_service
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.executor.protocol import InputFile, OutputFile
from flowsched.values import replace
from flowsched.workflow.spec import Container, Delivered, Placed, Resources, Step
from tests.kubernetes import written as w
from tests.kubernetes.hostile import PLACES, TEXTS

served = pytest.mark.kubernetes


def test_a_binding_names_the_pod_by_its_identity() -> None:
    """And by the version that was looked at, where there is one."""
    assert json.loads(binding("p", "lab", "u-1", "n1")) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "lab", "uid": "u-1"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    metadata = json.loads(binding("p", "lab", "u-1", "n1", "77"))["metadata"]
    assert metadata["resourceVersion"] == "77"


def test_a_deletion_names_the_object_by_its_identity() -> None:
    """A later pod of the same name is left alone."""
    assert json.loads(deletion("u-1", 30)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u-1"},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 30,
    }
    assert json.loads(deletion("u-1", 0, "9"))["preconditions"] == {"uid": "u-1", "resourceVersion": "9"}
    assert json.loads(deletion("u-1", 0))["gracePeriodSeconds"] == 0
    assert "gracePeriodSeconds" not in json.loads(deletion("u-1"))


def test_a_gang_has_a_service_and_a_secret() -> None:
    """Both go with its PodGroup; the Service finds members also before they are ready."""
    service = json.loads(gang_service("fs-w1-train-0-g1", w.SETTINGS, w.GANG.owner))
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"flowsched.io/group": "fs-w1-train-0-g1"},
    }
    secret = json.loads(gang_secret("fs-w1-train-0-g1", "t0ken", w.SETTINGS, w.GANG.owner))
    assert base64.b64decode(secret["data"]["token"]) == b"t0ken"
    for made in (service, secret):
        assert made["metadata"]["name"] == "fs-w1-train-0-g1"
        assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert "ownerReferences" not in json.loads(gang_secret("g", "t", w.SETTINGS))["metadata"]


def test_all_that_an_installation_makes_is_found_by_one_selector() -> None:
    """Two installations in one namespace do not see each other's."""
    settings = replace(w.SETTINGS, instance="lab east")
    wanted = dict(pair.split("=") for pair in ours(settings).split(","))
    assert wanted["app.kubernetes.io/managed-by"] == "flowsched"
    for body in (
        pod_manifest(w.task(), settings),
        gang_service("g", settings),
        gang_secret("g", "t", settings),
    ):
        assert isinstance(body, bytes)
        assert wanted.items() <= json.loads(body)["metadata"]["labels"].items()


# --- on a real API server ------------------------------------------------------------------------------------


@pytest.fixture
async def strict(client: Client, namespace: str) -> str:
    """A namespace that admits `restricted` pods only."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    answer = await client.call(
        "PATCH",
        f"/api/v1/namespaces/{namespace}",
        body=msgspec.json.encode(label),
        content_type="application/merge-patch+json",
    )
    assert answer.status == 200, answer
    return namespace


async def create(client: Client, namespace: str, kind: str, body: bytes) -> Any:
    """Let the server check everything (unknown fields too) and keep nothing."""
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    return await client.call("POST", f"/api/v1/namespaces/{namespace}/{kind}", body=body, params=params)


@served
async def test_fault_46a_a_real_api_server_takes_random_tasks(client: Client, strict: str) -> None:
    """With strict field validation, in a namespace that enforces `restricted`; none gets a service account's token."""
    rng = random.Random(4)
    some = [w.random_task(rng) for _ in range(150)]
    steps = tuple(
        Step(("true",), stdout="/out/said", ignore_error=ignored, image="a") for ignored in (False, True)
    )
    container = Container(steps, (Placed("/in/x", content="x"),), (Delivered("/out/x", "s3://lab/x"),))
    for pod, settings, group in (*some, (w.task(container=container), w.SETTINGS, None)):
        settings = replace(settings, namespace=strict, service_account="")
        body = pod_manifest(pod, settings, group)
        assert isinstance(body, bytes)
        assert json.loads(body)["spec"]["automountServiceAccountToken"] is False
        answer = await create(client, strict, "pods", body)
        assert answer.status == 201, (answer.message, body)


@served
async def test_a_real_api_server_takes_hostile_texts(client: Client, strict: str) -> None:
    """Whatever the text, the pod is created, or we have refused it before; nothing is left to be found out there."""
    settings = replace(w.SETTINGS, namespace=strict)
    for place, put in PLACES.items():
        for text in TEXTS[:: 1 if place in ("env name", "stage", "image", "secret's key") else 7]:
            body = pod_manifest(put(w.task(), text), settings, w.GANG)
            if isinstance(body, bytes):
                answer = await create(client, strict, "pods", body)
                assert answer.status == 201, (place, text, answer.message)


@served
async def test_a_real_api_server_takes_the_other_bodies(client: Client, strict: str) -> None:
    """Service and Secret; a bind and a deletion whose identity is wrong change nothing."""
    settings = replace(w.SETTINGS, namespace=strict)
    made = {
        "services": gang_service("fs-w1-train-0-g1", settings, w.GANG.owner),
        "secrets": gang_secret("fs-w1-train-0-g1", "t0ken", settings, w.GANG.owner),
    }
    for kind, body in made.items():
        answer = await create(client, strict, kind, body)
        assert answer.status == 201, answer.message
    pod = pod_manifest(w.task(), settings)
    assert isinstance(pod, bytes)
    where = f"/api/v1/namespaces/{strict}/pods"
    metadata = json.loads((await client.call("POST", where, body=pod)).body)["metadata"]
    name = metadata["name"]
    wrong = await client.call("POST", f"{where}/{name}/binding", body=binding(name, strict, "u-9", "n1"))
    assert (wrong.status, wrong.reason) == (409, "Conflict")
    stale = binding(name, strict, metadata["uid"], "n1", "1")
    assert (await client.call("POST", f"{where}/{name}/binding", body=stale)).status == 409
    right = binding(name, strict, metadata["uid"], "n1", metadata["resourceVersion"])
    assert (await client.call("POST", f"{where}/{name}/binding", body=right)).status == 201
    bound = json.loads((await client.call("GET", f"{where}/{name}")).body)
    assert bound["spec"]["nodeName"] == "n1"
    assert (await client.call("DELETE", f"{where}/{name}", body=deletion("u-9", 0))).status == 409
    assert (await client.call("DELETE", f"{where}/{name}", body=deletion(metadata["uid"], 0))).status == 200
    assert (await client.call("GET", f"{where}/{name}")).status == 404


@served
async def test_the_qos_class_is_what_limits_promise(client: Client, strict: str) -> None:
    """As the API server computes it."""
    settings = replace(w.SETTINGS, namespace=strict)
    limited = w.task(
        cpu_millicores=2000, limits=Resources(cpu_millicores=2000), inputs=(InputFile("x", ("s3://x",)),)
    )
    outputs = (OutputFile("bam", "a.bam", "flowsched:x"),)
    for pod, qos in (
        (structs.replace(limited, limits=None), "Burstable"),
        (limited, "Guaranteed"),
        (structs.replace(limited, outputs=outputs), "Burstable"),
    ):
        body = pod_manifest(pod, settings)
        assert isinstance(body, bytes)
        answer = await create(client, strict, "pods", body)
        assert json.loads(answer.body)["status"]["qosClass"] == qos
