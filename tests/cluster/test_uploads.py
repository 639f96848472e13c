"""The process that writes objects for all attempts of a runner: one set-up, and no task pays for its death."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
import s3fs

import flowsched
from flowsched.cluster.local.runner import deliver
from flowsched.cluster.local.runner.deliver import Delivery
from flowsched.cluster.local.runner.outputs import Refused
from flowsched.cluster.local.runner.uploads import Stores
from flowsched.cluster.node.origins import Origins
from flowsched.executor.protocol import DeliveredFile, Pod
from flowsched.workflow.spec import Delivered
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_delivery import left, output
from tests.executors.executor_contract import contained, eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def writes(name: str, script: str = "echo > /out/f") -> Pod:
    """A container task with one object as its output."""
    return contained(name, script, outputs=(Delivered("/out/f", f"s3://lab/mine/{name}"),))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def only_child(world: RealWorld) -> int:
    """The one process that the runner has left, now that its attempts have ended."""
    (runner,) = lives.living_runners(world.root)

    async def is_alone() -> bool:
        return len(children(runner)) == 1

    await eventually(is_alone)
    return children(runner)[0]


async def test_one_process_writes_the_objects_of_all_attempts(real_world: RealWorld, bucket: str) -> None:
    """It stays for the next attempt. One that was killed is replaced, and the last one ends with its runner."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writes("a"), writes("b")])
    ends = [await ear.ended(name) for name in ("a", "b")]
    first = await only_child(real_world)
    await cluster.launch([writes("c")])
    ends.append(await ear.ended("c"))
    assert await only_child(real_world) == first
    os.kill(first, signal.SIGKILL)
    await cluster.launch([writes("d")])
    ends.append(await ear.ended("d"))
    assert [(end.exit_code, end.message) for end in ends] == [(0, "")] * 4
    found = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix="mine/")["Contents"]
    assert [each["Key"] for each in found] == ["mine/a", "mine/b", "mine/c", "mine/d"]
    last = await only_child(real_world)
    assert last != first
    (runner,) = lives.living_runners(real_world.root)
    os.kill(runner, signal.SIGKILL)

    async def is_gone() -> bool:
        return not Path(f"/proc/{last}/cmdline").exists() or not Path(f"/proc/{last}/cmdline").read_bytes()

    await eventually(is_gone)


class Store(BaseHTTPRequestHandler):
    """An object store that does not answer the first write, and answers each later one."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    asked: list[str]  #: the methods of all requests but the writes
    came: threading.Event  #: the first write
    killed: threading.Event  #: the process that asked for it
    stuck = False  #: it answers no write

    def do_HEAD(self) -> None:
        self.asked.append(self.command)
        self._say({})

    do_DELETE = do_HEAD

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.asked.append(self.command)
        if self.path.startswith("/lab/completed?uploadId"):
            self._say({}, b"<Error><Code>NoSuchUpload</Code></Error>", 404)
            return
        self._say(
            {}, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        )

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.stuck or not self.came.is_set():
            self.came.set()
            self.killed.wait(60)
            self.close_connection = True
            return
        self.objects[self.path] = body
        self._say({"ETag": '"its-tag"'})

    def _say(self, headers: dict[str, str], body: bytes = b"", status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Store]]:
    """It on loopback, reached by the AWS variables of the environment."""
    s3fs.S3FileSystem.clear_instance_cache()  # of an earlier test's server
    Store.stuck = False
    Store.objects, Store.asked, Store.came, Store.killed = {}, [], threading.Event(), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield Store
    server.shutdown()
    server.server_close()


async def test_a_delivery_whose_process_was_killed_is_tried_again(
    real_world: RealWorld, store: type[Store]
) -> None:
    """The object comes, and the end names the ETag that its store has given it."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writes("a", "echo yes > /out/f")])
    await asyncio.to_thread(store.came.wait, 60)
    (runner,) = lives.living_runners(real_world.root)
    attempt = lives.runner_of(real_world.attempt("a"))
    (uploads,) = set(children(runner)) - {attempt}
    os.kill(uploads, signal.SIGKILL)
    store.killed.set()
    end = await ear.ended("a")
    assert (end.exit_code, end.message, store.objects) == (0, "", {"/lab/mine/a": b"yes\n"})
    assert end.container is not None
    assert end.container.outputs == (DeliveredFile("/out/f", "s3://lab/mine/a", 4, "its-tag"),)


