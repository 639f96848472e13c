"""Inputs from an object store: a real S3 protocol server on loopback, the real service, a real task."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest
import s3fs

from flowsched import credentials
from flowsched.app import Running, Settings, running
from flowsched.cluster.local import executor
from flowsched.cluster.local.settings import LocalSettings
from flowsched.cluster.node import delivered
from flowsched.cluster.node.cache import Entry
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.errors import InvalidRequest
from flowsched.executor.datasets import uri_of
from flowsched.executor.protocol import PodEnded, ReplicaSeen
from flowsched.workflow.spec import Delivered
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained


def document(uri: str) -> bytes:
    stage = {
        "name": "count",
        "command": ["sh", "-c", "wc -c < $FLOWSCHED_INPUT_READS | tr -d ' ' > n"],
        "inputs": [{"name": "reads", "uri": uri}],
        "outputs": [{"name": "n", "path": "n", "value": True}],
    }
    return json.dumps({"name": "s3", "stages": [stage]}).encode()


async def test_a_task_reads_an_object_of_a_bucket(tmp_path: Path, bucket: str) -> None:
    """5,000 bytes lie in the bucket, are moved once, and are what the task sees."""
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        ident = (await up.service.submit(document(f"s3://{bucket}/runs/L001.txt"))).id
        async for _ in up.service.events(ident, 0):
            pass
        task = await up.service.task(ident, "count", 0)
        assert (task.state, task.outputs[0].value) == ("SUCCEEDED", "5000\n")
        assert (task.bytes_moved, task.bytes_local) == (5000, 0)


async def test_an_object_that_is_not_there_fails_the_task_for_good(tmp_path: Path, bucket: str) -> None:
    """No attempt is made and none is charged: the reason names the object."""
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        ident = (await up.service.submit(document(f"s3://{bucket}/runs/L002.txt"))).id
        async for _ in up.service.events(ident, 0):
            pass
        view = await up.service.workflow(ident)
        assert view.state == "FAILED"
        assert "InputMissing" in view.reason
        assert "s3://lab/runs/L002.txt" in view.reason
        assert (await up.service.task(ident, "count", 0)).attempts == []


async def test_a_container_task_reads_and_writes_a_bucket(tmp_path: Path, bucket: str) -> None:
    """A folder and an object come to their paths; a file and a folder are in the bucket before the task has succeeded."""
    client = boto3.client("s3")
    for name in ("1", "deep/2"):
        client.put_object(Bucket=bucket, Key=f"ref/{name}", Body=name.encode())
    stage = {
        "name": "work",
        "steps": [{"command": ["sh", "-c", "cat /ref/1 /ref/deep/2 > /out/a; wc -c < /in/reads > /out/d/n"]}],
        "files": {
            "inputs": [
                {"path": "/in/reads", "uri": f"s3://{bucket}/runs/L001.txt"},
                {"path": "/ref", "uri": f"s3://{bucket}/ref", "directory": True},
            ],
            "outputs": [
                {"path": "/out/a", "uri": f"s3://{bucket}/out/a.txt"},
                {"path": "/out/d", "uri": f"s3://{bucket}/out/folder", "directory": True},
                {"path": "/out/none", "uri": f"s3://{bucket}/out/none"},
            ],
        },
        "resources": {"memory": "64Mi"},
    }
    document = json.dumps({"name": "s3", "stages": [stage]}).encode()
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        ident = (await up.service.submit(document)).id
        async for _ in up.service.events(ident, 0):
            pass
        view = await up.service.workflow(ident)
        assert (view.state, view.reason) == ("SUCCEEDED", "")
    found = client.list_objects_v2(Bucket=bucket, Prefix="out/")["Contents"]
    assert [item["Key"] for item in found] == ["out/a.txt", "out/folder/n"]
    assert client.get_object(Bucket=bucket, Key="out/a.txt")["Body"].read() == b"1deep/2"
    assert client.get_object(Bucket=bucket, Key="out/folder/n")["Body"].read().split() == [b"5000"]


ODD = ("a#1.txt", "a?x=1.txt", "a%20b.txt", "a b+c&d.txt", "ü%2F.txt")


async def test_a_key_is_taken_as_it_is_written(tmp_path: Path, bucket: str) -> None:
    """Its last part is the name of the file that a task reads, and an output is an object of just that key."""
    client = boto3.client("s3")
    client.put_object(Bucket=bucket, Key="odd/a", Body=b"wrong")
    stages = []
    for number, name in enumerate(ODD):
        client.put_object(Bucket=bucket, Key=f"odd/{name}", Body=f"right {number}".encode())
        plain = {
            "name": f"plain-{number}",
            "command": ["sh", "-c", 'basename "$FLOWSCHED_INPUT_R" > n; cat "$FLOWSCHED_INPUT_R" >> n'],
            "inputs": [{"name": "r", "uri": f"s3://{bucket}/odd/{name}"}],
            "outputs": [{"name": "n", "path": "n", "value": True}],
        }
        steps = {
            "name": f"steps-{number}",
            "steps": [{"command": ["cp", f"/in/odd/{name}", "/out/o"]}],
            "files": {
                "inputs": [{"path": "/in/odd", "uri": f"s3://{bucket}/odd/", "directory": True}],
                "outputs": [{"path": "/out/o", "uri": f"s3://{bucket}/came/{name}"}],
            },
            "resources": {"memory": "64Mi"},
        }
        stages += [plain, steps]
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        ident = (await up.service.submit(json.dumps({"name": "s3", "stages": stages}).encode())).id
        async for _ in up.service.events(ident, 0):
            pass
        view = await up.service.workflow(ident)
        assert (view.state, view.reason) == ("SUCCEEDED", "")
        read = [(await up.service.task(ident, f"plain-{n}", 0)).outputs[0].value for n in range(len(ODD))]
    assert read == [f"{name}\nright {number}" for number, name in enumerate(ODD)]
    for number, name in enumerate(ODD):
        came = client.get_object(Bucket=bucket, Key=f"came/{name}")["Body"].read()
        assert came == f"right {number}".encode()


async def test_the_keys_reach_what_stages_and_no_task(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no environment any more, as after the start of `serve`: inputs come, outputs go, a task sees none of them."""
    taken = credentials.remove(stores=True)
    assert taken == {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    stage = {
        "name": "work",
        "steps": [{"command": ["sh", "-c", "{ env; cat /in/reads; } > /out/a"]}],
        "files": {
            "inputs": [{"path": "/in/reads", "uri": f"s3://{bucket}/runs/L001.txt"}],
            "outputs": [{"path": "/out/a", "uri": f"s3://{bucket}/out/a.txt"}],
        },
        "resources": {"memory": "64Mi"},
    }
    settings = Settings(
        port=0, root=tmp_path, log_level="error", local=LocalSettings(stores=credentials.store_options(taken))
    )
    async with running(settings) as up:
        ident = (await up.service.submit(json.dumps({"name": "s3", "stages": [stage]}).encode())).id
        async for _ in up.service.events(ident, 0):
            pass
        view = await up.service.workflow(ident)
        assert (view.state, view.reason) == ("SUCCEEDED", "")
    client = boto3.client("s3", aws_access_key_id="testing", aws_secret_access_key="testing")
    seen = client.get_object(Bucket=bucket, Key="out/a.txt")["Body"].read()
    assert (b"ACGT\n" * 1000 in seen, b"FLOWSCHED_STAGE=work" in seen, b"AWS_" in seen) == (True, True, False)
    with pytest.raises(NotFetched, match="give the service credentials"):
        Origins().open(f"s3://{bucket}/runs/L001.txt")


async def test_a_bucket_that_does_not_take_an_output(tmp_path: Path, bucket: str) -> None:
    """The task fails before its work, and says what is not where, and what to do; no credential is left on the disk."""
    stage = {
        "name": "work",
        "steps": [{"command": ["sh", "-c", f"echo > /out/a; echo > {tmp_path}/worked"]}],
        "files": {"outputs": [{"path": "/out/a", "uri": "s3://no-such-bucket/a"}]},
    }
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        ident = (await up.service.submit(json.dumps({"name": "s3", "stages": [stage]}).encode())).id
        async for _ in up.service.events(ident, 0):
            pass
        view = await up.service.workflow(ident)
    assert view.state == "FAILED"
    assert "OutputFailed" in view.reason
    assert (
        "cannot write s3://no-such-bucket/a: there is no bucket 'no-such-bucket' at http://127.0.0.1:"
        in view.reason
    )
    assert "Create it" in view.reason
    assert not (tmp_path / "worked").exists()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if b"AWS_SECRET_ACCESS_KEY" in path.read_bytes()]


