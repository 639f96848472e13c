"""Container tasks on Kubernetes: a real API server, node agents, and hollow nodes that give containers their mounts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.node.container_paths import SharedVolume
from flowsched.executor.datasets import uri_of, versioned
from flowsched.executor.protocol import (
    DeliveredFile,
    Fingerprint,
    InputFile,
    Pod,
    PodEnded,
    ReplicaSeen,
    Transfer,
)
from flowsched.workflow.spec import Container, Delivered, Left, Mount, Placed, Step
from tests.executors.executor_contract import pod
from tests.kubernetes.exec_world import KubeWorld, make
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving
from tests.object_store import object_store

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0,
        reason="hollow nodes make mounts as root only, and container tasks need theirs",
    ),
]

#: A path that no machine has: tasks see it by mounts alone.
LAB = "/flowsched-lab"


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    shared = (SharedVolume("lab", LAB),)
    nodes = [NodeTemplate("node-0", cpu="16")]
    async with KubeWorld(api, namespace, tmp_path, nodes, shared=shared) as world:
        lab(world).mkdir(parents=True)
        yield world


def lab(world: KubeWorld) -> Path:
    """The folder that stands for the shared volume."""
    return world.hollow.root / "claims" / world.namespace / "lab"


def step(script: str, *arguments: str, **fields: Any) -> Step:
    """A step that runs a shell script."""
    return Step(("/bin/sh", "-c", script, "-", *arguments), **fields)


def task(*steps: Step, name: str = "a", **fields: Any) -> Pod:
    """A pod of a container task on node-0."""
    timeout_ms = fields.pop("timeout_ms", None)
    inputs = fields.pop("stage_inputs", ())
    container = Container(steps, **fields)
    return pod(name, *steps[-1].command, container=container, timeout_ms=timeout_ms, inputs=inputs)


async def outcome(world: KubeWorld, what: Pod) -> PodEnded:
    """Run it to its end."""
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    return await ear.ended(what.name)


async def test_a_step_reads_what_the_document_holds_and_its_output_is_delivered(world: KubeWorld) -> None:
    """The input is at its path, what the step prints in its stdout file, and a copy of that in the shared folder."""
    end = await outcome(
        world,
        task(
            step('wc -c < /in/text.txt; echo "$GREETING"', env={"GREETING": "hello"}, stdout="/out/said.txt"),
            inputs=(Placed("/in/text.txt", content="twelve bytes"),),
            outputs=(Delivered("/out/said.txt", f"{LAB}/results/said.txt"),),
        ),
    )
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert (lab(world) / "results/said.txt").read_text() == "12\nhello\n"
    assert end.container is not None
    assert end.container.outputs == (DeliveredFile("/out/said.txt", f"{LAB}/results/said.txt", 9),)
    assert [(each.exit_code, each.stdout) for each in end.container.steps] == [(0, "12\nhello\n")]


async def test_three_steps_of_which_one_fails_and_is_ignored(world: KubeWorld) -> None:
    """They run in order on the same files, each with its own environment; the real exit codes are told."""
    end = await outcome(
        world,
        task(
            step("echo one >> /work/log", workdir="/work"),
            step("echo two >> log; exit 3", workdir="/work", ignore_error=True),
            step("echo three >> log; cat log > /out/all; pwd", workdir="/work", stdout="/out/where"),
            outputs=(Delivered("/out/all", f"{LAB}/all"), Delivered("/out/where", f"{LAB}/where")),
        ),
    )
    assert (end.exit_code, end.reason) == (0, "")
    assert (lab(world) / "all").read_text() == "one\ntwo\nthree\n"
    assert (lab(world) / "where").read_text() == "/work\n"
    assert end.container is not None
    assert [each.exit_code for each in end.container.steps] == [0, 3, 0]
    assert all(each.started_ms <= each.ended_ms for each in end.container.steps)


async def test_a_failed_step_ends_the_attempt(world: KubeWorld) -> None:
    """Its exit code is the attempt's, the next step never runs, and what is there is taken out."""
    end = await outcome(
        world,
        task(
            step("echo made > /out/made; echo why >&2; exit 7", stderr="/out/why"),
            step("touch /out/second"),
            outputs=(Delivered("/out/made", f"{LAB}/made"), Delivered("/out/why", f"{LAB}/why")),
            leave=(Left(f"{LAB}/rc", "79\n"),),
        ),
    )
    assert (end.exit_code, end.reason, end.message) == (7, "", "step 1 of 2 ended with exit code 7")
    assert end.container is not None
    assert [each.exit_code for each in end.container.steps] == [7]
    assert end.container.outputs == (
        DeliveredFile("/out/made", f"{LAB}/made", 5),
        DeliveredFile("/out/why", f"{LAB}/why", 4),
    )
    assert sorted(path.name for path in lab(world).iterdir()) == ["made", "rc", "why"]
    assert (lab(world) / "rc").read_text() == "79\n"