async def test_an_upload_ends_with_its_attempt(real_world: RealWorld, store: type[Store]) -> None:
    """The shim of an attempt is killed while its object is written: the parts are dropped, and no object comes to be."""
    cluster, _, _ = await real_world.open()
    await cluster.launch([writes("a", "head -c 12000000 /dev/zero > /out/f")])
    await asyncio.to_thread(store.came.wait, 60)
    os.kill(lives.runner_of(real_world.attempt("a")), signal.SIGKILL)
    await asyncio.sleep(0.1)
    store.killed.set()

    async def is_dropped() -> bool:
        return "DELETE" in store.asked

    await eventually(is_dropped)
    assert store.asked == ["HEAD", "POST", "DELETE"]


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5])
def test_an_object_of_a_later_attempt_stays(tmp_path: Path, bucket: str, moment: int) -> None:
    """The attempt ends before the upload, one of its three parts, or its completion; another one has written the object."""
    (tmp_path / "f").write_bytes(bytes(20 << 20))
    client, calls = boto3.client("s3"), []

    def wanted() -> bool:
        calls.append(1)
        if len(calls) == moment:
            client.put_object(Bucket=bucket, Key="x", Body=b"later")
        return len(calls) < moment

    with open(tmp_path / "f", "rb") as file, pytest.raises(OSError, match="its attempt has ended"):
        Stores({"options": {}}).write(file.fileno(), f"s3://{bucket}/x", wanted)
    assert client.get_object(Bucket=bucket, Key="x")["Body"].read() == b"later"
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_part_of_a_file_becomes_no_object(tmp_path: Path) -> None:
    """The attempt ends after the first block, in a store of fsspec that makes an object of all that was written."""
    (tmp_path / "f").write_bytes(bytes(20 << 20))
    answers = iter([True, False])
    made = []

    class Buffered(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]
        def _initiate_upload(self) -> None: ...

        def _upload_chunk(self, final: bool = False) -> bool:
            made.append(final)
            return True

    class Files(fsspec.AbstractFileSystem):  # type: ignore[misc]
        cachable = False

        def _open(self, path: str, mode: str = "rb", **more: object) -> Buffered:
            return Buffered(self, path, mode)

    fsspec.register_implementation("buffered", Files, clobber=True)
    stores = Stores({"options": {}})
    with open(tmp_path / "f", "rb") as file:
        with pytest.raises(OSError, match="its attempt has ended"):
            stores.write(file.fileno(), "buffered://x", lambda: next(answers))
        gc.collect()
        assert True not in made
        stores.write(file.fileno(), "buffered://x")
        assert made[-1] is True


def test_an_upload_that_its_store_knows_no_more_is_tried_again(tmp_path: Path, store: type[Store]) -> None:
    """It was completed, and the answer was lost: that is no bucket that is missing."""
    (tmp_path / "f").write_bytes(bytes(12 << 20))
    store.came.set()
    with open(tmp_path / "f", "rb") as file, pytest.raises(OSError, match="FileNotFoundError"):
        Stores({"options": {}}).write(file.fileno(), "s3://lab/completed")


