"""Engines that need one file system everywhere, on real nodes: miniwdl, and a Cromwell's config backend, each in a pod.

The shared volume is a folder of this machine, which both nodes see. It belongs to the user whom the tasks run as, as an
administrator would give it to them; nothing else is set: no umask, no group, no mode of a file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images import FLOWSCHED, image
from tests.kubernetes.nodes.installed import ROOT, SYSTEM, TENANT, TOKEN, Installation

USER = 1000  # tasks.runAsUser of the chart
CLAIM = "lab"
WDL = ROOT / "tests/wdl/documents/samtools.wdl"
COUNT = r"samtools view -c -t <(printf 'seq1\t1575\nseq2\t1584\n')"
READS = ROOT / "workflows/data/ex1/ex1.sam.gz"


@pytest.fixture(scope="module")
def shared(installed: Installation) -> Iterator[Path]:
    """The folder, which pods of tasks and of this test see at the same path."""
    cluster = installed.cluster
    folder = cluster.folder / "shared"
    folder.mkdir()
    os.chown(folder, USER, USER)
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLAIM},
        "spec": {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}, "storageClassName": "",
                 "persistentVolumeReclaimPolicy": "Retain"},
    }  # fmt: skip
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, "namespace": TENANT},
        "spec": {"accessModes": modes, "resources": {"requests": size}, "volumeName": CLAIM, "storageClassName": ""},
    }  # fmt: skip
    for each in (volume, claim):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    named = installed.values(**{"tasks.shared[0].claim": CLAIM, "tasks.shared[0].path": str(folder)})
    installed.helm("upgrade", "flowsched", str(ROOT / "deploy/helm/flowsched"), *named)
    installed.ready()
    yield folder
    installed.helm("upgrade", "flowsched", str(ROOT / "deploy/helm/flowsched"), *installed.values())
    installed.ready()
    cluster.kubectl("-n", TENANT, "delete", "pvc", CLAIM, "--wait=false")
    cluster.kubectl("delete", "pv", CLAIM, "--wait=false")


def run(installed: Installation, folder: Path, name: str, *command: str) -> str:
    """What a pod of our image says, with the shared volume, run as the tasks are; it ends well."""
    cluster = installed.cluster
    variables = {
        "FLOWSCHED_SERVER": f"http://flowsched.{SYSTEM}:8470", "FLOWSCHED_TOKEN": TOKEN, "HOME": str(folder),
        "MINIWDL__SCHEDULER__CONTAINER_BACKEND": "flowsched",
    }  # fmt: skip
    container = {
        "name": "main", "image": FLOWSCHED, "command": list(command), "workingDir": str(folder),
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "volumeMounts": [{"name": "lab", "mountPath": str(folder)}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    spec: dict[str, Any] = {
        "restartPolicy": "Never", "containers": [container], "securityContext": {
            "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "lab", "persistentVolumeClaim": {"claimName": CLAIM}}],
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TENANT}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl(
        "-n", TENANT, "wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", f"pod/{name}",
        "--timeout=180s", timeout_s=200,
    )  # fmt: skip
    said = cluster.kubectl("-n", TENANT, "logs", name)
    status = cluster.get("pod", name, "-n", TENANT)["status"]["containerStatuses"][0]["state"]["terminated"]
    cluster.kubectl("-n", TENANT, "delete", "pod", name, "--now")
    assert status["exitCode"] == 0, said
    return said


def owners(folder: Path) -> set[int]:
    """To whom what lies in a folder belongs."""
    return {path.lstat().st_uid for path in folder.rglob("*")}


def test_miniwdl_in_a_pod(installed: Installation, shared: Path) -> None:
    """Reads are sorted and counted by the samtools of an image; miniwdl reads what the tasks wrote, where they wrote it."""
    shutil.copy(WDL, shared / "samtools.wdl")
    shutil.copy(READS, shared / "reads.sam.gz")
    options = ("sam=reads.sam.gz", f"image={image('samtools').name}", "--dir", "runs", "-o", "outputs.json")
    said = run(installed, shared, "miniwdl", "miniwdl", "run", "samtools.wdl", *options)
    outputs = json.loads((shared / "outputs.json").read_text())["outputs"]
    assert outputs["reads.counts"] == [1501, 1806], said
    assert Path(outputs["reads.bam"]).stat().st_size > 10_000
    assert owners(shared / "runs") == {USER}


def test_a_config_backend_in_a_pod(installed: Installation, shared: Path) -> None:
    """`flowsched cromwell submit` as flowsched.conf has it: the job writes rc and stdout where Cromwell looks for them."""
    call = shared / "cromwell-executions/w/call-count"
    (call / "execution").mkdir(parents=True)
    script = call / "execution/script"
    script.write_text(
        f"#!/bin/bash\ncd {call}/execution\n{COUNT} {shared}/reads.sam.gz > stdout\necho $? > rc.tmp\nmv rc.tmp rc\n"
    )
    shutil.copy(READS, shared / "reads.sam.gz")
    for path in (shared / "cromwell-executions").rglob("*"):
        os.chown(path, USER, USER)
    options = (
        "--name=count", f"--cwd={call}", f"--docker-cwd={call}", f"--script={script}", f"--image={image('samtools').name}",
        "--shell=/bin/bash", f"--rc-file={call}/execution/rc", f"--stderr={call}/execution/stderr.background",
        "--cpu=1", "--memory-mb=128", "--disk-gb=1", "--gpu=0",
    )  # fmt: skip
    wait = f"flowsched cromwell submit --encoded {' '.join(options)} && until [ -e {call}/execution/rc ]; do sleep 0.2; done"
    run(installed, shared, "cromwell", "bash", "-ec", wait)
    assert (call / "execution/rc").read_text().strip() == "0"
    assert (call / "execution/stdout").read_text().strip() == "3307"
    assert owners(call / "execution") == {USER}