def test_a_range_of_an_object_comes_with_its_version(bucket: str) -> None:
    """Bytes 4,000 to 4,010 of 5,000; another object under the same key is another version, of the length it has."""
    uri = f"s3://{bucket}/runs/L001.txt"
    first = Origins().open_section(uri, 4000, 4010, "L001.txt")
    assert (first.stream.read(10), first.total) == (b"ACGT\nACGT\n", 5000)
    first.stream.close()
    s3fs.S3FileSystem().pipe_file(f"{bucket}/runs/L001.txt", b"T" * 300)
    second = Origins().open_section(uri, 100, 110, "L001.txt")
    assert (second.stream.read(10), second.total) == (b"T" * 10, 300)
    second.stream.close()
    assert len({first.version, second.version, ""}) == 3
    with pytest.raises(NotFetched) as refused:
        Origins().open_section(f"s3://{bucket}/runs/", 0, 10, "runs")
    assert refused.value.undivided
    with pytest.raises(NotFetched) as missing:
        Origins().open_section(f"s3://{bucket}/none", 0, 10, "none")
    assert missing.value.permanent


async def test_without_a_client_a_task_is_refused_at_its_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TES task and a document with an S3 URL are a 400 with the install line, and no storage of TES has `s3://`."""
    task = {"executors": [{"image": "a", "command": ["true"]}]}
    output = {"path": "/out/a", "url": "s3://lab/{index}"}
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        assert up.service.tes.storage() == ["file:///", "s3://"]
        monkeypatch.setattr("flowsched.app.find_spec", lambda _: None)
        assert up.service.tes.storage() == ["file:///"]
        with pytest.raises(InvalidRequest) as refused:
            await up.service.tes.create(json.dumps({**task, "outputs": [output]}).encode())
        assert refused.value.status == 400
        assert str(refused.value) == (
            "the output /out/a of stage 'task': the service has no client for s3:// URLs; "
            "install it: pip install flowsched[objectstore]"
        )
        with pytest.raises(
            InvalidRequest, match="input 'reads' of stage 'count': the service has no client for s3://"
        ):
            await up.service.submit(document("s3://lab/a"))
        assert await up.service.tes.create(json.dumps(task).encode())


# ---- what a task has delivered is read again by another one ----


def steps(script: str, node: str = "", **files: Any) -> bytes:
    """A document as the TES server makes it of a task: one stage, on a node or anywhere."""
    stage = {"name": "task", "steps": [{"command": ["sh", "-c", script]}], "files": files}
    rules = {"selector": {"kubernetes.io/hostname": node}} if node else {}
    return json.dumps({"name": "t", "stages": [stage | rules | {"resources": {"memory": "64Mi"}}]}).encode()


async def done(up: Running, document: bytes) -> tuple[str, int, int]:
    """Run a task: its node, and the input bytes that were moved there and that it found there."""
    ident = (await up.service.submit(document)).id
    async for _ in up.service.events(ident, 0):
        pass
    view = await up.service.workflow(ident)
    assert (view.state, view.reason) == ("SUCCEEDED", "")
    task = await up.service.task(ident, "task", 0)
    return task.attempts[-1].node or "", task.bytes_moved, task.bytes_local


def two_nodes(root: Path, **more: Any) -> Settings:
    return Settings(port=0, root=root, log_level="error", local=LocalSettings(nodes=2, cpu="1", **more))


def cached(root: Path, node: str) -> list[str]:
    """The datasets that lie in a node's cache."""
    records = (root / "nodes" / node / "cache").glob("*/meta.json")
    return sorted(uri_of(json.loads(path.read_text())["uri"]) for path in records)