async def test_no_task_reaches_the_stores(real_world: RealWorld, bucket: str) -> None:
    """A step has no socket of its runner, so it can ask for no object."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writes("a", "ls -l /proc/self/fd > /out/f")])
    assert (await ear.ended("a")).exit_code == 0
    listed = boto3.client("s3").get_object(Bucket=bucket, Key="mine/a")["Body"].read().decode()
    assert "->" in listed
    assert "socket:" not in listed


def test_a_large_file_goes_in_parts(tmp_path: Path, bucket: str) -> None:
    """20 MiB in three parts; its version is the one that its store names to readers."""
    (tmp_path / "f").write_bytes(os.urandom(1 << 20) * 20)
    uri = f"s3://{bucket}/large.html"
    with open(tmp_path / "f", "rb") as file:
        version = Stores({"options": {}}).write(file.fileno(), uri)
    found = boto3.client("s3").get_object(Bucket=bucket, Key="large.html")
    assert found["Body"].read() == (tmp_path / "f").read_bytes()
    assert (found["ETag"], found["ContentType"]) == (f'"{version}"', "text/html")
    assert version.endswith("-3")
    assert Origins().fingerprint(uri).version == version


def test_a_write_that_fails_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times; the fourth error is the output's, and a refusal is tried once."""
    monkeypatch.setattr(deliver, "_PAUSES_S", (0.0, 0.0, 0.0))
    places, tries = left(tmp_path, 1), []

    def send(_: int, uri: str) -> str:
        tries.append(uri)
        if uri == "s3://lab/refused":
            raise Refused("OutputFailed", "no")
        if len(tries) < 4 or uri == "s3://lab/away":
            raise OSError(5, f"cannot write {uri}")
        return "tag"

    def deliver_to(uri: str) -> list[object]:
        tries.clear()
        with Delivery(places, send, {}) as delivery:
            delivery.deliver(output(f"{places.room}/d/f0", Path("x")) | {"uri": uri, "local": None})
            delivery.flush()
        return [each["version"] for each in delivery.files]

    assert (deliver_to("s3://lab/late"), len(tries)) == (["tag"], 4)
    for uri, why, count in (
        ("s3://lab/away", "cannot write s3://lab/away", 4),
        ("s3://lab/refused", "no", 1),
    ):
        with pytest.raises(Refused) as refused:
            deliver_to(uri)
        assert (refused.value.args, len(tries)) == (("OutputFailed", why), count)


def test_a_failed_task_writes_no_more_to_a_store_that_has_failed(tmp_path: Path) -> None:
    """Of 40 objects eight were on their way; the one in another store comes."""
    places, tries = left(tmp_path, 41), []

    def send(_: int, uri: str) -> str:
        tries.append(uri)
        if uri.startswith("s3://away/"):
            raise OSError(5, f"cannot write {uri}")
        return "tag"

    with Delivery(places, send, {}, whole=False) as delivery:
        for number in range(41):
            uri = f"s3://{'away' if number < 40 else 'lab'}/{number}"
            delivery.deliver(output(f"{places.room}/d/f{number}", Path("x")) | {"uri": uri, "local": None})
        with pytest.raises(Refused, match="cannot write s3://away/0"):
            delivery.flush()
    assert sorted(tries) == [*(f"s3://away/{number}" for number in range(8)), "s3://lab/40"]
    assert [each["uri"] for each in delivery.files] == ["s3://lab/40"]


def run(program: str) -> tuple[str, str]:
    """Run a program that imports the runner. Returns what it wrote."""
    folder = Path(flowsched.__file__).parent / "cluster/local"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("size", [1, 12 << 20])
def test_a_check_waits_for_no_upload(tmp_path: Path, store: type[Store], size: int) -> None:
    """30 files go to a store that takes the requests and does not answer: a bucket is found all the same."""
    (tmp_path / "f").write_bytes(bytes(size))
    store.stuck = True
    program = f"""
import os, threading, time
from runner import uploads
uploads._CHECK_S = 30.0
uploader = uploads.Uploader()
asking = uploads.Uploads(uploader.mailbox, {{"env": {{}}, "path": [], "options": {{}}}})
file = os.open("{tmp_path}/f", os.O_RDONLY)
if os.fork() == 0:
    for number in range(30):
        threading.Thread(target=asking.write, args=(file, f"s3://lab/{{number}}"), daemon=True).start()
    time.sleep(3)
    began = time.monotonic()
    asking.check("s3://lab/x")
    print("late" if time.monotonic() - began > 20 else "in time", flush=True)
    os._exit(0)
uploads.select.select([uploader], [], [])
uploader.start([])
os.wait()
os.kill(uploader.pid, 9)
"""
    assert run(program) == ("in time\n", "")
    store.killed.set()


