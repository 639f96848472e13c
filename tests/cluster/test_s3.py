"""Inputs from an object store: a real S3 protocol server on loopback, the real service, a real task."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest
import s3fs

from flowsched import credentials
from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.errors import InvalidRequest


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
