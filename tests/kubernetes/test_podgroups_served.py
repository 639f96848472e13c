"""PodGroups of every form on a real API server: it takes ours and what operators make, and keeps the status we write."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.foreign.groups import link_of, read_group
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import Form, Life, Observed, group_path, status_patch
from flowsched.cluster.kubernetes.pods.gang_objects import group_manifest
from tests.kubernetes import operators
from tests.kubernetes import written as w
from tests.kubernetes.conftest import require
from tests.kubernetes.hollow.controlplane import ControlPlane

pytestmark = pytest.mark.kubernetes
HERE = Path(__file__).parent
CRDS = (
    HERE / "crds" / "podgroups.scheduling.volcano.sh.yaml",
    HERE.parent.parent / "deploy" / "crds" / "podgroups.scheduling.x-k8s.io.yaml",
)
FORMS = (Form.NATIVE_ALPHA, Form.SCHEDULER_PLUGINS, Form.VOLCANO)
STRICT = {"fieldValidation": "Strict"}


async def created(client: Client, path: str, body: bytes, **params: str) -> dict[str, Any]:
    answer = await client.call("POST", path, body=body, params=params)
    assert answer.status == 201, (answer.message, body)
    return json.loads(answer.body)


async def install(client: Client) -> None:
    """The definitions of the forms that Kubernetes does not define itself; returns when they are served."""
    for path in CRDS:
        definition = yaml.safe_load(path.read_text())
        body = msgspec.json.encode(definition)
        await created(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    for form in (Form.SCHEDULER_PLUGINS, Form.VOLCANO):
        async with asyncio.timeout(200):
            while (await client.call("GET", group_path(form, "default"))).status != 200:
                await asyncio.sleep(0.1)


async def test_every_form_on_a_real_api_server() -> None:
    """Ours and the operators' are taken with strict field validation and read as meant; each stage of life is written."""
    require()
    async with ControlPlane(native_podgroups=True) as plane, Client(plane.connection()) as client:
        await install(client)
        namespace = b'{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}'
        await created(client, "/api/v1/namespaces", namespace)
        for form in FORMS:
            await _ours(client, form)
        for name in operators.NAMES:
            await _theirs(client, name)


async def _ours(client: Client, form: Form) -> None:
    name = f"ours-{form.name.lower().replace('_', '-')}"
    pod = w.task(gang=w.seat(), queue="team")
    body = group_manifest(form, name, pod, w.SETTINGS)
    made = await created(client, group_path(form, "lab"), body, **STRICT)
    rule = read_group(msgspec.convert(made, operators.KINDS[form]), "k")
    assert (rule.minimum, rule.gang, rule.problem) == (3, True, "")
    for life in Life:
        patch = status_patch(form, Observed(life, "2026-11-21T12:00:00Z", message="why", running=1))
        if patch is None:
            continue
        path = group_path(form, "lab", name) + patch.suffix
        answer = await client.call("PATCH", path, body=patch.body, content_type=patch.content_type)
        assert answer.status == 200, (life, answer.message)
        written, stored = json.loads(patch.body)["status"], json.loads(answer.body)["status"]
        assert stored.get("phase") == written.get("phase")
        for condition in written.get("conditions", []):
            assert (
                condition.items()
                <= next(c for c in stored["conditions"] if c["type"] == condition["type"]).items()
            )


async def _theirs(client: Client, name: str) -> None:
    for raw in operators.load(name):
        kind = raw["kind"]
        path = (
            group_path(Form(raw["apiVersion"]), "lab")
            if kind == "PodGroup"
            else "/api/v1/namespaces/lab/pods"
        )
        made = await created(client, path, msgspec.json.encode(raw), **STRICT)
        if kind == "Pod":
            (expected,) = {link_of(pod) for pod in operators.pods(name)}
            assert link_of(msgspec.convert(made, Pod)) == expected