@pytest.mark.parametrize("until_s", [0.0, 0.5])
def test_a_full_mailbox_holds_no_check(until_s: float) -> None:
    """No process receives: the check ends when its patience does, and the failure of a write names the object."""
    program = f"""
import math, time
from runner import uploads
uploads._CHECK_S = {until_s}
uploader = uploads.Uploader()
asking = uploads.Uploads(uploader.mailbox, {{"env": {{}}, "path": [], "options": {{}}}})
try:
    while True:
        uploader.mailbox.send(b"!")
except BlockingIOError:
    asking.check("s3://lab/x")
uploads.math.inf = time.monotonic() + {until_s}
try:
    asking.write(0, "s3://lab/y")
except OSError as error:
    print(error.strerror)
"""
    assert run(program) == ("cannot write s3://lab/y: Resource temporarily unavailable\n", "")


async def test_a_process_that_was_stopped_goes_on(real_world: RealWorld, store: type[Store]) -> None:
    """A task of the same user can stop it: the object comes all the same."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([writes("a", "echo yes > /out/f")])
    await asyncio.to_thread(store.came.wait, 60)
    (runner,) = lives.living_runners(real_world.root)
    (uploads,) = set(children(runner)) - {lives.runner_of(real_world.attempt("a"))}
    os.kill(uploads, signal.SIGSTOP)
    store.killed.set()
    async with asyncio.timeout(30):
        end = await ear.ended("a")
    assert (end.exit_code, end.message, store.objects) == (0, "", {"/lab/mine/a": b"yes\n"})


def test_a_write_whose_process_dies_is_asked_for_once_more() -> None:
    """Also for a failed task, which waits for no store that is away; if that one dies too, the failure names the object."""
    program = """
import os
from runner import uploads
uploads._APART_S = 0.0
uploads.Stores.write = lambda *_: os._exit(0)
uploader = uploads.Uploader()
asking = uploads.Uploads(uploader.mailbox, {"env": {}, "path": [], "options": {}})
if os.fork() == 0:
    try:
        asking.write(0, "s3://lab/x")
    except OSError as error:
        print(error.strerror, flush=True)
    os._exit(0)
for _ in range(2):
    uploads.select.select([uploader], [], [])
    assert uploader.start([])
    os.wait()
os.wait()
"""
    assert run(program) == ("cannot write s3://lab/x: the process that writes has died\n", "")


def test_parts_of_all_files_share_their_room(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four files of six parts are written at a time, and never more than eight parts are in memory."""
    (tmp_path / "f").write_bytes(bytes(42 << 20))
    stores, lock, now, most = Stores({"options": {}}), threading.Lock(), [0], [0]
    call_s3 = s3fs.S3FileSystem.call_s3

    def counted(self: s3fs.S3FileSystem, method: str, *args: Any, **more: Any) -> Any:
        step = method == "upload_part"
        with lock:
            now[0] += step
            most[0] = max(most[0], now[0])
        try:
            return call_s3(self, method, *args, **more)
        finally:
            with lock:
                now[0] -= step

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", counted)
    with open(tmp_path / "f", "rb") as file, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: stores.write(file.fileno(), f"s3://{bucket}/{n}"), range(4)))
    assert 4 < most[0] <= 8


def test_the_process_ends_when_no_request_comes() -> None:
    """Another request starts another one. A scheme that has no package is refused, in words."""
    program = """
import os
from runner import uploads
uploads._IDLE_S, uploads._TICK_S, uploads._APART_S = 0.1, 0.05, 0.0
uploader = uploads.Uploader()
asking = uploads.Uploads(uploader.mailbox, {"env": {}, "path": [], "options": {}})
for _ in range(2):
    if os.fork() == 0:
        try:
            asking.check("no-such-scheme://x")
        except uploads.Refused as refused:
            print(refused.args[1].partition(" (")[0], flush=True)
        os._exit(0)
    uploads.select.select([uploader], [], [])
    assert uploader.start([])
    for _ in range(2):
        os.wait()
"""
    why = "cannot write no-such-scheme://x: fsspec knows no such scheme, or its package is missing\n"
    assert run(program) == (2 * why, "")