async def test_a_delivered_object_is_read_where_it_was_written(tmp_path: Path, bucket: str) -> None:
    """The second task goes to the node of the first, and nothing is downloaded, also after a restart of the service."""
    write = steps(
        "head -c 300000 /dev/zero > /out/x", "node-1", outputs=[{"path": "/out/x", "uri": f"s3://{bucket}/x"}]
    )
    inputs = [{"path": "/in/x", "uri": f"s3://{bucket}/x"}]
    read = steps("test $(wc -c < /in/x) = 300000", inputs=inputs)
    async with running(two_nodes(tmp_path)) as up:
        assert await done(up, write) == ("node-1", 0, 0)
        assert await done(up, read) == ("node-1", 0, 300_000)
    async with running(two_nodes(tmp_path)) as up:
        assert await done(up, read) == ("node-1", 0, 300_000)
        away = steps("test $(wc -c < /in/x) = 300000", "node-0", inputs=inputs)
        assert await done(up, away) == ("node-0", 300_000, 0)


async def test_an_object_in_parts_has_the_version_of_all_of_it(tmp_path: Path, bucket: str) -> None:
    """An upload of more than 8 MB consists of parts with versions of their own."""
    write = steps(
        "head -c 12000000 /dev/zero > /out/x",
        "node-1",
        outputs=[{"path": "/out/x", "uri": f"s3://{bucket}/x"}],
    )
    async with running(two_nodes(tmp_path)) as up:
        await done(up, write)
        read = steps(
            "test $(wc -c < /in/x) = 12000000", inputs=[{"path": "/in/x", "uri": f"s3://{bucket}/x"}]
        )
        assert await done(up, read) == ("node-1", 0, 12_000_000)