async def test_cromwells_paths_are_the_same_inside_and_outside(world: KubeWorld) -> None:
    """With root == dockerRoot on a shared volume nothing is staged: the script runs where it is, its files are only reported."""
    call = f"{LAB}/run/call-a"
    (lab(world) / "run/call-a/execution").mkdir(parents=True)
    (lab(world) / "run/call-a/inputs").mkdir()
    (lab(world) / "run/call-a/inputs/reads.txt").write_text("reads")
    script = 'cd "$(dirname "$0")"; wc -c < ../inputs/reads.txt | tee stdout; echo 0 > rc.tmp; mv rc.tmp rc'
    (lab(world) / "run/call-a/execution/script").write_text(script)
    files = [f"{call}/execution/{name}" for name in ("rc", "stdout", "missing")]
    end = await outcome(
        world,
        task(
            Step(("/bin/sh", f"{call}/execution/script"), stdout=f"{call}/execution/stdout"),
            inputs=(Placed(f"{call}/inputs/reads.txt", source=f"{call}/inputs/reads.txt"),),
            outputs=tuple(Delivered(path, path) for path in files),
        ),
    )
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert end.container is not None
    assert [(each.uri, each.size_bytes) for each in end.container.outputs] == [(files[0], 2), (files[1], 2)]
    assert [each.stdout for each in end.container.steps] == ["5\n"]
    assert world.cluster is not None
    assert (await world.cluster.logs("a", "stdout", 0, 100))[0] == b"5\n"
    assert not Path(LAB).exists()
    assert (lab(world) / "run/call-a/execution/stdout").read_text() == "5\n"


async def test_inputs_from_shared_folders_caches_and_mounts(world: KubeWorld) -> None:
    """A file of a shared volume, a folder of one, a dataset of the node's cache, a mounted folder: each at the path asked for."""
    (lab(world) / "ref/deep").mkdir(parents=True)
    (lab(world) / "ref/hg38.fa").write_text("ACGT")
    (lab(world) / "ref/deep/x").write_text("x")
    (lab(world) / "case").mkdir()
    script = """
    cat /in/genome.fa /etc/one.conf /refs/deep/x /in/outside.txt; echo
    stat -c %s /in/genome.fa; (: > /in/genome.fa) 2>/dev/null && echo writable
    echo mounted > /case/made; echo new > /in/new
    """
    end = await outcome(
        world,
        task(
            step(script, stdout="/case/said"),
            inputs=(
                Placed("/in/genome.fa", source=f"{LAB}/ref/hg38.fa"),
                Placed("/refs", source=f"{LAB}/ref", directory=True),
                Placed("/etc/one.conf", content="1"),
                Placed("/in/outside.txt", input="file-3"),
            ),
            stage_inputs=(InputFile("file-3", (world.outside,)),),
            mounts=(Mount(f"{LAB}/case", "/case"),),
        ),
    )
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert (lab(world) / "case/said").read_text() == "ACGT1xoutside\n4\n"
    assert (lab(world) / "case/made").read_text() == "mounted\n"
    assert (lab(world) / "ref/hg38.fa").read_text() == "ACGT"


async def test_three_hundred_inputs(world: KubeWorld) -> None:
    """Each at its path: most by a mount, the rest by a link."""
    for number in range(300):
        (lab(world) / f"{number}.txt").write_text(f"{number}\n")
    inputs = tuple(Placed(f"/in/n{n}", source=f"{LAB}/{n}.txt") for n in range(300))
    outputs = (Delivered("/out/sum", f"{LAB}/sum"), Delivered("/in/n299", f"{LAB}/copy"))
    script = "cat /in/n* | awk '{ n += $1 } END { print n }' > /out/sum"
    end = await outcome(world, task(step(script), inputs=inputs, outputs=outputs))
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert (lab(world) / "sum").read_text() == "44850\n"
    assert (lab(world) / "copy").read_text() == "299\n"


