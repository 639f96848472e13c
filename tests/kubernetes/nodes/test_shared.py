"""Engines that need one file system everywhere, on real nodes: miniwdl, and a Cromwell's config backend, each in a pod.

The shared volume is a folder of this machine, which both nodes see (`Installation.shared_folder`).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.images import FLOWSCHED, image
from tests.kubernetes.nodes.cluster import PATIENCE_S
from tests.kubernetes.nodes.installed import CLAIM, ROOT, SYSTEM, TASKS_USER, TENANT, TOKEN, Installation

WDL = ROOT / "tests/wdl/documents/samtools.wdl"
COUNT = r"samtools view -c -t <(printf 'seq1\t1575\nseq2\t1584\n')"
READS = ROOT / "workflows/data/ex1/ex1.sam.gz"


def run(installed: Installation, name: str, *command: str) -> str:
    """What a pod of our image says, with the shared volume, run as the tasks are; it ends well."""
    cluster, folder = installed.cluster, installed.shared_folder
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
            "runAsUser": TASKS_USER, "runAsGroup": TASKS_USER, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "lab", "persistentVolumeClaim": {"claimName": CLAIM}}],
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TENANT}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl(
        "-n", TENANT, "wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", f"pod/{name}",
        f"--timeout={PATIENCE_S}s",
    )  # fmt: skip
    said = cluster.kubectl("-n", TENANT, "logs", name)
    status = cluster.get("pod", name, "-n", TENANT)["status"]["containerStatuses"][0]["state"]["terminated"]
    cluster.kubectl("-n", TENANT, "delete", "pod", name, "--now")
    assert status["exitCode"] == 0, said
    return said


def owners(folder: Path) -> set[int]:
    """To whom what lies in a folder belongs."""
    return {path.lstat().st_uid for path in folder.rglob("*")}


def test_miniwdl_in_a_pod(installed: Installation) -> None:
    """Reads are sorted and counted by the samtools of an image; miniwdl reads what the tasks wrote, where they wrote it."""
    shared = installed.shared_folder
    shutil.copy(WDL, shared / "samtools.wdl")
    shutil.copy(READS, shared / "reads.sam.gz")
    options = ("sam=reads.sam.gz", f"image={image('samtools').name}", "--dir", "runs", "-o", "outputs.json")
    said = run(installed, "miniwdl", "miniwdl", "run", "samtools.wdl", *options)
    outputs = json.loads((shared / "outputs.json").read_text())["outputs"]
    assert outputs["reads.counts"] == [1501, 1806], said
    assert Path(outputs["reads.bam"]).stat().st_size > 10_000
    assert owners(shared / "runs") == {TASKS_USER}


def test_a_config_backend_in_a_pod(installed: Installation) -> None:
    """`flowsched cromwell submit` as flowsched.conf has it: the job writes rc and stdout where Cromwell looks for them."""
    shared = installed.shared_folder
    call = shared / "cromwell-executions/w/call-count"
    (call / "execution").mkdir(parents=True)
    script = call / "execution/script"
    script.write_text(
        f"#!/bin/bash\ncd {call}/execution\n{COUNT} {shared}/reads.sam.gz > stdout\necho $? > rc.tmp\nmv rc.tmp rc\n"
    )
    shutil.copy(READS, shared / "reads.sam.gz")
    for path in (shared / "cromwell-executions").rglob("*"):
        os.chown(path, TASKS_USER, TASKS_USER)
    options = (
        "--name=count", f"--cwd={call}", f"--docker-cwd={call}", f"--script={script}", f"--image={image('samtools').name}",
        "--shell=/bin/bash", f"--rc-file={call}/execution/rc", f"--stderr={call}/execution/stderr.background",
        "--cpu=1", "--memory-mb=128", "--disk-gb=1", "--gpu=0",
    )  # fmt: skip
    wait = f"flowsched cromwell submit --encoded {' '.join(options)} && until [ -e {call}/execution/rc ]; do sleep 0.2; done"
    run(installed, "cromwell", "bash", "-ec", wait)
    assert (call / "execution/rc").read_text().strip() == "0"
    assert (call / "execution/stdout").read_text().strip() == "3307"
    assert owners(call / "execution") == {TASKS_USER}


async def test_each_node_reads_a_reference_of_the_shared_volume_once(installed: Installation) -> None:
    """Six tasks as Cromwell sends them (`root` == `dockerRoot`) read 40 MB: all but the first, which may start before the second
    comes, see a copy of their node at the path of the file. After a change they see the new bytes.
    """
    shared = installed.shared_folder
    reference, size = shared / "hg38.fa", 40_000_000

    async def read(round_: str) -> set[int]:
        """Let six tasks read it. Returns the inodes of the copies that they saw."""
        reference.write_bytes(round_.encode() * size)
        async with installed.client() as client:
            runs = [await client.submit(document(f"{round_}{number}")) for number in range(6)]
            for run in runs:
                await run.wait(PATIENCE_S, check=True)
        said = [(shared / f"{round_}{number}.said").read_text().split() for number in range(6)]
        assert {(first, count) for _, first, count in said} == {(round_, str(size))}
        seen = [int(inode) for inode, _, _ in said]
        assert seen.count(reference.stat().st_ino) <= 1
        return set(seen) - {reference.stat().st_ino}

    def document(name: str) -> dict[str, Any]:
        script = f"stat -c %i {reference}; head -c 1 {reference}; echo; wc -c < {reference}"
        said = str(shared / f"{name}.said")
        return one_task(script, {"inputs": [at(str(reference))], "outputs": [at(said)]}, stdout=said)

    before, after = await read("A"), await read("C")
    assert 1 <= len(before) <= 2
    assert 1 <= len(after) <= 2


async def test_the_only_reader_of_a_delivered_file_sees_the_copy_of_its_node(installed: Installation) -> None:
    """A task writes 40 MB to a path of its container, and flowsched delivers them to the shared volume. The next task sees another
    file at that path: the one that the writer's node has kept. After a change it sees the new bytes.
    """
    bam, said, size = installed.shared_folder / "a.bam", installed.shared_folder / "seen", 40_000_000
    write = one_task(
        f"head -c {size} /dev/zero > /out/a.bam", {"outputs": [{"path": "/out/a.bam", "uri": str(bam)}]}
    )
    script = f"stat -c %i {bam}; head -c 1 {bam} | od -An -tx1; wc -c < {bam}"
    read = one_task(script, {"inputs": [at(str(bam))], "outputs": [at(str(said))]}, stdout=str(said))

    async def run(document: dict[str, Any]) -> None:
        async with installed.client() as client:
            await (await client.submit(document)).wait(PATIENCE_S, check=True)

    await run(write)
    await run(read)
    inode, first, count = said.read_text().split()
    assert (first, int(count)) == ("00", size)
    assert int(inode) != bam.stat().st_ino
    bam.write_bytes(b"C" * size)
    await run(read)
    assert said.read_text().split()[1:] == ["43", str(size)]


def at(path: str) -> dict[str, str]:
    """A file of the shared volume, at the same path for a task."""
    return {"path": path, "uri": path}


def one_task(script: str, files: dict[str, Any], **step: str) -> dict[str, Any]:
    """A document of one container task that runs a shell script."""
    steps = [{"command": ["sh", "-c", script], "image": image("debian").name, **step}]
    resources = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": "align",
        "stages": [{"name": "task", "steps": steps, "files": files, "resources": resources}],
    }