async def test_an_object_that_was_overwritten_is_fetched(tmp_path: Path, bucket: str) -> None:
    """The reader gets the new bytes, though they are as many as the old ones, and the copy of the old ones goes."""
    outputs = [{"path": "/out/x", "uri": f"s3://{bucket}/x"}]
    async with running(two_nodes(tmp_path)) as up:
        await done(up, steps("printf old > /out/x", "node-1", outputs=outputs))
        assert cached(tmp_path, "node-1") == ["s3://lab/x"]
        boto3.client("s3").put_object(Bucket=bucket, Key="x", Body=b"new")
        read = steps(
            "test $(cat /in/x) = new", "node-0", inputs=[{"path": "/in/x", "uri": f"s3://{bucket}/x"}]
        )
        assert await done(up, read) == ("node-0", 3, 0)
        async with asyncio.timeout(10):
            while cached(tmp_path, "node-1"):
                await asyncio.sleep(0.01)


async def test_a_bucket_with_versions_names_them_alike_to_writers_and_readers(
    tmp_path: Path, bucket: str
) -> None:
    """The version id is a part of the dataset's name."""
    boto3.client("s3").put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    async with running(two_nodes(tmp_path)) as up:
        await done(
            up, steps("printf x > /out/x", "node-1", outputs=[{"path": "/out/x", "uri": f"s3://{bucket}/x"}])
        )
        read = steps("test $(cat /in/x) = x", inputs=[{"path": "/in/x", "uri": f"s3://{bucket}/x"}])
        assert await done(up, read) == ("node-1", 0, 1)