async def test_an_input_that_is_not_there(world: KubeWorld) -> None:
    """The attempt fails before its first step, and says which path it was; what shall be left is left."""
    what = task(
        step("true"), inputs=(Placed("/in/a", source=f"{LAB}/nowhere"),), leave=(Left(f"{LAB}/rc", "79"),)
    )
    end = await outcome(world, what)
    assert (end.exit_code, end.reason) == (126, "InputMissing")
    assert f"/in/a (from {LAB}/nowhere)" in end.message
    assert (lab(world) / "rc").read_text() == "79"


async def test_a_timeout_leaves_the_file_and_a_release_does_not(world: KubeWorld) -> None:
    """The attempt that ran too long has ended; the one that was taken away has no end of its own."""
    cluster, ear, _ = await world.open()
    for name, timeout_ms in (("slow", 8000), ("taken", None)):
        left = (Left(f"{LAB}/{name}.rc", "79"),)
        await cluster.launch([task(step("sleep 600"), name=name, leave=left, timeout_ms=timeout_ms)])
    await ear.started("taken")
    end = await ear.ended("slow")
    assert (end.exit_code, end.reason) == (143, "Timeout")
    await cluster.release(["taken"], 5000)
    end = await ear.ended("taken")
    assert end.reason == "Released"
    assert sorted(path.name for path in lab(world).iterdir()) == ["slow.rc"]


async def test_arguments_arrive_as_they_were_written(world: KubeWorld) -> None:
    """No shell reads them, no kubelet expands them, whether the step has files or not."""
    words = [
        "a b",
        "",
        "'; rm -rf /",
        "$(HOME)",
        "$$(HOME)",
        "$HOME",
        "`id`",
        "new\nline",
        "é",
        "-n",
        "*",
        "\\",
    ]
    script = 'for word in "$@"; do printf "%s|" "$word"; done'
    end = await outcome(
        world,
        task(
            step(script + " > /out/direct", *words),
            step(script, *words, stdout="/out/with files"),
            outputs=(
                Delivered("/out/direct", f"{LAB}/direct"),
                Delivered("/out/with files", f"{LAB}/$(x) 'y'"),
            ),
        ),
    )
    assert (end.exit_code, end.reason) == (0, "")
    meant = "a b||'; rm -rf /|$(HOME)|$$(HOME)|$HOME|`id`|new\nline|é|-n|*|\\|"
    assert (lab(world) / "direct").read_text() == meant
    assert (lab(world) / "$(x) 'y'").read_text() == meant


async def test_what_steps_print_is_the_tasks_log(world: KubeWorld) -> None:
    """One after the other, while the pod is there and afterwards; the end of each is in the report."""
    cluster, ear, _ = await world.open()
    await cluster.launch(
        [task(step("echo first; echo oops >&2"), step("echo second"), step("echo third; exit 1"))]
    )
    end = await ear.ended("a")
    assert end.container is not None
    assert [(each.stdout, each.stderr) for each in end.container.steps] == [
        ("first\n", "oops\n"),
        ("second\n", ""),
        ("third\n", ""),
    ]
    assert (await cluster.logs("a", "stdout", 0, 6))[0] == b"first\n"
    await cluster.settle(["a"])
    async with asyncio.timeout(200):
        while cluster.pods.object_of("a") is not None:
            await asyncio.sleep(0.05)
    assert await cluster.logs("a", "stdout", 3, 100, "node-0") == (b"st\nsecond\nthird\n", False)
    assert await cluster.logs("a", "stderr", 0, 100, "node-0") == (b"oops\n", False)


async def test_the_log_of_a_task_whose_first_step_failed(world: KubeWorld) -> None:
    """Its last container never ran, and has no log: that of the step is the task's."""
    cluster, ear, _ = await world.open()
    await cluster.launch([task(step("echo why; exit 2"), step("true"))])
    await ear.ended("a")
    await cluster.settle(["a"])
    async with asyncio.timeout(200):
        while cluster.pods.object_of("a") is not None:
            await asyncio.sleep(0.05)
    assert await cluster.logs("a", "stdout", 0, 100, "node-0") == (b"why\n", False)


async def test_more_files_than_a_message_holds(world: KubeWorld) -> None:
    """Twelve hundred: all are delivered, and the agent tells what found no room in 4 KiB."""
    script = 'n=0; while [ $n -lt 1200 ]; do echo $n > "f$n-$((n * 7919 % 3001)).txt"; n=$((n + 1)); done'
    outputs = (Delivered("/out/*.txt", f"{LAB}/many", path_prefix="/out"),)
    end = await outcome(world, task(step(script, workdir="/out"), outputs=outputs))
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert end.container is not None
    assert len({each.uri for each in end.container.outputs}) == 1200
    assert len(os.listdir(lab(world) / "many")) == 1200


