"""Inputs into pods and outputs out of them: real agents over folders as a kubelet lays them out."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.cluster.kubernetes import orders, packing
from flowsched.cluster.kubernetes.agent.ledger import Ledger
from flowsched.cluster.kubernetes.agent_keys import bearer_of, signing_key_of
from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.kubernetes.orders import BadOrder
from flowsched.cluster.local.runner import uploads
from flowsched.cluster.local.runner.trees import file_version
from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.origins import Origins
from flowsched.executor.datasets import uri_of, versioned
from flowsched.executor.protocol import Fingerprint
from tests.kubernetes.agent_world import (
    KEY,
    PATIENCE_S,
    Node,
    Reply,
    Served,
    order,
    reads,
    several,
    signed,
    until,
    writes,
)
from tests.object_store import object_store

X = "flowsched:wf/a/0/1/x"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def node(stack: AsyncExitStack, tmp_path: Path) -> Served:
    """One node and its agent."""
    (only,) = await several(stack, tmp_path, 1)
    return only


# --- inputs --------------------------------------------------------------------------------------------------


async def test_an_input_is_a_hard_link_into_the_cache(node: Served) -> None:
    """Where the order says, readable for everybody; its bytes were here already, and no byte was copied."""
    cached = node.put(X, b"12345")
    uid = node.node.pod()
    reply = await node.inputs(uid, order(inputs=[reads(X, "data/x.bam")]))
    assert (reply.status, reply.json) == (200, {"lost": [], "bytes_local": 5, "bytes_moved": 0})
    linked = node.node.inputs(uid) / "data" / "x.bam"
    assert linked.samefile(cached)
    assert stat.S_IMODE(linked.stat().st_mode) == 0o444
    assert stat.S_IMODE(linked.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
async def test_where_links_are_refused_inputs_are_copied(
    stack: AsyncExitStack, tmp_path: Path, number: int
) -> None:
    """Another mount, a file system without links, a file with too many."""

    def link(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    node = await stack.enter_async_context(Served(Node(tmp_path / "n"), link=link))
    cached = node.put(X, b"12345")
    os.utime(cached, (1_000_000_000, 1_000_000_000))
    uid = node.node.pod()
    assert (await node.inputs(uid, order(inputs=[reads(X, "x")]))).status == 200
    copied = node.node.inputs(uid) / "x"
    assert not copied.samefile(cached)
    assert (copied.read_bytes(), stat.S_IMODE(copied.stat().st_mode)) == (b"12345", 0o444)
    assert copied.stat().st_mtime == 1_000_000_000


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
async def test_a_cache_on_another_file_system(stack: AsyncExitStack, tmp_path: Path) -> None:
    """The real EXDEV, both ways: an input is copied there, an output is copied back."""
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    with _folder_in_memory() as memory:
        node = Node(tmp_path / "n")
        served = Served(node, cache=memory / "cache", state=memory / "state", kept_logs=memory / "logs")
        async with served:
            served.put(X, b"12345")
            uid = node.pod()
            told = order(inputs=[reads(X, "x")], outputs=[writes("out")])
            assert (await served.inputs(uid, told)).status == 200
            assert (node.inputs(uid) / "x").read_bytes() == b"12345"
            (node.work(uid) / "out").write_bytes(b"abc")
            reply = await served.outputs(uid, told)
            assert reply.json["outputs"][0]["size_bytes"] == 3
            got = await served.call("GET", "/v1/datasets", params={"uri": "flowsched:wf/s/0/1/out"})
            assert got.body == b"abc"


async def test_a_folder_is_a_tree_of_links(node: Served, tmp_path: Path) -> None:
    """Folders are made, files are linked, links stay links."""
    tree = tmp_path / "shared" / "index"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_bytes(b"1")
    (tree / "l").symlink_to("sub/f")
    uid = node.node.pod()
    reply = await node.inputs(uid, order(inputs=[reads(tree.as_uri(), "idx/index")]))
    assert reply.json == {"lost": [], "bytes_local": 0, "bytes_moved": 1}
    laid = node.node.inputs(uid) / "idx" / "index"
    assert (laid / "sub" / "f").samefile(node.agent.cache.home(tree.as_uri()) / "index" / "sub" / "f")
    assert os.readlink(laid / "l") == "sub/f"


async def test_a_manifest_names_files_that_the_task_can_read(node: Served) -> None:
    """In shard order, each in a folder of its own, since they may all have one name; a line is a line whatever the name."""
    uris = [f"flowsched:wf/a/{shard}/1/x" for shard in range(3)]
    for shard, uri in enumerate(uris):
        node.put(uri, str(shard).encode(), "calls.vcf" if shard < 2 else "a\nb")
    uid = node.node.pod()
    given = {"name": "calls", "uris": uris, "manifest": True, "path": "calls.manifest"}
    reply = await node.inputs(uid, order(inputs=[given]), inputs_path="/flowsched/inputs")
    assert reply.status == 200
    text = (node.node.inputs(uid) / "calls.manifest").read_text()
    assert text.splitlines() == [
        "/flowsched/inputs/calls.d/0/calls.vcf",
        "/flowsched/inputs/calls.d/1/calls.vcf",
        "/flowsched/inputs/calls.d/2/a_b",
    ]
    for line, content in zip(text.splitlines(), "012", strict=True):
        assert (node.node.inputs(uid) / line.removeprefix("/flowsched/inputs/")).read_text() == content


async def test_what_a_task_writes_to_is_made_as_its_volume_is(node: Served) -> None:
    """Folders of outputs, tmp and the hostfile: the group's to write to, with its set-gid bit, as a kubelet gives it."""
    uid = node.node.pod()
    work = node.node.work(uid)
    if os.geteuid() == 0:
        os.chown(work, 0, 4711)
        work.chmod(0o2775)
    asked = order(
        folders=["a/b", "c", "."], gang={"runs": [["w", 0, 2]], "service": "g.lab.svc", "slots": 2, "port": 7}
    )
    assert (await node.inputs(uid, asked)).status == 200
    wanted = stat.S_IMODE(work.stat().st_mode)
    made = {name: work / name for name in ("a", "a/b", "c", "tmp")}
    assert {name: stat.S_IMODE(path.stat().st_mode) for name, path in made.items()} == dict.fromkeys(
        made, wanted
    )
    assert {path.stat().st_gid for path in made.values()} == {work.stat().st_gid}
    assert (work / "hostfile").read_text() == "w-0.g.lab.svc slots=2\nw-1.g.lab.svc slots=2\n"
    assert json.loads((work / "cluster.json").read_text()) == {"w": ["w-0.g.lab.svc:7", "w-1.g.lab.svc:7"]}
    modes = {stat.S_IMODE((work / name).stat().st_mode) for name in ("hostfile", "cluster.json")}
    assert modes == {wanted & 0o666}


FURNISH = """
    import os, sys
    from flowsched.cluster.kubernetes.agent import pods
    from flowsched.cluster.kubernetes.orders import Gang, Order
    pods.furnish(os.open(sys.argv[1], os.O_RDONLY), Order("p", (), (), ("a/b",), Gang((("w", 0, 1),), "", 1, 7), 0))
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_an_agent_with_few_capabilities_keeps_the_set_gid_bit(tmp_path: Path) -> None:
    """Those that the DaemonSet has: no CAP_FSETID among them, without which the kernel drops the bit in silence."""
    os.chown(tmp_path, 4712, 4711)
    tmp_path.chmod(0o2775)
    few = ["setpriv", "--bounding-set=-all,+chown,+dac_override,+fowner"]
    subprocess.run(
        [*few, sys.executable, "-c", textwrap.dedent(FURNISH), str(tmp_path)], check=True, timeout=200
    )
    made = [(tmp_path / name).stat() for name in ("a", "a/b", "tmp", "hostfile")]
    assert [stat.S_IMODE(each.st_mode) for each in made] == [0o2775, 0o2775, 0o2775, 0o664]
    assert {(each.st_uid, each.st_gid) for each in made} == {(4712, 4711)}


async def test_the_first_to_use_what_was_brought_is_charged(node: Served, tmp_path: Path) -> None:
    """Bytes that travelled are charged once; asking again does not change what a pod was told."""
    file = tmp_path / "shared" / "x"
    file.parent.mkdir()
    file.write_bytes(b"12345")
    await node.bring({"uri": str(file)})
    first, second = node.node.pod(name="one"), node.node.pod(name="two")
    one, two = (order(pod, inputs=[reads(str(file), "x")]) for pod in ("one", "two"))
    told = [await node.inputs(first, one), await node.inputs(second, two), await node.inputs(first, one)]
    assert [(reply.json["bytes_local"], reply.json["bytes_moved"]) for reply in told] == [
        (0, 5),
        (5, 0),
        (0, 5),
    ]


async def test_a_missing_input_is_fetched_from_its_origin(node: Served, tmp_path: Path) -> None:
    """The step waits for it; the bytes are charged to the pod."""
    file = tmp_path / "shared" / "x"
    file.parent.mkdir()
    file.write_bytes(b"12345")
    uid = node.node.pod()
    reply = await node.inputs(uid, order(inputs=[reads(file.as_uri(), "x")]))
    assert reply.json == {"lost": [], "bytes_local": 0, "bytes_moved": 5}
    assert (node.node.inputs(uid) / "x").read_bytes() == b"12345"


async def test_an_input_that_a_workflow_made_has_no_origin(node: Served) -> None:
    """It is lost, and so is what its origin does not have; nothing is laid out, and nothing is in use for that."""
    node.put(X, b"1")
    uid = node.node.pod()
    inputs = [reads("flowsched:gone", "g"), reads("file:///no/such", "n", "n"), reads(X, "x", "x")]
    reply = await node.inputs(uid, order(inputs=inputs))
    assert (reply.status, reply.json["lost"]) == (200, ["flowsched:gone", "file:///no/such"])
    assert "flowsched:gone is not on this node" in reply.json["message"]
    assert list(node.node.inputs(uid).iterdir()) == []
    assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 204


async def test_an_input_on_its_way_from_a_peer_is_waited_for(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Though nobody could fetch it: the transfer that the service ordered is joined."""
    first, second = await several(stack, tmp_path, 2, nic_rate=400_000)
    first.put(X, bytes(200_000))
    peer = {"node": "node-0", "url": first.url}
    await second.call("POST", "/v1/transfers", json={"orders": [{"uri": X, "source": peer}]})
    uid = second.node.pod()
    reply = await second.inputs(uid, order(inputs=[reads(X, "x")]))
    assert reply.json == {"lost": [], "bytes_local": 0, "bytes_moved": 200_000}


async def test_a_step_is_not_kept_waiting_for_long(stack: AsyncExitStack, tmp_path: Path) -> None:
    """It is told that the agent is at it, asks again, and the origin is asked once."""
    go = asyncio.Event()
    asked = 0

    async def slow(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await go.wait()
        return web.Response(body=b"abc")

    app = web.Application()
    app.router.add_get("/x", slow)
    origin = await stack.enter_async_context(TestServer(app))
    node = await stack.enter_async_context(Served(Node(tmp_path / "n"), long_poll_s=0.1))
    uid = node.node.pod()
    told = order(inputs=[reads(str(origin.make_url("/x")), "x")])
    for _ in range(2):
        reply = await node.inputs(uid, told)
        assert (reply.status, reply.json) == (202, {"pending": True})
    go.set()
    while (reply := await node.inputs(uid, told)).status == 202:
        pass
    assert reply.json == {"lost": [], "bytes_local": 0, "bytes_moved": 3}
    assert asked == 1


# --- who may ask ---------------------------------------------------------------------------------------------


async def test_an_order_that_was_not_signed(node: Served) -> None:
    """Another key, another order, no signature: nothing is done, and nothing is told of what is there. The answer says what helps
    where the key was changed while the pod ran.
    """
    uid = node.node.pod()
    good = signed(order(inputs=[reads("flowsched:gone", "g")]))
    other = packing.pack(order(inputs=[reads("flowsched:other", "g")]))
    forged = [
        signed(order(), b"another-key-of-the-agents"),
        good | {"order": other},
        good | {"signature": ""},
        good | {"signature": good["signature"][:-1]},
        good | {"signature": good["signature"].upper()},
        good | {"signature": "ü\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")},
        good | {"order": good["order"] + " "},
    ]
    for body in forged:
        for what in ("inputs", "outputs", "objects"):
            reply = await node.call("POST", f"/v1/pods/{uid}/{what}", key=None, json=body)
            assert reply.status == 403, (body, reply.body)
            assert reply.json["message"].endswith("let flowsched run the task again")
    assert list(node.node.inputs(uid).iterdir()) == []
    assert list(node.node.work(uid).iterdir()) == []


async def test_a_pod_has_one_order_and_an_order_one_pod(node: Served) -> None:
    """Whoever learns of a pod's uid, or of another pod's order, can have nothing done with it."""
    mine, victim = node.node.pod(name="mine"), node.node.pod(name="victim")
    (node.node.work(victim) / "secret").write_text("s")
    assert (await node.inputs(victim, order("victim"))).status == 200
    steals = order("mine", outputs=[writes("secret")])
    assert (await node.outputs(victim, steals)).status == 403
    assert (await node.inputs(mine, order("victim"))).status == 403
    assert (node.node.work(victim) / "secret").read_text() == "s"
    assert await node.replicas() == {}


@pytest.mark.parametrize(
    ("engine_name", "object_name", "status"),
    [
        ("fs-wf-s-0-1", "fs-wf-s-0-1", 200),
        ("fs-wf-s-0-1", "fs-wf-other-0-1", 403),
        ("fs-wf-Align_it-0-1", pod_name("fs-wf-Align_it-0-1"), 200),
    ],
)
async def test_an_order_is_only_good_for_the_pod_that_it_names(
    node: Served, engine_name: str, object_name: str, status: int
) -> None:
    """The kubelet has written down whose uid it is: an order of another pod is refused before anything is done."""
    uid = node.node.pod(name=object_name)
    (node.node.work(uid) / "o").write_text("x")
    told = order(engine_name, outputs=[writes("o")])
    assert (await node.inputs(uid, told)).status == status
    assert (await node.outputs(uid, told)).status == status


async def test_no_order_is_carried_out_before_the_pods_name_is_known(node: Served) -> None:
    """The kubelet has not written down whose uid it is: 404, which steps take for "ask again". Nothing is done."""
    uid = node.node.pod()
    named = node.node.folder / "logs" / f"flowsched_fs-wf-s-0-1_{uid}"
    named.rmdir()
    (node.node.work(uid) / "o").write_text("x")
    told = order(outputs=[writes("o")])
    assert (await node.inputs(uid, told)).status == 404
    assert (await node.outputs(uid, told)).status == 404
    assert await node.replicas() == {}
    named.mkdir()
    assert (await node.outputs(uid, told)).status == 200


async def test_an_expired_order_begins_nothing_but_ends_what_has_begun(tmp_path: Path) -> None:
    """A copy of an old order is refused (403); a task that ran past the end of its order is published all the same."""
    now = [1_000_000]
    async with Served(Node(tmp_path / "n"), clock=lambda: now[0]) as node:
        late, early = node.node.pod(name="late"), node.node.pod(name="early")
        orders_of = {
            uid: order(name, outputs=[writes("o", f"flowsched:{name}")], expires_ms=1_000_001)
            for uid, name in ((late, "late"), (early, "early"))
        }
        assert (await node.inputs(early, orders_of[early])).status == 200
        now[0] = 1_000_001
        (node.node.work(early) / "o").write_text("x")
        (node.node.work(late) / "o").write_text("x")
        refused = [await node.inputs(late, orders_of[late]), await node.outputs(late, orders_of[late])]
        assert [reply.status for reply in refused] == [403, 403]
        assert "expired 0 s ago" in refused[0].json["message"]
        assert (await node.outputs(early, orders_of[early])).status == 200
        assert list(await node.replicas()) == ["flowsched:early"]


async def test_the_secret_itself_signs_no_order_and_opens_no_route(node: Served) -> None:
    """Two keys are derived from it: neither stands for the other, nor does the secret stand for one of them."""
    uid = node.node.pod()
    text = packing.pack(order())
    for key in (KEY, bearer_of(KEY).encode(), bytes.fromhex(bearer_of(KEY))):
        body = {"order": text, "signature": orders.sign(key, text)}
        reply = await node.call("POST", f"/v1/pods/{uid}/inputs", key=None, json=body)
        assert reply.status == 403
    for given in (KEY.decode(), signing_key_of(KEY).hex()):
        headers = {"Authorization": f"Bearer {given}"}
        assert (await node.call("GET", "/v1/replicas", key=None, headers=headers)).status == 401


async def test_the_binding_of_pod_and_order_outlives_the_agent(tmp_path: Path) -> None:
    """It is on the disk."""
    place = Node(tmp_path / "n")
    uid = place.pod(name="one")
    async with Served(place) as before:
        assert (await before.inputs(uid, order("one"))).status == 200
    async with Served(place) as after:
        assert (await after.inputs(uid, order("two"))).status == 403
        assert (await after.inputs(uid, order("one"))).status == 200


async def test_pods_that_are_not_here(node: Served) -> None:
    """404, also for what can be no pod's uid; no folder appears."""
    for uid in ("none", "..", "%2e%2e", ".", "a%2Fb", "a%00b", "%2e%2e%2f%2e%2e", "x" * 300):
        for what in ("inputs", "outputs"):
            url = f"/v1/pods/{uid}/{what}"
            reply = await node.call("POST", url, key=None, json=signed(order(f"p-{uid}")))
            assert reply.status in (401, 404), (uid, reply.status)
    assert os.listdir(node.node.folder / "pods") == []


HOSTILE_PATHS = ["/etc/x", "../x", "a/../../x", "a/..", "", "a\0b", "n" * 256, "/".join("a" * 300), ".."]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_signed_paths_that_lead_out_are_refused_all_the_same(node: Served, path: str) -> None:
    """Should flowsched itself be led astray: inputs, outputs and folders stay in the pod's volumes."""
    node.put(X, b"x")
    uid = node.node.pod()
    before = sorted(str(found) for found in node.node.folder.rglob("*"))
    wrong = [
        order(inputs=[reads(X, path)]),
        order(outputs=[writes("x") | {"path": path}]),
        *([order(folders=[path])] if path else []),
    ]
    for told in wrong:
        assert (await node.inputs(uid, told)).status == 400
        assert (await node.outputs(uid, told)).status == 400
    assert sorted(str(found) for found in node.node.folder.rglob("*")) == before


@pytest.mark.parametrize("part", ["pod", "volumes", "kind", "volume", "inner"])
async def test_links_in_the_way_are_not_followed(node: Served, tmp_path: Path, part: str) -> None:
    """A link where a folder of the pod should be, wherever on the way: nothing is written through it."""
    node.put(X, b"x")
    uid = node.node.pod()
    inputs = node.node.inputs(uid)
    place = {
        "pod": node.node.folder / "pods" / uid,
        "volumes": node.node.folder / "pods" / uid / "volumes",
        "kind": inputs.parent,
        "volume": inputs,
        "inner": inputs / "data",
    }[part]
    if part != "inner":
        place.rename(tmp_path / "moved")
    else:
        (tmp_path / "moved").mkdir()
    place.symlink_to(tmp_path / "moved")
    before = sorted(str(found) for found in (tmp_path / "moved").rglob("*"))
    reply = await node.inputs(uid, order(inputs=[reads(X, "data/x")], folders=[]))
    assert reply.status == 409, reply.body
    if part == "inner" or part == "volume":
        assert sorted(str(found) for found in (tmp_path / "moved").rglob("*")) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"pod": 1}',
        "z:",
        "z:!!!",
        "z:AAAA",
        '{"pod":"p","inputs":[{"name":"a","uris":[],"manifest":false,"path":"x"}],"outputs":[],"folders":[],"gang":null}',
        '{"pod":"p","inputs":[{"name":"a","uris":["a\\n"],"manifest":false,"path":"x"}],"outputs":[],"folders":[],"gang":null}',
        '{"pod":"p","inputs":[{"name":"a","uris":["\\ud800"],"manifest":false,"path":"x"}],"outputs":[],"folders":[],"gang":null}',
        "[" * 100_000,
    ],
)
def test_orders_that_cannot_be_understood(text: str) -> None:
    """Each is refused as such, whoever signed it."""
    with pytest.raises(BadOrder):
        orders.read(text)


@pytest.mark.parametrize(
    "runs",
    [[], [["w", 0, 0]], [["w", 0, 2], ["w", 2, -1]], [["w", 0, (1 << 20) + 1]], [["w", 0]], [[1, 0, 1]]],
)
def test_an_order_names_a_gang_that_there_can_be(runs: list[object]) -> None:
    """An agent would write its lists: not of nobody, nor of a million members."""
    told = {"runs": runs, "service": "", "slots": 1, "port": 1}
    with pytest.raises(BadOrder):
        orders.read(packing.pack(order(gang=told)))


def test_a_packed_order_that_would_fill_the_memory_is_refused() -> None:
    """A bomb of 100 MB in 100 kB."""
    text = packing.pack({**order(), "pod": "0" * 100_000_000})
    assert len(text) < 200_000
    with pytest.raises(BadOrder, match="longer than"):
        orders.read(text)


def test_a_long_order_fits_into_a_variable() -> None:
    """10,000 shards in a manifest: 0.6 MB of JSON, less than the 128 KiB that Linux takes, and it reads as it was."""
    uris = [f"flowsched:germline-0123456789/call/{shard}/1/variants" for shard in range(10_000)]
    told = order(inputs=[{"name": "calls", "uris": uris, "manifest": True, "path": "calls.manifest"}])
    text = packing.pack(told)
    assert len(json.dumps(told)) > 500_000
    assert len(text) < 128 << 10
    assert orders.read(text).uris == tuple(uris)


# --- in use --------------------------------------------------------------------------------------------------


async def test_a_dataset_is_in_use_while_the_volumes_of_its_pod_are_there(tmp_path: Path) -> None:
    """409 until the kubelet has removed them, also across a restart of the agent."""
    place = Node(tmp_path / "n")
    uid = place.pod()
    async with Served(place) as node:
        node.put(X, b"12345")
        assert (await node.inputs(uid, order(inputs=[reads(X, "x")]))).status == 200
        assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 409
    async with Served(place) as node:
        assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 409
        place.remove(uid)
        assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 204
        assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 404
        assert await node.replicas() == {}
    assert place.half_made() == []


async def test_a_pod_that_gets_its_inputs_at_the_second_try_uses_them(node: Served) -> None:
    """What was let go of when one was lost is in use again."""
    node.put(X, b"1")
    uid = node.node.pod()
    told = order(inputs=[reads(X, "x"), reads("flowsched:y", "y", "y")])
    assert (await node.inputs(uid, told)).json["lost"] == ["flowsched:y"]
    node.put("flowsched:y", b"2")
    assert (await node.inputs(uid, told)).json["lost"] == []
    for uri in (X, "flowsched:y"):
        assert (await node.call("DELETE", "/v1/datasets", params={"uri": uri})).status == 409


async def test_a_pod_that_has_its_inputs_goes_on_using_them(node: Served) -> None:
    """Though it asks again, and one of them is not in the cache any more: somebody emptied that behind our back."""
    node.put(X, b"1")
    other = node.put("flowsched:y", b"2")
    uid = node.node.pod()
    told = order(inputs=[reads(X, "x"), reads("flowsched:y", "y", "y")])
    assert (await node.inputs(uid, told)).json["lost"] == []
    shutil.rmtree(other.parent)
    assert (await node.inputs(uid, told)).json["lost"] == ["flowsched:y"]
    assert (await node.call("DELETE", "/v1/datasets", params={"uri": X})).status == 409


async def test_the_sweeper_forgets_pods_that_are_gone(tmp_path: Path) -> None:
    """At once what they used, after some days what they did."""
    place = Node(tmp_path / "n")
    uid = place.pod()
    async with Served(place) as node:
        node.put(X, b"12345")
        await node.inputs(uid, order(inputs=[reads(X, "x")]))
        await node.agent.pods.sweep(before_ms=1 << 60)
        assert node.agent.ledger.users(X) == {uid}
        place.remove(uid)
        await node.agent.pods.sweep(before_ms=0)
        assert node.agent.ledger.users(X) == frozenset()
        assert node.agent.ledger.page(uid) is not None
        await node.agent.pods.sweep(before_ms=1 << 60)
        assert node.agent.ledger.page(uid) is None
    assert os.listdir(place.folder / "state" / "pods") == []


async def test_a_wall_clock_that_is_set_ends_nothing_that_is_kept_for_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's clock jumps by twenty years: what a pod did is still known, and the orders of today are good."""
    ahead_ns = 20 * 365 * 86_400 * 10**9
    place = Node(tmp_path / "n")
    uid, other = place.pod(), place.pod(name="fs-wf-s-1-1")
    tomorrow = time.time_ns() // 10**6 + 86_400_000
    async with Served(place, sweep_s=0.01) as node:
        node.put(X, b"12345")
        assert (await node.inputs(uid, order(inputs=[reads(X, "x")]))).status == 200
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() + ahead_ns)
        place.remove(uid)
        async with asyncio.timeout(60):  # the sweeper has been here
            while node.agent.ledger.users(X):
                await asyncio.sleep(0.01)
        assert node.agent.ledger.page(uid) is not None
        told = order("fs-wf-s-1-1", inputs=[reads(X, "x")], expires_ms=tomorrow)
        assert (await node.inputs(other, told)).status == 200


# --- outputs -------------------------------------------------------------------------------------------------


async def test_outputs_become_datasets(node: Served) -> None:
    """A file, a folder, a value: moved, read-only, told as events, and other nodes can have them."""
    uid = node.node.pod()
    work = node.node.work(uid)
    (work / "deep").mkdir()
    (work / "deep" / "out.bam").write_bytes(b"12345")
    (work / "tree" / "sub").mkdir(parents=True)
    (work / "tree" / "sub" / "f").write_bytes(b"123")
    (work / "tree" / "l").symlink_to("sub/f")
    (work / "n").write_text("42\n")
    told = order(
        outputs=[writes("deep/out.bam"), writes("tree"), writes("n", value=True), writes("no", optional=True)]
    )
    inode = (work / "deep" / "out.bam").stat().st_ino
    reply = await node.outputs(uid, told)
    base = "flowsched:wf/s/0/1"
    assert reply.json == {
        "outputs": [
            {"name": "deep-out.bam", "uri": f"{base}/deep-out.bam", "size_bytes": 5, "value": None},
            {"name": "tree", "uri": f"{base}/tree", "size_bytes": 3, "value": None},
            {"name": "n", "uri": f"{base}/n", "size_bytes": 3, "value": "42\n"},
        ]
    }
    published = node.agent.cache.home(f"{base}/deep-out.bam") / "out.bam"
    assert (published.stat().st_ino, stat.S_IMODE(published.stat().st_mode)) == (inode, 0o444)
    assert os.readlink(node.agent.cache.home(f"{base}/tree") / "tree" / "l") == "sub/f"
    assert await node.replicas() == {f"{base}/deep-out.bam": 5, f"{base}/tree": 3, f"{base}/n": 3}
    heard = await node.told(0, lambda events: len(events) == 3)
    assert [event["uri"] for event in heard] == [f"{base}/deep-out.bam", f"{base}/tree", f"{base}/n"]


async def test_publishing_twice_answers_the_same(tmp_path: Path) -> None:
    """Also when the work is gone, the agent was restarted and the pod is no more; and the service can read it."""
    place = Node(tmp_path / "n")
    uid = place.pod()
    (place.work(uid) / "out").write_bytes(b"123")
    told = order(outputs=[writes("out", value=True)])
    async with Served(place) as node:
        assert (await node.call("GET", f"/v1/pods/{uid}/outputs")).status == 404
        first = await node.outputs(uid, told)
        assert first.status == 200
        assert (await node.outputs(uid, told)).json == first.json
    place.remove(uid)
    async with Served(place) as node:
        assert (await node.outputs(uid, told)).json == first.json
        assert (await node.call("GET", f"/v1/pods/{uid}/outputs")).json == first.json
        assert (await node.call("GET", f"/v1/pods/{uid}/outputs", key=None)).status == 401


async def test_an_output_that_was_not_written(node: Served) -> None:
    """Nothing is published then, and the answer stays what it was."""
    uid = node.node.pod()
    (node.node.work(uid) / "one").write_bytes(b"1")
    told = order(outputs=[writes("one"), writes("two")])
    reply = await node.outputs(uid, told)
    assert (reply.status, reply.json["reason"], reply.json["outputs"]) == (200, "OutputMissing", [])
    assert "the working folder holds one" in reply.json["message"]
    (node.node.work(uid) / "two").write_bytes(b"2")
    assert (await node.outputs(uid, told)).json == reply.json
    assert await node.replicas() == {}


REFUSED = {
    "absolute": lambda work: (work / "out").symlink_to("/etc/passwd"),
    "out": lambda work: (work / "out").symlink_to("../../../../../secret"),
    "inputs": lambda work: (work / "out").symlink_to("../inputs"),
    "parent": lambda work: (work / "dir").symlink_to("/etc") or (work / "out").symlink_to("dir/passwd"),
    "itself": lambda work: (work / "out").symlink_to("."),
    "circle": lambda work: (work / "out").symlink_to("out"),
    "pipe": lambda work: os.mkfifo(work / "out"),
    "just-out-of-a-tree": lambda work: (work / "out").mkdir() or (work / "out" / "x").symlink_to("../y"),
    "in-a-tree": lambda work: (work / "out").mkdir() or (work / "out" / "x").symlink_to("../../../secret"),
    "absolute-in-a-tree": lambda work: (work / "out").mkdir() or (work / "out" / "x").symlink_to("/etc"),
    "pipe-in-a-tree": lambda work: (work / "out").mkdir() or os.mkfifo(work / "out" / "x"),
    "sibling-volume": lambda work: (work / "out").symlink_to("/flowsched/work-evil/x"),
    "mount-and-out": lambda work: (work / "out").symlink_to("/flowsched/work/../../etc/passwd"),
}


@pytest.mark.parametrize("attack", REFUSED)
async def test_outputs_that_lead_out_are_refused(node: Served, tmp_path: Path, attack: str) -> None:
    """Whatever a task leaves there: nothing of the node's is read, nothing is published."""
    (tmp_path / "secret").write_text("s")
    uid = node.node.pod()
    REFUSED[attack](node.node.work(uid))
    reply = await node.outputs(uid, order(outputs=[writes("out")]))
    assert (reply.status, reply.json["reason"], reply.json["outputs"]) == (200, "OutputRefused", []), (
        reply.json
    )
    assert await node.replicas() == {}


async def test_links_that_stay_inside_are_followed(node: Served) -> None:
    """Relative ones, and absolute ones to where the task had its folder."""
    uid = node.node.pod()
    work = node.node.work(uid)
    (work / "v1").mkdir()
    (work / "v1" / "model").write_bytes(b"12")
    (work / "latest").symlink_to("/flowsched/work/v1")
    (work / "best").symlink_to("latest/../latest/model")
    reply = await node.outputs(uid, order(outputs=[writes("best")]))
    assert reply.json["outputs"][0]["size_bytes"] == 2
    assert (node.agent.cache.home("flowsched:wf/s/0/1/best") / "model").read_bytes() == b"12"


async def test_a_value_that_is_too_long_is_refused(node: Served) -> None:
    """4 KiB at most; a folder is no value."""
    uid, other = node.node.pod(name="p0"), node.node.pod(name="p1")
    (node.node.work(uid) / "n").write_bytes(bytes(4097))
    (node.node.work(other) / "n").mkdir()
    for number, pod in enumerate((uid, other)):
        told = order(f"p{number}", outputs=[writes("n", value=True)])
        assert (await node.outputs(pod, told)).json["reason"] == "OutputRefused"


async def test_an_input_handed_on_as_an_output_is_copied(node: Served) -> None:
    """Its bytes belong to the other dataset too."""
    cached = node.put(X, b"12345")
    uid = node.node.pod()
    os.link(cached, node.node.work(uid) / "same")
    await node.outputs(uid, order(outputs=[writes("same")]))
    made = node.agent.cache.home("flowsched:wf/s/0/1/same") / "same"
    assert (made.read_bytes(), made.samefile(cached)) == (b"12345", False)


async def test_outputs_in_each_other_and_outputs_twice(node: Served) -> None:
    """A folder, a file of it, and that file once more: all three are whole."""
    uid = node.node.pod()
    (node.node.work(uid) / "d").mkdir()
    (node.node.work(uid) / "d" / "f").write_bytes(b"123")
    outputs = [writes("d"), writes("d/f"), {**writes("d/f", "flowsched:wf/s/0/1/again"), "name": "again"}]
    reply = await node.outputs(uid, order(outputs=outputs))
    assert [each["size_bytes"] for each in reply.json["outputs"]] == [3, 3, 3]
    assert await node.replicas() == {each["uri"]: 3 for each in outputs}


async def test_an_output_named_as_the_record_is(node: Served) -> None:
    """The record of a dataset lies beside it, and takes nothing's place."""
    uid = node.node.pod()
    (node.node.work(uid) / "meta.json").write_bytes(b"{}x")
    await node.outputs(uid, order(outputs=[writes("meta.json")]))
    got = await node.call("GET", "/v1/datasets", params={"uri": "flowsched:wf/s/0/1/meta.json"})
    assert got.body == b"{}x"


async def test_a_program_with_rights_of_its_own_loses_them(node: Served) -> None:
    """No set-uid bit, no writer and no owner but the agent is left on what was published."""
    uid = node.node.pod()
    file = node.node.work(uid) / "tool"
    file.write_bytes(b"#!")
    if os.geteuid() == 0:
        os.chown(file, 4711, 4711)
    file.chmod(0o6777)
    await node.outputs(uid, order(outputs=[writes("tool")]))
    made = (node.agent.cache.home("flowsched:wf/s/0/1/tool") / "tool").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_uid) == (0o555, os.geteuid())


async def test_a_tree_deeper_than_anybody_needs_is_refused(node: Served) -> None:
    """Walking it would end in the interpreter's own limit."""
    uid = node.node.pod()
    path = node.node.work(uid) / "out"
    for _ in range(250):
        path = path / "d"
    path.mkdir(parents=True)
    reply = await node.outputs(uid, order(outputs=[writes("out")]))
    assert reply.json["reason"] == "OutputRefused"


PUBLISH = """
    import json, os, signal, sys
    from pathlib import Path
    from flowsched.cluster.node.cache import Cache
    from flowsched.cluster.kubernetes.agent.outputs import Publisher
    folder, moving, step, number = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    seen = 0
    def at(name):
        global seen
        seen += name == step
        if name == step and seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
    cache = Cache(folder / "cache")
    cache.scan()
    work = os.open(folder / "work", os.O_RDONLY)
    print(json.dumps(Publisher(cache, folder / "outgoing", at).publish("uid", work, moving)))
"""


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("step", ["moved", "sealed", "published"])
def test_an_agent_killed_between_the_steps_of_publishing(tmp_path: Path, step: str, number: int) -> None:
    """Killed by -9 after each step of each output: the next life answers as this one would have, and every byte is there."""
    (tmp_path / "work" / "tree").mkdir(parents=True)
    (tmp_path / "work" / "tree" / "f").write_bytes(b"12345")
    (tmp_path / "work" / "file").write_bytes(b"123")
    moving = [
        {"name": "t", "uri": "u:t", "way": ["tree"], "value": None, "moves": True},
        {"name": "f", "uri": "u:f", "way": ["file"], "value": "123", "moves": number == 1},
    ]
    command = [sys.executable, "-c", textwrap.dedent(PUBLISH), str(tmp_path), json.dumps(moving)]
    killed = subprocess.run([*command, step, str(number)], capture_output=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL
    done = subprocess.run([*command, "never", "0"], capture_output=True, timeout=200, check=True)
    assert json.loads(done.stdout) == [
        {"name": "t", "uri": "u:t", "size_bytes": 5, "value": None},
        {"name": "f", "uri": "u:f", "size_bytes": 3, "value": "123"},
    ]
    cache = Cache(tmp_path / "cache")
    cache.scan()
    assert {uri: entry.size_bytes for uri, entry in cache.entries.items()} == {"u:t": 5, "u:f": 3}
    assert (cache.home("u:t") / "tree" / "f").read_bytes() == b"12345"
    assert (cache.home("u:f") / "file").read_bytes() == b"123"
    assert [name for name in os.listdir(tmp_path / "cache") if name.startswith(".")] == []


def test_a_page_that_cannot_be_read_is_forgotten(tmp_path: Path) -> None:
    """A disk that lies does not keep the agent from starting. A name that the agent does not give stays."""
    folder = tmp_path / "pods"
    folder.mkdir()
    for name, text in (
        ("a.json", "{"),
        ("b.json", "[]"),
        ("c.json", '{"pod": 1}'),
        ("..x.json", "{}"),
        ("d.tmp", ""),
    ):
        (folder / name).write_text(text)
    ledger = Ledger(folder)
    ledger.open()
    assert ledger.using() == []
    assert os.listdir(folder) == ["..x.json"]


class _folder_in_memory:
    """A folder on another file system."""

    def __enter__(self) -> Path:
        self.path = Path("/dev/shm") / f"flowsched-test-{os.getpid()}"
        self.path.mkdir()
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["rm", "-rf", str(self.path)], check=True)


# --- delivered objects ---------------------------------------------------------------------------------------


def delivered(node: Served, uid: str, name: str, uri: str, text: str = "ACGT") -> list[Any]:
    """A file in the pod's own volume, as stage-out reports it once it is in the store."""
    path = node.node.inputs(uid) / "d/0" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if os.geteuid() == 0:
        os.chown(path, 1000, 1000)  # the task's user
    status = path.stat()
    return [f"/out/{name}", uri, len(text), "tag", f"d/0/{name}", status.st_ino, status.st_mtime_ns]


async def report(node: Served, uid: str, delivers: list[Any], files: list[list[Any]]) -> Reply:
    """Stage-out's report of the files that its pod has delivered."""
    return await node.outputs(uid, order(delivers=delivers), delivered=packing.packed(files))


async def test_a_delivered_object_becomes_a_dataset_of_the_node(node: Served) -> None:
    """By a rename, under its URL and its version; it is told, listed, sealed, and there after a second report."""
    uid = node.node.pod()
    file = delivered(node, uid, "a.bam", "s3://lab/a.bam")
    seq = node.agent.news.seq
    reply = await report(node, uid, [["s3://lab/a.bam", False]], [file])
    name = versioned("s3://lab/a.bam", "tag")
    assert reply.status == 200
    assert [(each["uri"], each["present"]) for each in await node.told(seq, bool)] == [(name, True)]
    assert await node.replicas() == {name: 4}
    entry = node.agent.cache.find(name)
    assert entry is not None
    status = node.agent.cache.payload(entry).stat()
    assert (status.st_ino, status.st_uid, stat.S_IMODE(status.st_mode)) == (file[5], os.geteuid(), 0o444)
    assert not (node.node.inputs(uid) / "d/0/a.bam").exists()
    assert (await report(node, uid, [["s3://lab/a.bam", False]], [file])).json == reply.json
    assert await node.replicas() == {name: 4}
    assert (await node.call("DELETE", "/v1/datasets", params={"uri": name})).status == 204


async def test_folders_and_wildcards_of_a_pod(node: Served) -> None:
    """A folder is one dataset with its tree; the matches of a wildcard are one each."""
    uid = node.node.pod()
    files = [
        delivered(node, uid, "db/1", "s3://lab/db/1", "one"),
        delivered(node, uid, "db/deep/2", "s3://lab/db/deep/2", "two"),
        delivered(node, uid, "x.bam", "s3://lab/bams/x.bam"),
    ]
    await report(node, uid, [["s3://lab/db/", True], ["s3://lab/bams/", False]], files)
    found = {uri_of(uri): uri for uri in await node.replicas()}
    assert set(found) == {"s3://lab/db/", "s3://lab/bams/x.bam"}
    entry = node.agent.cache.find(found["s3://lab/db/"])
    assert entry is not None
    assert (node.agent.cache.payload(entry) / "deep/2").read_text() == "two"


async def test_a_pod_vouches_for_nothing_but_its_own_outputs(node: Served) -> None:
    """Not for another object of the bucket, one beside its folder or its file, or a dataset that a workflow has made."""
    uid = node.node.pod()
    names = (
        "s3://lab/other", "s3://lab/out2/x", "s3://lab", "flowsched:wf/a/0/1/x", "s3://lab/out/a\nb", "",
        "s3://lab/x.bam.bai",
    )  # fmt: skip
    files = [delivered(node, uid, f"{number}", uri) for number, uri in enumerate(names)]
    named = [["s3://lab/out/", False], ["s3://lab/x.bam", False], ["s3://", False], ["/", True]]
    reply = await report(node, uid, named, files)
    assert reply.status == 200
    assert await node.replicas() == {}
    assert len(os.listdir(node.node.inputs(uid) / "d/0")) == len(names)


async def test_a_file_on_a_shared_volume_becomes_a_dataset_of_the_node(node: Served) -> None:
    """Under its path and the version that a look at it finds: only a file of the order's, on a volume that the agent sees, that no
    program has changed since.
    """
    uid, lab = node.node.pod(), node.node.folder.parent / "shared"
    (lab / "d").mkdir(parents=True)
    outside = node.node.folder.parent / "outside"
    paths = [f"{lab}/{name}" for name in ("a.bam", "a.bam.bai", "d/x", "d/../b", "other", "changed")]
    files = []
    for number, path in enumerate([*paths, str(outside)]):
        Path(path).write_text("ACGT")
        file = delivered(node, uid, f"{number}", path)
        files.append([*file[:3], file_version(os.stat(path)), *file[4:]])
    (lab / "changed").write_text("TGCA!")
    named = [[f"{lab}/a.bam", False], [f"{lab}/d/", True], [f"{lab}/changed", False], [str(outside), False]]
    reply = await report(node, uid, named, files)
    assert reply.status == 200
    assert await node.replicas() == {versioned(files[at][1], files[at][3]): 4 for at in (0, 2)}
    assert (lab / "a.bam").read_text() == "ACGT"


async def test_a_file_that_not_all_users_may_read_leaves_no_copy(node: Served) -> None:
    """A task would get its copy, whatever its user may read. Nor does a folder, whose files the agent would have to look at."""
    uid, lab = node.node.pod(), node.node.folder.parent / "shared"
    paths = [lab / name for name in ("open", "closed", "in/x", "folder/x")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ACGT")
    paths[1].chmod(0o640)
    paths[2].parent.chmod(0o750)
    paths[3] = paths[3].parent
    seen = await node.agent.identities.of([str(path) for path in paths], by_content=False)
    files = []
    for number, path in enumerate(paths):
        version = seen[str(path)]
        assert isinstance(version, Fingerprint)
        file = delivered(node, uid, f"{number}", str(path))
        files.append([*file[:3], version.version, *file[4:]])
    assert (await report(node, uid, [[str(lab), True]], files)).status == 200
    assert await node.replicas() == {versioned(files[0][1], files[0][3]): 4}


async def test_a_volume_that_does_not_answer_holds_up_no_other_pod(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a hard mount of NFS whose server has gone: the reports of more pods than there are threads are taken, without copies."""
    go, find = threading.Event(), Origins.local_path

    def hang(origins: Origins, uri: str) -> Path | None:
        go.wait(PATIENCE_S)
        return find(origins, uri)

    monkeypatch.setattr(Origins, "local_path", hang)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    node = await stack.enter_async_context(Served(Node(tmp_path / "n")))
    lab, asked = tmp_path / "shared", []
    lab.mkdir()
    try:
        for number in range(6):
            path, name = lab / f"{number}", f"p{number}"
            path.write_text("ACGT")
            uid = node.node.pod(name=name)
            file = delivered(node, uid, "x", str(path))
            file[3] = file_version(path.stat())
            told = order(name, delivers=[[str(path), False]])
            asked.append(asyncio.create_task(node.outputs(uid, told, delivered=packing.packed([file]))))
        async with asyncio.timeout(30):
            assert {(await each).status for each in asked} == {200}
            assert (await node.inputs(node.node.pod(name="other"), order("other"))).status == 200
        assert await node.replicas() == {}
    finally:
        go.set()
        await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(
    "place", ["../work/x", "d/../../work/x", "/etc/hostname", "linked/x", "link", "d/0", "", "d/0/gone", "p"]
)
async def test_no_place_leads_out_of_the_pods_volume(node: Served, tmp_path: Path, place: str) -> None:
    """Nor is a link followed, a second name shared, or a pipe opened. What lies there stays."""
    uid = node.node.pod()
    victim = node.node.work(uid) / "x"
    victim.write_text("ACGT")
    inputs = node.node.inputs(uid)
    (inputs / "d/0").mkdir(parents=True)
    (inputs / "linked").symlink_to(node.node.work(uid))
    (inputs / "link").symlink_to(victim)
    os.mkfifo(inputs / "p")
    status = victim.stat()
    file = ["/out/x", "s3://lab/x", 4, "tag", place, status.st_ino, status.st_mtime_ns]
    assert (await report(node, uid, [["s3://lab/x", False]], [file])).status == 200
    assert await node.replicas() == {}
    assert victim.read_text() == "ACGT"
    assert node.node.half_made() == []


@pytest.mark.parametrize("way", ["/etc/x", "../x", "../../../x", "a//b", "./a", "", "meta.json/.."])
async def test_no_objects_name_leads_out_of_the_cache(node: Served, way: str) -> None:
    """An object below a folder's, with a key that is no path in the dataset: there is none, and no file is made elsewhere."""
    uid = node.node.pod()
    files = [
        delivered(node, uid, "1", "s3://lab/db/1"),
        delivered(node, uid, "2", f"s3://lab/db/{way}"),
    ]
    before = sorted(str(found) for found in node.node.folder.rglob("*") if "/pods/" not in str(found))
    await report(node, uid, [["s3://lab/db/", True]], files)
    assert await node.replicas() == {}
    after = sorted(str(found) for found in node.node.folder.rglob("*") if "state" not in str(found))
    assert [found for found in after if "/pods/" not in found] == [
        found for found in before if "state" not in found
    ]


@pytest.mark.parametrize(
    "listed", ["z:no", "[]", "{", "z:" + "A" * 40, '[["/a"]]', '[["a", "b", -1, "v", 1]]']
)
async def test_a_report_that_is_none_keeps_nothing(node: Served, listed: str) -> None:
    """It is a report, and no request that can fail."""
    uid = node.node.pod()
    reply = await node.outputs(uid, order(delivers=[["s3://lab/x", False]]), delivered=listed)
    assert reply.status == 200
    assert await node.replicas() == {}


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
async def test_a_delivered_object_comes_to_a_cache_on_another_disk(tmp_path: Path) -> None:
    """As a copy, within the limit of the cache."""
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    with _folder_in_memory() as memory:
        place = Node(tmp_path / "n")
        async with Served(place, cache=memory / "cache", cache_bytes=10) as node:
            uid = place.pod()
            files = [
                delivered(node, uid, "x", "s3://lab/x"),
                delivered(node, uid, "large", "s3://lab/large", "x" * 11),
            ]
            await report(node, uid, [["s3://lab/x", False], ["s3://lab/large", False]], files)
            name = versioned("s3://lab/x", "tag")
            assert await node.replicas() == {name: 4}
            got = await node.call("GET", "/v1/datasets", params={"uri": name})
            assert got.body == b"ACGT"


# --- objects that the agent writes ---------------------------------------------------------------------------


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a store that the agent reaches by the variables of its environment."""
    with object_store(monkeypatch) as client:
        yield client


async def write(
    node: Served, uid: str, file: list[Any], uri: str, *outputs: str, name: str = "fs-wf-s-0-1"
) -> Reply:
    """Stage-out's request to write a file, as `delivered` has it, to the object `uri`."""
    wanted = {"place": file[4], "inode": file[5], "uri": uri, "size_bytes": file[2]}
    body = {**signed(order(name, delivers=[[each, False] for each in outputs])), "file": wanted}
    return await node.call("POST", f"/v1/pods/{uid}/objects", key=None, json=body)


async def test_an_agent_writes_the_objects_of_a_pod(tmp_path: Path, bucket: Any) -> None:
    """With its own credentials, a large one in parts; the answer has the version that the store has given it."""
    async with Served(Node(tmp_path / "n"), write_objects=True) as node:
        uid = node.node.pod()
        for name, text in (("small", "ACGT"), ("large", "x" * (17 << 20))):
            uri = f"s3://lab/out/{name}"
            reply = await write(node, uid, delivered(node, uid, name, uri, text), uri, "s3://lab/out/")
            head = bucket.head_object(Bucket="lab", Key=f"out/{name}")
            assert (reply.status, reply.json) == (200, {"version": head["ETag"].strip('"')})
            assert head["ContentLength"] == len(text)


async def test_an_agent_writes_nothing_but_its_pods_own_outputs(tmp_path: Path, bucket: Any) -> None:
    """Neither another object, nor a file from elsewhere, nor one that has been replaced."""
    async with Served(Node(tmp_path / "n"), write_objects=True) as node:
        uid = node.node.pod()
        file = delivered(node, uid, "x", "")
        (node.node.work(uid) / "secret").write_text("mine")
        (node.node.inputs(uid) / "link").symlink_to(node.node.work(uid) / "secret")
        mine = (node.node.work(uid) / "secret").stat().st_ino
        ours = "s3://lab/out"
        wrong = [
            (file, "s3://lab/out2", 403),
            (file, "s3://lab", 403),
            ([*file[:4], "../work/secret", mine], ours, 409),
            ([*file[:4], "link", mine], ours, 409),
            ([*file[:4], "d/0", file[5]], ours, 409),
            ([*file[:5], file[5] + 1], ours, 409),
        ]
        for asked, uri, status in wrong:
            assert (await write(node, uid, asked, uri, ours)).status == status, (asked, uri)
        assert (await node.call("POST", f"/v1/pods/{uid}/objects", key=None, json={})).status == 400
        assert "Contents" not in bucket.list_objects_v2(Bucket="lab")
        other = node.node.pod(name="other")
        absent = delivered(node, other, "x", "")
        refused = await write(node, other, absent, "s3://none/x", "s3://none/x", name="other")
        assert refused.json["refused"][0] == "OutputFailed"
        assert "there is no bucket 'none'" in refused.json["refused"][1]


@pytest.mark.parametrize("scheme", ["local://", "file://", "memory://", ""])
async def test_an_agent_writes_to_no_store_but_s3(tmp_path: Path, scheme: str) -> None:
    """Whatever an order says: fsspec knows the files of the host as a store, too."""
    async with Served(Node(tmp_path / "n"), write_objects=True) as node:
        uid, uri = node.node.pod(), f"{scheme}{tmp_path}/cfg"
        assert (await write(node, uid, delivered(node, uid, "x", ""), uri, uri)).status == 403
        assert not (tmp_path / "cfg").exists()


async def test_an_agent_without_the_option_writes_no_object(node: Served) -> None:
    """501: the pod writes it with its own credentials."""
    uid = node.node.pod()
    file = delivered(node, uid, "x", "s3://lab/x")
    assert (await write(node, uid, file, "s3://lab/x", "s3://lab/x")).status == 501


async def test_large_uploads_of_a_nodes_pods_are_few_and_leave_turns_for_small_ones(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More large files of five pods than the agent writes at a time: six go on, and the stage-out of another pod waits for none."""
    go, put, writing = threading.Event(), uploads._put, []

    def slow(call: Any, fd: int, *arguments: Any) -> Any:
        if os.fstat(fd).st_size > 4:
            writing.append(fd)
            assert go.wait(PATIENCE_S)
        return put(call, fd, *arguments)

    monkeypatch.setattr(uploads, "_put", slow)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(24))  # as the agent's process
    async with Served(Node(tmp_path / "n"), write_objects=True) as node:
        top, large, asked = "s3://lab/large/", "x" * (9 << 20), []
        for name in "abcde":
            uid = node.node.pod(name=name)
            for number in range(2):
                file = delivered(node, uid, f"{number}", f"{top}{name}{number}", large)
                asked.append(asyncio.create_task(write(node, uid, file, file[1], top, name=name)))
        other = node.node.pod(name="other")
        small = delivered(node, other, "x", "s3://lab/x")
        try:
            await until(lambda: len(writing) >= 6)
            async with asyncio.timeout(20):
                assert (await write(node, other, small, small[1], small[1], name="other")).status == 200
            await asyncio.sleep(0.5)  # a seventh would begin by now
            assert len(writing) == 6
        finally:
            go.set()
        assert {(await each).status for each in asked} == {200}


async def test_an_object_is_not_finished_for_a_pod_that_has_gone(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next attempt may have written the object by then."""
    began, go = threading.Event(), threading.Event()
    put = uploads._put

    def slow(*arguments: Any) -> Any:
        began.set()
        assert go.wait(PATIENCE_S)
        return put(*arguments)

    monkeypatch.setattr(uploads, "_put", slow)
    async with Served(Node(tmp_path / "n"), write_objects=True) as node:
        uid = node.node.pod()
        file = delivered(node, uid, "x", "s3://lab/x")
        asking = asyncio.create_task(write(node, uid, file, "s3://lab/x", "s3://lab/x"))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert node.session is not None
        await node.session.close()
        await asyncio.sleep(0.2)
        go.set()
    assert "Contents" not in bucket.list_objects_v2(Bucket="lab")