async def test_delivered_folders_and_wildcards_are_read_where_they_were_written(
    tmp_path: Path, bucket: str
) -> None:
    """A folder as a folder, the files of a wildcard one by one."""
    script = "mkdir -p /out/d/deep /w && printf 12 > /out/d/1 && printf 345 > /out/d/deep/2 && printf 6789 > /w/a.txt"
    outputs = [
        {"path": "/out/d", "uri": f"s3://{bucket}/d", "directory": True},
        {"path": "/w/*.txt", "uri": f"s3://{bucket}/w", "path_prefix": "/w"},
    ]
    inputs = [
        {"path": "/in/d", "uri": f"s3://{bucket}/d", "directory": True},
        {"path": "/in/a", "uri": f"s3://{bucket}/w/a.txt"},
    ]
    async with running(two_nodes(tmp_path)) as up:
        await done(up, steps(script, "node-1", outputs=outputs, volumes=["/w"]))
        assert cached(tmp_path, "node-1") == ["s3://lab/d/", "s3://lab/w/a.txt"]
        read = steps("test $(cat /in/d/1 /in/d/deep/2 /in/a) = 123456789", inputs=inputs)
        assert await done(up, read) == ("node-1", 0, 9)


async def test_delivered_objects_keep_within_the_limit_of_the_cache(tmp_path: Path, bucket: str) -> None:
    """What is larger than the cache is not taken; what no task reads makes way for what came later."""
    async with running(two_nodes(tmp_path, cache="300k")) as up:
        for name, size in (("a", 400_000), ("b", 200_000), ("c", 200_000)):
            outputs = [{"path": "/out/x", "uri": f"s3://{bucket}/{name}"}]
            await done(up, steps(f"head -c {size} /dev/zero > /out/x", "node-1", outputs=outputs))
        async with asyncio.timeout(10):
            while cached(tmp_path, "node-1") != ["s3://lab/c"]:
                await asyncio.sleep(0.01)


def test_a_look_at_an_object_gives_its_size(bucket: str) -> None:
    """And at a folder the bytes of all its objects."""
    s3fs.S3FileSystem().pipe_file(f"{bucket}/runs/deep/L002.txt", b"T" * 300)
    assert Origins().fingerprint(f"s3://{bucket}/runs/L001.txt").size_bytes == 5_000
    assert Origins().fingerprint(f"s3://{bucket}/runs/").size_bytes == 5_300


# ---- while the data of an attempt become datasets ----

DELIVERING = contained("a", "printf ACGT > /out/x", outputs=(Delivered("/out/x", "s3://lab/x"),))


async def test_a_release_meanwhile_adds_no_second_end(
    real_world: RealWorld, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an adoption. The replica comes first, and no event names a path of the node."""
    begun, free = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> list[Entry]:
        begun.set()
        free.wait(60)
        return delivered.keep(*arguments)

    monkeypatch.setattr(executor, "keep", slowly)
    cluster, ear, _ = await real_world.open()
    await cluster.launch([DELIVERING])
    try:
        await asyncio.to_thread(begun.wait, 60)
        await cluster.release(["a"], 0)
        await cluster.adopt([DELIVERING])
        assert ear.finals("a") == []
    finally:
        free.set()
    await ear.ended("a")
    await real_world.drop()
    (replica,) = [event for event in ear.heard if isinstance(event, ReplicaSeen)]
    (end,) = ear.finals("a")
    assert ear.heard.index(replica) < ear.heard.index(end)
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert [(file.uri, file.place) for file in end.container.outputs] == [("s3://lab/x", None)]


async def test_a_service_that_dies_before_the_report_leaves_it_to_the_next(
    real_world: RealWorld, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finds the replica in the cache, and reports the end once."""

    def dies(*arguments: Any) -> list[Entry]:
        delivered.keep(*arguments)
        died.set()
        raise asyncio.CancelledError  # as at the end of the service

    died = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(executor, "keep", dies)
        cluster, ear, _ = await real_world.open()
        await cluster.launch([DELIVERING])
        await asyncio.to_thread(died.wait, 60)
        await real_world.drop()
    assert ear.finals("a") == []
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([DELIVERING])
    await ear.ended("a")
    await real_world.drop()
    found = [(uri_of(each.uri), each.node) for each in ear.heard if isinstance(each, ReplicaSeen)]
    assert set(found) == {("s3://lab/x", "node-0")}
    (end,) = ear.finals("a")
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert [file.place for file in end.container.outputs] == [None]
