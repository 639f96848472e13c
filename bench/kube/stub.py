"""A stub API server for benches, in a process of its own: the fake's behaviours behind an HTTP server that costs little.

    python bench/kube/stub.py --nodes 10000 --core 0

The fake (`tests/kubernetes/fake`, held to the real one by the conformance file) decides; only its sockets are replaced here,
since aiohttp's server would cost more than what is to be measured. Beside the API there are:

    POST /stub/pods   {"count", "bound", "scheduler", "owners"}   makes pods without a request for each
    POST /stub/reset                                              begins the counts anew
    POST /stub/count                                              how many were bound since (cheap)
    POST /stub/facts                                              what has happened since (`Facts`)

Its URL is the first line that it prints. It ends with its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import msgspec  # noqa: E402

from tests.kubernetes.fake import Api, Reply, Request  # noqa: E402
from tests.kubernetes.fake.feed import Feed  # noqa: E402
from tests.kubernetes.fake.replies import Refusal  # noqa: E402

#: So many events are remembered: a reader that is busy elsewhere for a while need not list again.
HISTORY = 1_000_000
#: What a watch is sent at a time, at most.
PIECE_BYTES = 1 << 20
BOOKMARK_S = 60.0
NAMESPACE = "bench"


class Facts(msgspec.Struct):
    """What has happened since the counts were begun anew. Moments are of the monotonic clock, which processes share."""

    created: int = 0
    bound: int = 0
    bound_twice: int = 0
    refused: int = 0  #: requests answered by 4xx or 5xx
    first_create_s: float = 0.0
    first_bind_s: float = 0.0
    last_bind_s: float = 0.0
    cpu_s: float = 0.0  #: of this process, in all
    pods: int = 0  #: there now
    pods_on_nodes: int = 0
    overcommitted: list[str] = []  #: nodes that have given more than they have
    requests: dict[str, int] = {}


class Stub:
    """The fake, and what it has seen."""

    def __init__(self, nodes: int, pods_per_node: int, cpu: int) -> None:
        self.api = Api(history=HISTORY)
        self.pods_per_node = pods_per_node
        self.facts = Facts()
        self.seen: Counter[str] = Counter()
        self.bound: Counter[str] = Counter()  #: accepted bindings by pod
        self.nodes = [f"node-{number:05}" for number in range(nodes)]
        self.made = 0
        self.api.add({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}})
        amounts = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": str(pods_per_node)}
        for number, name in enumerate(self.nodes):
            status = {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{number % 8}"}
            self.api.add(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels},
                    "status": status,
                }
            )
        self.api.store.compact()

    def reply(self, request: Request) -> Reply:
        """Carry a request out, and count it."""
        if request.path.startswith("/stub/"):
            return self.control(request)
        reply = self.api.handle(request)
        now = time.monotonic()
        facts = self.facts
        self.seen[f"{request.verb} {request.resource}"] += 1
        if reply.status >= 400:
            facts.refused += 1
        elif request.method == "POST" and request.plural == "pods":
            if request.subresource == "binding":
                facts.bound += 1
                self.bound[request.name] += 1
                facts.first_bind_s = facts.first_bind_s or now
                facts.last_bind_s = now
            elif not request.subresource:
                facts.created += 1
                facts.first_create_s = facts.first_create_s or now
        return reply

    def control(self, request: Request) -> Reply:
        """What benches ask of the stub itself."""
        if request.path == "/stub/count":
            return Reply(200, msgspec.json.encode({"bound": self.facts.bound}))
        if request.path == "/stub/pods":
            self.fill(**msgspec.json.decode(request.body))
        elif request.path == "/stub/reset":
            self.facts = Facts()
            self.seen.clear()
            self.bound.clear()
        return Reply(200, msgspec.json.encode(self.told()))

    def told(self) -> Facts:
        """The facts, with what is computed from all pods."""
        used: dict[str, list[float]] = {}
        pods = 0
        for entry in self.api.store.collections["", "pods"].entries.values():
            pods += 1
            node = entry.fields.get("spec.nodeName")
            if not node or entry.fields.get("status.phase") in ("Succeeded", "Failed"):
                continue
            taken = used.setdefault(node, [0.0, 0.0])
            taken[0] += 1
            taken[1] += _cores(msgspec.json.decode(entry.body, type=_Pod))
        facts = self.facts
        facts.pods, facts.pods_on_nodes = pods, int(sum(count for count, _ in used.values()))
        facts.cpu_s = time.process_time()
        facts.bound_twice = sum(count > 1 for count in self.bound.values())
        facts.requests = dict(self.seen)
        facts.overcommitted = [name for name, taken in used.items() if self._too_much(name, taken)]
        return facts

    def _too_much(self, name: str, taken: list[float]) -> bool:
        node = self.api.store.find("nodes", name)
        if node is None:
            return True
        amounts = node.document()["status"]["allocatable"]
        return taken[0] > int(amounts["pods"]) or taken[1] > int(amounts["cpu"]) + 1e-9

    def fill(self, count: int, bound: bool = False, scheduler: str = "flowsched", owners: int = 10) -> None:
        """Make pods as controllers would: on nodes that have room, in turn, or waiting for a scheduler."""
        places = self.places() if bound else itertools.repeat("")
        for number, node in zip(range(self.made, self.made + count), places, strict=False):
            self.made += 1
            self.api.add(pod(number, scheduler, owners, node))

    def places(self) -> Iterator[str]:
        """Nodes in turn, each as often as it takes another pod."""
        entries = self.api.store.collections["", "pods"].entries.values()
        used = Counter(entry.fields.get("spec.nodeName") for entry in entries)
        room = {name: self.pods_per_node - used[name] for name in self.nodes}
        while room:
            room = {name: left for name, left in room.items() if left > 0}
            for name in room:
                room[name] -= 1
                yield name


class _Resources(msgspec.Struct):
    requests: dict[str, str] = {}


class _Container(msgspec.Struct):
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


def _cores(found: _Pod) -> float:
    total = 0.0
    for container in found.spec.containers:
        said = container.resources.requests.get("cpu", "0")
        total += int(said[:-1]) / 1000 if said.endswith("m") else float(said)
    return total


def pod(number: int, scheduler: str, owners: int, node: str = "") -> dict[str, Any]:
    """A pod of one of a few controllers, as large as real ones are on the wire."""
    owner = number % owners
    metadata = {
        "name": f"job-{owner}-{number:06}",
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/name": f"job-{owner}", "batch.kubernetes.io/job-name": f"job-{owner}"},
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": f"job-{owner}",
                "uid": f"{owner:08x}-1111-4000-8000-000000000000",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    container = {
        "name": "main",
        "image": "registry.example/tools/align:1.4.2",
        "command": ["/usr/local/bin/align", "--index", str(number)],
        "env": [{"name": f"SETTING_{each}", "value": f"value-{each}"} for each in range(8)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    spec = {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Http(asyncio.Protocol):
    """One connection: HTTP/1.1 as our client and client-go speak it, pipelining excluded."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.buffer = bytearray()
        self.watch: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        if self.watch is not None:
            self.watch.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            length = int(headers.get("content-length", "0"))
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            method, target, _ = head.split(" ", 2)
            path, _, query = target.partition("?")
            kind = headers.get("content-type", "application/json")
            self.answer(Request(method, path, dict(parse_qsl(query)), body, kind, headers))

    def answer(self, request: Request) -> None:
        if request.watching:
            try:
                feed = Feed(self.stub.api, request)
            except Refusal as refused:
                self.write(refused.reply)
                return
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            self.watch = asyncio.create_task(self.tell(feed, float(request.query.get("timeoutSeconds") or 0)))
            return
        self.write(self.stub.reply(request))

    def write(self, reply: Reply) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (
            reply.status, reply.content_type.encode(), len(reply.body),
        )  # fmt: skip
        self.transport.write(head + reply.body)

    async def tell(self, feed: Feed, lasts_s: float) -> None:
        """Send lines as they come, many at a time where there are many."""
        wake = asyncio.Event()
        watchers = self.stub.api.store.collection(feed.kind).watchers
        watchers.add(wake)
        ends = time.monotonic() + (lasts_s or 1800.0)
        try:
            while time.monotonic() < ends and not feed.over:
                await self.writable.wait()
                wake.clear()
                lines = feed.take()
                for start in range(0, len(lines), 500):
                    piece = b"".join(lines[start : start + 500])
                    self.transport.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                try:
                    await asyncio.wait_for(wake.wait(), BOOKMARK_S)
                except TimeoutError:
                    piece = feed.bookmark()
                    self.transport.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        finally:
            watchers.discard(wake)
        self.transport.write(b"0\r\n\r\n")


async def serve(given: argparse.Namespace) -> None:
    """Serve until standard input ends."""
    stub = Stub(given.nodes, given.pods_per_node, given.cpu)
    server = await asyncio.get_running_loop().create_server(lambda: Http(stub), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods-per-node", type=int, default=110)
    parser.add_argument("--cpu", type=int, default=64, help="cores of each node")
    parser.add_argument("--core", type=int, help="run on this core of the machine alone")
    given = parser.parse_args()
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    import gc

    gc.freeze()
    gc.disable()  # what is kept here has no cycles
    asyncio.run(serve(given))


if __name__ == "__main__":
    main()