async def test_a_delivered_object_stays_on_its_node(
    api: Connection, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As datasets by the ETags of the uploads, which are reported before the end; the objects are in the store."""
    with object_store(monkeypatch) as bucket:
        nodes = [NodeTemplate("node-0", cpu="16")]
        async with KubeWorld(api, namespace, tmp_path, nodes, steps_secret="store") as world:
            keys = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID")}
            keys |= {name: os.environ[name] for name in ("AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": keys}
            await make(world.client, f"/api/v1/namespaces/{namespace}/secrets", secret)
            cluster, ear, _ = await world.open()
            what = task(
                step("echo aligned > /out/a.bam; mkdir /out/db; echo one > /out/db/1; echo two > /out/db/2"),
                outputs=(
                    Delivered("/out/a.bam", "s3://lab/a.bam"),
                    Delivered("/out/db", "s3://lab/db", directory=True),
                ),
            )
            await cluster.launch([what])
            end = await ear.ended(what.name)
            assert (end.exit_code, end.reason, end.message) == (0, "", "")
            tag = bucket.head_object(Bucket="lab", Key="a.bam")["ETag"].strip('"')
            seen = [event for event in ear.heard if isinstance(event, ReplicaSeen | PodEnded)]
            assert isinstance(seen[-1], PodEnded)
            kept = {event.uri: event for event in seen[:-1] if isinstance(event, ReplicaSeen)}
            assert {uri_of(uri) for uri in kept} == {"s3://lab/a.bam", "s3://lab/db/"}
            assert kept[versioned("s3://lab/a.bam", tag)].size_bytes == 8
            assert end.container is not None
            assert end.container.outputs[0] == DeliveredFile("/out/a.bam", "s3://lab/a.bam", 8, tag)


async def test_a_node_without_an_agent(api: Connection, namespace: str, tmp_path: Path) -> None:
    """Its files are put in place and taken out by the pod alone; only the ends of what steps print are not known."""
    shared = (SharedVolume("lab", LAB),)
    async with KubeWorld(api, namespace, tmp_path, agents=False, shared=shared, agent_port=0) as world:
        end = await outcome(
            world,
            task(
                step("cat /in/a > /out/b; echo done"),
                inputs=(Placed("/in/a", content="given"),),
                outputs=(Delivered("/out/b", f"{LAB}/b"),),
            ),
        )
        assert (end.exit_code, end.reason, end.message) == (0, "", "")
        assert end.container is not None
        assert end.container.outputs == (DeliveredFile("/out/b", f"{LAB}/b", 5),)
        assert (lab(world) / "b").read_text() == "given"


async def test_a_reference_on_a_shared_volume_is_read_from_the_nodes_copy(
    api: Connection, namespace: str, tmp_path: Path
) -> None:
    """Agents that see the volume know its files' sizes. A copy covers the file for the task, which cannot write to it."""
    path = tmp_path / "seen" / "hg38.fa"
    path.parent.mkdir()
    path.write_text("ACGT\n")
    tmp_path.chmod(0o755)  # it is what agents may read, and only files that all users may read are copied
    shared = (SharedVolume("lab", str(path.parent)),)
    async with KubeWorld(api, namespace, tmp_path, shared=shared) as world:
        lab(world).mkdir(parents=True)
        os.link(path, lab(world) / path.name)  # agents see the folder, and tasks the claim: one file
        cluster, ear, _ = await world.open()
        uri = str(path)
        assert cluster.file_copies == "always"
        assert await cluster.placed_sizes([uri, f"{uri}.fai", "/etc/passwd"]) == {uri: 5}
        found = (await cluster.fingerprints([uri], by_content=False))[uri]
        assert isinstance(found, Fingerprint)
        dataset = versioned(uri, found.version)
        await cluster.transfer([Transfer(dataset, 5, "node-0")])
        await ear.transferred()
        script = f"stat -c %i {uri}; cat {uri}; ! echo changed > {uri}"
        placed = (Placed(uri, source=uri, input="file-0"),)
        what = task(
            step(script, stdout="/out/said"),
            inputs=placed,
            stage_inputs=(InputFile("file-0", (dataset,)),),
            outputs=(Delivered("/out/said", f"{path.parent}/said"),),
        )
        await cluster.launch([what])
        end = await ear.ended(what.name)
        assert (end.exit_code, end.reason, end.message) == (0, "", "")
        inode, bases = (lab(world) / "said").read_text().split()
        assert (bases, path.read_text()) == ("ACGT", "ACGT\n")
        assert int(inode) != path.stat().st_ino


async def test_a_large_file_that_goes_to_a_shared_volume_stays_on_its_node(
    api: Connection, namespace: str, tmp_path: Path
) -> None:
    """Under its path and version, which are reported before the end. A task that reads it sees the file that the node kept."""
    tmp_path.chmod(0o755)
    # Where the claim lies: agents see what tasks see.
    folder = tmp_path / "hollow" / "claims" / namespace / "lab"
    nodes, shared = [NodeTemplate("node-0", cpu="16")], (SharedVolume("lab", str(folder)),)
    async with KubeWorld(api, namespace, tmp_path, nodes, shared=shared) as world:
        assert lab(world) == folder
        folder.mkdir(parents=True)
        cluster, ear, _ = await world.open()
        bam = f"{folder}/a.bam"
        write = task(step("head -c 40000000 /dev/zero > /out/a.bam"), outputs=(Delivered("/out/a.bam", bam),))
        await cluster.launch([write])
        end = await ear.ended(write.name)
        assert (end.exit_code, end.reason, end.message) == (0, "", "")
        found = (await cluster.fingerprints([bam], by_content=False))[bam]
        assert isinstance(found, Fingerprint)
        dataset = versioned(bam, found.version)
        heard = [event for event in ear.heard if isinstance(event, ReplicaSeen | PodEnded)]
        assert isinstance(heard[-1], PodEnded)
        kept = {event.uri: event.size_bytes for event in heard[:-1] if isinstance(event, ReplicaSeen)}
        assert kept == {dataset: 40_000_000}
        read = task(
            step(f"stat -c %i {bam}; wc -c < {bam}", stdout="/out/said"),
            name="b",
            inputs=(Placed(bam, source=bam, input="file-0"),),
            stage_inputs=(InputFile("file-0", (dataset,)),),
            outputs=(Delivered("/out/said", f"{folder}/said"),),
        )
        await cluster.launch([read])
        end = await ear.ended(read.name)
        assert (end.exit_code, end.reason, end.message) == (0, "", "")
        inode, size = map(int, (folder / "said").read_text().split())
        (own,) = (tmp_path / "agents").rglob("a.bam")
        assert (inode, size) == (own.stat().st_ino, 40_000_000)


def document(script: str) -> bytes:
    """A workflow of three shards of one container task, and of one that counts what they have made."""
    made = {
        "name": "make",
        "scatter": {"items": ["x", "y", "z"]},
        "steps": [
            {"command": ["cat", "/in/greeting"], "stdout": "/out/said"},
            {"command": ["sh", "-c", script], "stdout": "/out/said"},
        ],
        "files": {
            "inputs": [{"path": "/in/greeting", "content": "hello "}],
            "outputs": [{"path": "/out/said", "uri": f"{LAB}/made/{{item}}.txt"}],
        },
        "resources": {"cpu": 0.1, "memory": "64Mi"},
    }
    counted = {
        "name": "count",
        "needs": ["make"],
        "steps": [{"command": ["sh", "-c", "cat /made/*"], "stdout": f"{LAB}/counted"}],
        "files": {"mounts": [{"source": f"{LAB}/made", "path": "/made", "read_only": True}]},
        "resources": {"cpu": 0.1, "memory": "64Mi"},
    }
    return json.dumps({"name": "containers", "stages": [made, counted]}).encode()


async def test_a_workflow_of_container_tasks(world: KubeWorld, tmp_path: Path) -> None:
    """By the whole service: each shard delivers to a uri of its own before the next stage begins."""
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        submitted = await running.service.submit(document("echo $FLOWSCHED_ITEM"))
        view = await running.ended(submitted.id)
        assert (view.state, view.reason) == ("SUCCEEDED", "")
    assert (lab(world) / "counted").read_text() == "hello x\nhello y\nhello z\n"


async def test_a_workflow_of_container_tasks_that_fails(world: KubeWorld, tmp_path: Path) -> None:
    """Its stage has failed, the next never began; what the failed step had said is there."""
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        submitted = await running.service.submit(document("echo oh no; exit 5"))
        view = await running.ended(submitted.id)
        assert view.state == "FAILED"
    assert (lab(world) / "made/x.txt").read_text() == "hello oh no\n"
    assert not (lab(world) / "counted").exists()
