"""The node agent's pod on a hollow node, as the DaemonSet would make it. Pure.

A hollow node has no mount namespaces, so the agent is told the real folders; and it uses the node's own address (`hostNetwork`), at
which tasks' pods look for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

SYSTEM: Final = "flowsched-system"
_CLONE: Final = Path(__file__).parents[3]


def agent_pod(
    node: str, root: Path, home: Path, key: str, roots: Sequence[Path], more: Sequence[str] = ()
) -> dict[str, Any]:
    """The pod, bound to its node.

    Args:
        node: Its node.
        root: Of the hollow nodes.
        home: The agent's own folder: cache and state.
        key: What agents and the service share.
        roots: Below which files of this machine may be inputs.
        more: Further arguments of the agent.
    """
    command = [
        "flowsched", "agent", "--host=$(HOST_IP)", "--port=8475", f"--node={node}", f"--cache={home}/cache",
        f"--state={home}/state", f"--pods={root}/pods", f"--logs={root}/log/pods", "--log-level=warning",
        "--scheme=file", *(f"--root={each}" for each in roots), *more,
    ]  # fmt: skip
    labels = {"app.kubernetes.io/component": "node-agent", "app.kubernetes.io/part-of": "flowsched"}
    env = [
        {"name": "FLOWSCHED_AGENT_KEY", "value": key},
        {"name": "PYTHONPATH", "value": str(_CLONE)},  # of this clone, whichever is installed
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ]
    container = {"name": "agent", "image": "flowsched", "command": command, "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"agent-{node}-", "namespace": SYSTEM, "labels": labels},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }
