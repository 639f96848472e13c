"""Logs of containers, as runtimes write them and kubelets rotate them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.agent.agent import FOLLOW_LOGS_S
from flowsched.cluster.kubernetes.agent.logs import Reader
from flowsched.cluster.kubernetes.objects.names import pod_name
from tests.kubernetes.agent_world import Node, Reply, Served, order, until

UID = "0f1e2d3c-0000-4000-8000-000000000001"
POD = {"namespace": "flowsched", "pod": "fs-wf-s-0-1", "uid": UID}


class Container:
    """A container's folder of logs, and what its runtime and its kubelet do with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.time = 0

    def write(self, stream: str, text: str, tag: str = "F") -> None:
        self.time += 1
        with open(self.folder / "0.log", "a") as file:
            file.write(f"2026-07-01T00:00:00.{self.time:09d}Z {stream} {tag} {text}\n")

    def append(self, raw: bytes, name: str = "0.log") -> None:
        with open(self.folder / name, "ab") as file:
            file.write(raw)

    def rotate(self, stamp: str) -> None:
        (self.folder / "0.log").rename(self.folder / f"0.log.{stamp}")
        (self.folder / "0.log").touch()

    def compress(self, stamp: str) -> None:
        plain = self.folder / f"0.log.{stamp}"
        (self.folder / f"0.log.{stamp}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(Node(tmp_path / "n")) as served:
        yield served


def container(node: Served, name: str = "task") -> Container:
    return Container(node.node.folder / "logs" / f"flowsched_fs-wf-s-0-1_{UID}" / name)


async def read(node: Served, **params: object) -> Reply:
    return await node.call(
        "GET", "/v1/logs", params={**POD, **{key: str(value) for key, value in params.items()}}
    )


async def test_what_a_program_wrote_comes_as_it_wrote_it(node: Served) -> None:
    """Each stream for itself; a long line is put together again; a line without a text is a line."""
    task = container(node)
    task.write("stdout", "one")
    task.write("stderr", "err")
    task.write("stdout", "long ", "P")
    task.write("stderr", "between", "P:other")
    task.write("stdout", "line, with  spaces ", "F")
    task.write("stdout", "")
    task.write("stderr", "!", "F")
    assert (await read(node, stream="stdout")).body == b"one\nlong line, with  spaces \n\n"
    assert (await read(node, stream="stderr")).body == b"err\nbetween!\n"


async def test_a_piece_from_anywhere(node: Served) -> None:
    """Offset and limit count the program's bytes."""
    task = container(node)
    for number in range(10):
        task.write("stdout", f"{number:03d}")
        task.write("stderr", "noise")
    assert (await read(node, offset=6, limit=5)).body == b"1\n002"
    reply = await read(node, offset=38, limit=100)
    assert (reply.body, reply.headers["X-Flowsched-Offset"]) == (b"9\n", "38")
    assert (await read(node, offset=40, limit=100)).body == b""
    assert (await read(node, offset=10_000, limit=100)).body == b""


async def test_a_line_that_is_half_written_is_left_for_later(node: Served) -> None:
    """The runtime is in the midst of it."""
    task = container(node)
    task.write("stdout", "one")
    task.append(b"2026-07-01T00:00:01.0Z stdout F tw")
    assert (await read(node)).body == b"one\n"
    task.append(b"o\n")
    assert (await read(node, offset=4)).body == b"two\n"


async def test_lines_of_no_format_are_passed_over(node: Served) -> None:
    """Whatever else is in the file: the rest can be read."""
    task = container(node)
    task.write("stdout", "one")
    task.append(b"\n\xff\xfe\nstdout\n{json}\n a b\n")
    task.write("stdout", "two")
    assert (await read(node)).body == b"one\ntwo\n"


async def test_a_rotated_file_that_cannot_be_opened_hides_no_other(node: Served) -> None:
    """The agent follows no link in a folder of logs, and opens nothing but files."""
    task = container(node)
    task.write("stdout", "one")
    task.rotate("20260701-000002")
    task.write("stdout", "two")
    (task.folder / "0.log.20260701-000001").symlink_to("0.log")
    (task.folder / "0.log.20260701-000003").mkdir()
    assert (await read(node)).body == b"one\ntwo\n"


async def test_a_container_of_which_no_log_can_be_opened_has_none(node: Served) -> None:
    """Two links and no file: that is an error, and no empty log."""
    task = container(node)
    for day in (1, 2):
        (task.folder / f"0.log.2026070{day}-000001").symlink_to("elsewhere")
    assert (await read(node)).status == 503


async def test_a_log_goes_on_through_its_rotations(node: Served) -> None:
    """Plain, compressed, and while it is followed: offsets stay true."""
    task = container(node)
    task.write("stdout", "a" * 10)
    task.rotate("20260701-000001")
    task.write("stdout", "b" * 10)
    assert (await read(node, offset=5, limit=10)).body == b"aaaaa\nbbbb"
    task.rotate("20260701-000002")
    task.compress("20260701-000001")
    task.write("stdout", "c" * 10)
    assert (await read(node)).body == b"a" * 10 + b"\n" + b"b" * 10 + b"\n" + b"c" * 10 + b"\n"
    assert (await read(node, offset=3, limit=4)).body == b"aaaa"
    assert (await read(node, offset=25, limit=5)).body == b"ccccc"


async def test_what_a_kubelet_has_removed_is_skipped_and_said(node: Served) -> None:
    """The oldest file is gone: what is left keeps its offsets, and the answer says where it begins."""
    task = container(node)
    task.write("stdout", "a" * 9)
    task.rotate("20260701-000001")
    task.write("stdout", "b" * 9)
    assert len((await read(node)).body) == 20
    (task.folder / "0.log.20260701-000001").unlink()
    reply = await read(node, offset=5)
    assert (reply.body, reply.headers["X-Flowsched-Offset"]) == (b"b" * 9 + b"\n", "10")


async def test_a_file_that_is_rotated_but_still_written_to(node: Served) -> None:
    """Between the rename and the runtime's new file its length is not taken for its last."""
    task = container(node)
    task.write("stdout", "a" * 9)
    (task.folder / "0.log").rename(task.folder / "0.log.20260701-000001")
    assert (await read(node)).body == b"a" * 9 + b"\n"
    task.append(b"2026-07-01T00:00:01.0Z stdout F late\n", "0.log.20260701-000001")
    task.write("stdout", "b")
    assert (await read(node)).body == b"a" * 9 + b"\nlate\nb\n"


async def test_whether_more_may_come(node: Served) -> None:
    """While the pod's volumes are there, and while there is more than was asked for."""
    task = container(node)
    task.write("stdout", "0123456789")
    assert (await read(node)).headers["X-Flowsched-More"] == "0"
    assert (await read(node, limit=5)).headers["X-Flowsched-More"] == "1"
    node.node.pod(UID)
    assert (await read(node)).headers["X-Flowsched-More"] == "1"


async def test_a_container_that_has_written_nothing(node: Served) -> None:
    """No file, no folder, no pod: no bytes."""
    container(node)
    for name in ("task", "stage-in"):
        reply = await read(node, container=name)
        assert (reply.status, reply.body, reply.headers["X-Flowsched-More"]) == (200, b"", "0")


@pytest.mark.parametrize(
    "params",
    [
        {"namespace": ".."}, {"namespace": "a/b"}, {"namespace": "A"}, {"namespace": ""}, {"pod": "../../x"}, {"pod": ""},
        {"pod": "a_b"}, {"uid": ".."}, {"uid": "a/../b"}, {"uid": ""}, {"container": ".."}, {"container": "../../etc"},
        {"container": ""}, {"stream": "stdin"}, {"stream": "../x"},
    ],
)  # fmt: skip
async def test_names_that_lead_elsewhere(node: Served, params: dict[str, str]) -> None:
    """No name is a path."""
    assert (await read(node, **params)).status == 400
    kept = {"pods": [{**POD, "name": "n", **{k: v for k, v in params.items() if k in POD}}]}
    if set(params) <= set(POD):
        assert (await node.call("POST", "/v1/logs/keep", json=kept)).status == 400


@pytest.mark.parametrize("name", ["0.log", "0.log.20260701-000001", "0.log.20260701-000001.gz"])
async def test_a_log_that_is_a_link_is_not_read(node: Served, tmp_path: Path, name: str) -> None:
    """Runtimes of CRI write ordinary files."""
    (tmp_path / "secret").write_text("2026-07-01T00:00:01.0Z stdout F secret\n")
    task = container(node)
    (task.folder / name).symlink_to(tmp_path / "secret")
    assert (await read(node)).status == 503


async def test_kept_logs_outlive_their_pod_and_the_agent(tmp_path: Path) -> None:
    """All containers, both streams, by the pod and by the engine's name of it; asking twice does no harm."""
    place = Node(tmp_path / "n")
    async with Served(place) as node:
        task, stage_in = container(node), container(node, "stage-in")
        for number in range(3):
            task.write("stdout", f"out {number}")
        task.write("stderr", "err")
        task.rotate("20260701-000001")
        task.compress("20260701-000001")
        task.write("stdout", "end")
        stage_in.write("stderr", "done")
        asked = {"pods": [{**POD, "name": "fs-wf-s-0-1"}, {**POD, "uid": "none", "name": "other"}]}
        for _ in range(2):
            reply = await node.call("POST", "/v1/logs/keep", json=asked)
            assert reply.json == {"kept": [UID], "missing": ["none"]}
        shutil.rmtree(task.folder.parent)
    async with Served(place) as node:
        assert (await read(node)).body == b"out 0\nout 1\nout 2\nend\n"
        reply = await read(node, offset=6, limit=6)
        assert (reply.body, reply.headers["X-Flowsched-More"]) == (b"out 1\n", "1")
        assert (await read(node, stream="stderr")).body == b"err\n"
        assert (await read(node, container="stage-in", stream="stderr")).body == b"done\n"
        assert (await read(node, container="other")).body == b""
        named = await node.call("GET", "/v1/logs", params={"name": "fs-wf-s-0-1", "container": "task"})
        assert named.body == b"out 0\nout 1\nout 2\nend\n"
        assert (await node.call("POST", "/v1/logs/keep", json=asked)).json["kept"] == [UID]


async def test_kept_logs_keep_their_offsets(node: Served) -> None:
    """Though their beginning was gone when they were kept."""
    task = container(node)
    task.write("stdout", "a" * 9)
    task.rotate("20260701-000001")
    task.write("stdout", "b" * 9)
    assert len((await read(node)).body) == 20
    (task.folder / "0.log.20260701-000001").unlink()
    await node.call("POST", "/v1/logs/keep", json={"pods": [{**POD, "name": "n"}]})
    shutil.rmtree(task.folder.parent)
    reply = await read(node, offset=3)
    assert (reply.body, reply.headers["X-Flowsched-Offset"]) == (b"b" * 9 + b"\n", "10")
    assert (await read(node, offset=15)).body == b"bbbb\n"


async def test_kept_logs_expire(tmp_path: Path) -> None:
    """By age, on demand, and the oldest first where they take too much room."""
    place = Node(tmp_path / "n")
    async with Served(place) as node:
        for number in range(3):
            uid = f"uid-{number}"
            folder = place.folder / "logs" / f"flowsched_p_{uid}"
            Container(folder / "task").write("stdout", "x" * 99)
            pods = [{"namespace": "flowsched", "pod": "p", "uid": uid, "name": uid}]
            await node.call("POST", "/v1/logs/keep", json={"pods": pods})
        assert node.agent.logs.expire(0, limit_bytes=250) == 1
        left = [path.name for path in (place.folder / "state" / "logs").iterdir()]
        assert sorted(left) == ["uid-1", "uid-2"]
        assert (await node.call("DELETE", "/v1/logs", params={"before_ms": "1"})).json == {"removed": 0}
        assert (await node.call("DELETE", "/v1/logs", params={"before_ms": str(1 << 60)})).json == {
            "removed": 2
        }
        assert list((place.folder / "state" / "logs").iterdir()) == []


@pytest.mark.parametrize("rotated", [False, True])
async def test_logs_of_a_pod_that_is_deleted_by_others(tmp_path: Path, rotated: bool) -> None:
    """The agent holds them open from the pod's first request on, again after its restart, and keeps them once they are removed."""
    place = Node(tmp_path / "n")
    async with Served(place) as node:
        place.pod(UID)
        assert (await node.inputs(UID, order())).status == 200
    async with Served(place) as node:
        task, step = container(node), container(node, "step-0")
        step.write("stdout", "first step")
        task.write("stdout", "one")
        await until(lambda: node.agent.logs.holds(UID) == {"task", "step-0"})
        if rotated:
            task.rotate("20260701-000001")
            task.compress("20260701-000001")
        task.write("stdout", "two")
        await asyncio.sleep(3 * FOLLOW_LOGS_S)
        task.write("stdout", "last words")
        shutil.rmtree(task.folder.parent)
        whole = b"first step\none\ntwo\nlast words\n"
        assert (await read(node)).body + (await read(node, offset=11)).body == whole
        await until(lambda: (place.folder / "state" / "logs" / UID).exists())
        shutil.rmtree(place.folder / "pods" / UID)
        reply = await read(node, offset=4)
        assert (reply.body, reply.headers["X-Flowsched-More"]) == (whole[4:], "0")
        named = await node.call("GET", "/v1/logs", params={"name": "fs-wf-s-0-1", "container": "task"})
        assert named.body == whole
        assert node.agent.logs.holds(UID) == set()


async def test_logs_of_a_task_without_stage_in(tmp_path: Path) -> None:
    """The agent finds the task's pod by itself, and its log by the engine's name, from which the pod's name was made."""
    place = Node(tmp_path / "n")
    name = pod_name("fs-w1-Align-0-1")
    assert name != "fs-w1-Align-0-1"
    async with Served(place) as node:
        logs = place.folder / "logs"
        task = Container(logs / f"flowsched_{name}_{UID}" / "task")
        other = Container(logs / "flowsched_db-0_0f1e2d3c-0000-4000-8000-000000000002" / "db")
        task.write("stdout", "last words")
        other.write("stdout", "not ours")
        await until(lambda: node.agent.logs.holds(UID) == {"task"})
        shutil.rmtree(task.folder.parent)
        shutil.rmtree(other.folder.parent)
        await until(lambda: (place.folder / "state" / "logs" / UID).exists())
        named = await node.call("GET", "/v1/logs", params={"name": "fs-w1-Align-0-1", "container": "task"})
        assert named.body == b"last words\n"
        assert os.listdir(place.folder / "state" / "logs") == [UID]


async def test_files_that_were_rotated_away_are_let_go(tmp_path: Path) -> None:
    """A held file keeps its room on the disk: of a pod that writes gigabytes no more is held than its kubelet keeps."""
    place = Node(tmp_path / "n")
    async with Served(place) as node:
        place.pod(UID)
        await node.inputs(UID, order())
        task = container(node)
        task.write("stdout", "old")
        old = (task.folder / "0.log").stat().st_ino
        await until(lambda: old in open_inodes())
        task.rotate("20260701-000001")
        task.write("stdout", "new")
        (task.folder / "0.log.20260701-000001").unlink()
        await until(lambda: old not in open_inodes())
        assert (task.folder / "0.log").stat().st_ino in open_inodes()


def open_inodes() -> set[int]:
    """The inodes of all files that this process has open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found.add(os.fstat(int(name)).st_ino)
    return found


_LINES = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]), st.sampled_from(["P", "F"]), st.text("ab \t%", max_size=8), st.booleans()
    ),
    max_size=30,
)  # fmt: skip


@given(_LINES, st.integers(0, 120), st.integers(1, 60), st.integers(0, 3))
def test_any_piece_of_any_log(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str, str, bool]],
    offset: int,
    limit: int,
    read_at: int,
) -> None:
    """However it was rotated and compressed, and however it was read before: bytes `offset` to `offset + limit`."""
    box = Container(tmp_path_factory.mktemp("log") / "task")
    reader = Reader()
    whole = b""
    for number, (stream, tag, text, rotated) in enumerate(lines):
        box.write(stream, text, tag)
        if stream == "stdout":
            whole += text.encode() + (b"\n" if tag == "F" else b"")
        if read_at and number % read_at == 0:
            assert reader.read(box.folder, "stdout", 0, 10_000).data == whole
        if rotated:
            box.rotate(f"20260701-{number:06d}")
            if number % 2:
                box.compress(f"20260701-{number:06d}")
    assert reader.read(box.folder, "stdout", offset, limit).data == whole[offset : offset + limit]


def test_a_follower_of_a_long_log_reads_each_byte_about_once(tmp_path: Path) -> None:
    """20 MB in pieces of 64 kB: the pieces make the whole, and marks keep the reader from starting over."""
    box = Container(tmp_path / "task")
    with open(box.folder / "0.log", "w") as file:
        for number in range(200_000):
            file.write(f"2026-07-01T00:00:00.{number:09d}Z stdout F {number:060d}\n")
    whole = b"".join(b"%060d\n" % number for number in range(200_000))
    reader = Reader()
    got = b""
    while piece := reader.read(box.folder, "stdout", len(got), 65_536).data:
        got += piece
    assert got == whole
    (marks,) = reader._marks.values()
    (points,) = marks.points.values()
    assert max(after[1] - before[1] for before, after in itertools.pairwise(points)) < 600_000
