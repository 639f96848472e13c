"""A validating admission webhook on loopback: the one way to make a real API server refuse, delay or fail one kind of request."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.hollow.controlplane import ControlPlane

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "check.example.com"
#: What the API server waits for a webhook, at least.
TIMEOUT_S = 1


@dataclass(slots=True)
class Webhook:
    """What it decides, and what it was asked.

    Attributes:
        decide: The object asked about -> why not ("" = let it pass).
        slow: Whether it answers too late.
        slow_once: The end of a name about which it answers too late, the first time.
        asked: Names of the objects it was asked about.
    """

    decide: Callable[[dict[str, Any]], str] = lambda request: ""
    slow: bool = False
    slow_once: str = "-"
    asked: list[str] = field(default_factory=list)

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        """One AdmissionReview."""
        review = json.loads(await http.read())
        request = review["request"]
        self.asked.append(request["name"])
        if self.slow or request["name"].endswith(self.slow_once):
            self.slow_once = "-"
            await asyncio.sleep(TIMEOUT_S + 1)
        why = self.decide(request)
        told = {"uid": request["uid"], "allowed": not why, "status": {"code": 403, "message": why}}
        return web.json_response(
            {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": told}
        )


@asynccontextmanager
async def webhook(
    plane: ControlPlane, client: Client, namespace: str, *resources: str
) -> AsyncIterator[Webhook]:
    """A webhook that is asked about every creation of such resources ("pods", "pods/binding") in a namespace.

    The API server's own certificate is good for its address, so it serves the webhook, too.
    """
    hook = Webhook()
    certificate, key = plane.certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    runner = web.ServerRunner(web.Server(hook.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    document = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"faults-{namespace}"},
        "webhooks": [
            {
                "name": NAME,
                "clientConfig": {
                    "url": f"https://127.0.0.1:{runner.addresses[0][1]}/",
                    "caBundle": base64.b64encode(certificate.read_bytes()).decode(),
                },
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": list(resources),
                    }
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": TIMEOUT_S,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    answer = await client.call("POST", CONFIGURATIONS, body=json.dumps(document).encode())
    assert answer.status == 201, answer
    try:
        await _takes_effect(client, namespace, hook, resources)
        yield hook
    finally:
        await client.call("DELETE", f"{CONFIGURATIONS}/faults-{namespace}")
        await runner.cleanup()


async def _takes_effect(client: Client, namespace: str, hook: Webhook, resources: tuple[str, ...]) -> None:
    """Wait until the server asks it, which begins a moment after it was told to."""
    name = "probe"
    probe = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
    }  # fmt: skip
    path, body = f"/api/v1/namespaces/{namespace}/pods", probe
    if "pods" not in resources:
        assert (await client.call("POST", path, body=json.dumps(probe).encode())).ok
        path = f"{path}/{name}/binding"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"name": "nowhere"},
        }
    async with asyncio.timeout(200):
        while name not in hook.asked:
            await client.call("POST", path, body=json.dumps(body).encode(), params={"dryRun": "All"})
            await asyncio.sleep(0.1)
    await client.call(
        "DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", params={"gracePeriodSeconds": "0"}
    )
    hook.asked.clear()
