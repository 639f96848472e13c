"""The node agent's pod on a hollow node, as the DaemonSet would make it. Pure.

A hollow node has no mount namespaces, so the agent is told the real folders; and it uses the node's own address (`hostNetwork`), at
which tasks' pods look for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SYSTEM = "flowsched-system"


def agent_pod(node: str, root: Path, home: Path, key: str, roots: Sequence[Path] = ()) -> dict[str, Any]:
    """The pod, bound to its node.

    Args:
        node: Its node.
        root: Of the hollow nodes.
        home: The agent's own folder: cache and state.
        key: What agents and the service share.
        roots: Below which files of this machine may be inputs.
    """
    command = [
        "flowsched", "agent", "--host=$(HOST_IP)", "--port=8475", f"--node={node}", f"--cache={home}/cache",
        f"--state={home}/state", f"--pods={root}/pods", f"--logs={root}/log/pods", "--log-level=warning",
        *(word for each in roots for word in ("--scheme=file", f"--root={each}")),
    ]  # fmt: skip
    labels = {"app.kubernetes.io/component": "node-agent", "app.kubernetes.io/part-of": "flowsched"}
    env = [
        {"name": "FLOWSCHED_AGENT_KEY", "value": key},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ]
    container = {"name": "agent", "image": "flowsched", "command": command, "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-{node}", "namespace": SYSTEM, "labels": labels},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }
