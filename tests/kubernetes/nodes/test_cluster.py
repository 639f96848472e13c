"""The real nodes themselves: what the other tests of this folder rely on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.images import image
from tests.kubernetes.nodes.cluster import NODES, PATIENCE_S, RealCluster
from tests.kubernetes.nodes.machine import KUBELET, hierarchies

ASK = """
getent hosts kubernetes.default.svc.cluster.local
exec 3<>/dev/tcp/kubernetes.default/443
samtools --version | head -1
"""
PROGRAM = """
import os, signal
from tests.kubernetes.nodes.cluster import RealCluster
cluster = RealCluster()
print(cluster.network.bridge, flush=True)
cluster.start()
signal.pause()
"""


def pod(name: str, node: str, *command: str) -> str:
    """A manifest of one pod with samtools."""
    container = {"name": "main", "image": image("samtools").name, "command": list(command)}
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def test_pods_of_two_nodes_reach_each_other_by_name(cluster: RealCluster) -> None:
    """Images, pod network, kube-proxy and CoreDNS: a pod of node-1 asks the API server's Service by its name."""
    cluster.load("samtools")
    for number in range(NODES):
        cluster.kubectl("apply", "-f", "-", stdin=pod(f"asks-{number}", f"node-{number}", "bash", "-ec", ASK))
    for number in range(NODES):
        cluster.kubectl(
            "wait",
            "--for=jsonpath={.status.phase}=Succeeded",
            f"pod/asks-{number}",
            f"--timeout={PATIENCE_S}s",
        )
        said = cluster.kubectl("logs", f"asks-{number}")
        assert "10.96.0.1" in said
        assert "samtools 1." in said
    cluster.kubectl("delete", "pod", "asks-0", "asks-1", "--wait=true")


def test_a_power_cut_ends_a_nodes_pods_and_it_comes_back(cluster: RealCluster) -> None:
    """What containerd says of them then is what `outcomes` knows as a lost node (KUBE.md)."""
    cluster.load("samtools")
    cluster.kubectl("apply", "-f", "-", stdin=pod("sleeps", "node-0", "sleep", "1000"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeps", f"--timeout={PATIENCE_S}s")
    node = cluster.machines[0]
    node.power_cut()
    node.boot()
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/sleeps", f"--timeout={PATIENCE_S}s")
    (status,) = cluster.get("pod", "sleeps")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 255
    cluster.kubectl("delete", "pod", "sleeps")


def test_a_cluster_that_is_killed_leaves_no_process_and_the_next_one_removes_the_rest() -> None:
    """SIGKILL of the program that started it, once the last of its nodes has a kubelet."""
    began = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert began.stdout is not None
    bridge = began.stdout.readline().strip()
    assert bridge.startswith("fsk")
    deadline = time.monotonic() + PATIENCE_S
    while not any(KUBELET in line and f"/node-{NODES - 1}/" in line for line in _processes(bridge)):
        assert time.monotonic() < deadline, _processes(bridge)
        time.sleep(0.1)
    began.kill()
    began.wait()
    deadline = time.monotonic() + PATIENCE_S
    while _processes(bridge):
        assert time.monotonic() < deadline, _processes(bridge)
        time.sleep(0.1)
    again = RealCluster()  # takes the number that is free again
    assert again.network.bridge == bridge
    again.stop()
    assert not Path("/sys/class/net", bridge).exists()
    assert not again.folder.exists()
    assert not [group for each in hierarchies("cgroup", "cgroup2") for group in each.glob(f"{bridge}-*")]


def _processes(bridge: str) -> list[str]:
    """The command lines that name files of the cluster with this bridge."""
    folder = f"flowsched-nodes-{bridge.removeprefix('fsk')}/"
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in line:
            found.append(line)
    return found
