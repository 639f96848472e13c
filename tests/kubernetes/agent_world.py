"""Nodes for the agent's tests: folders as a kubelet lays them out, real agents on loopback, and a client that has the key."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from flowsched.cluster.kubernetes import orders, packing
from flowsched.cluster.kubernetes.agent.agent import Agent, Settings
from flowsched.cluster.kubernetes.agent.server import Server
from flowsched.cluster.kubernetes.agent_keys import bearer_of, signing_key_of
from flowsched.cluster.node.cache import Entry
from flowsched.values import replace

KEY = b"a-key-of-the-agents-in-these-tests"
PATIENCE_S = 200
EMPTY_DIR = ("volumes", "kubernetes.io~empty-dir")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, read to its end."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Node:
    """A node's folders, and what a kubelet does with them."""

    def __init__(self, folder: Path, name: str = "node-0") -> None:
        self.name = name
        self.folder = folder
        for part in ("cache", "state", "pods", "logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def settings(self, **changes: Any) -> Settings:
        plain = Settings(
            node=self.name,
            key=KEY,
            cache=self.folder / "cache",
            pods=self.folder / "pods",
            logs=self.folder / "logs",
            state=self.folder / "state",
            kept_logs=self.folder / "state" / "logs",
            port=0,
            roots=(self.folder.parent / "shared",),
            networks=("127.0.0.0/8",),
        )
        return replace(plain, **changes)

    def pod(self, uid: str | None = None, name: str = "fs-wf-s-0-1") -> str:
        """A pod's volumes and folder of logs, as they are before its first container starts; returns its uid."""
        uid = uid or str(uuid.uuid4())
        (self.folder / "logs" / f"flowsched_{name}_{uid}").mkdir(exist_ok=True)
        for volume in ("inputs", "work"):
            path = self.volume(uid, volume)
            path.mkdir(parents=True)
            path.chmod(0o2777)
        return uid

    def volume(self, uid: str, name: str) -> Path:
        return self.folder.joinpath("pods", uid, *EMPTY_DIR, name)

    def inputs(self, uid: str) -> Path:
        return self.volume(uid, "inputs")

    def work(self, uid: str) -> Path:
        return self.volume(uid, "work")

    def remove(self, uid: str) -> None:
        """What a kubelet does once a pod's containers have ended."""
        subprocess.run(["rm", "-rf", str(self.folder / "pods" / uid)], check=True)

    def half_made(self) -> list[str]:
        """What lies in the cache beside whole datasets."""
        return [name for name in os.listdir(self.folder / "cache") if name.startswith(".")]


class Served:
    """A real agent in this process, with its door open."""

    def __init__(
        self,
        node: Node,
        *,
        link: Callable[..., None] | None = None,
        clock: Callable[[], int] | None = None,
        **changes: Any,
    ) -> None:
        self.node = node
        self.agent = Agent(node.settings(**changes), link=link, clock=clock)
        self.door = Server(self.agent)
        self.session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Served:
        await self.agent.open()
        await self.door.open()
        self.session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.session is not None
        await self.session.close()
        await self.door.close()
        await self.agent.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.door.port}"

    async def call(self, method: str, path: str, *, key: bytes | None = KEY, **given: Any) -> Reply:
        return await call(self.session, method, f"{self.url}{path}", key, **given)

    def put(self, uri: str, data: bytes, name: str = "data.bin") -> Path:
        """A file in the cache."""
        cache = self.agent.cache
        folder = cache.temporary()
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o444)
        cache.publish(folder, Entry(uri, len(data), name))
        return cache.home(uri) / name

    async def bring(self, *wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Order transfers, and wait for their ends, in the order of the orders."""
        seq = self.agent.news.seq
        reply = await self.call("POST", "/v1/transfers", json={"orders": list(wanted)})
        assert reply.status == 202, reply.body
        uris = [each["uri"] for each in wanted]
        ends = await self.told(
            seq, lambda heard: {e["uri"] for e in heard if e["kind"] == "transfer"} >= set(uris)
        )
        last = {event["uri"]: event for event in ends if event["kind"] == "transfer"}
        return [last[uri] for uri in uris]

    async def told(
        self, after: int, enough: Callable[[list[dict[str, Any]]], bool], **params: str
    ) -> list[dict[str, Any]]:
        """Follow the events until there are enough; heartbeats are left out."""
        assert self.session is not None
        heard: list[dict[str, Any]] = []
        headers = {"Authorization": f"Bearer {bearer_of(KEY)}"}
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.get(
                f"{self.url}/v1/events", params={"after": str(after), **params}, headers=headers
            ) as answer:
                assert answer.status == 200
                while not enough(heard):
                    line = await answer.content.readline()
                    assert line, f"the stream ended after {heard}"
                    event = json.loads(line)
                    if event["kind"] != "heartbeat":
                        heard.append(event)
        return heard

    async def replicas(self) -> dict[str, int]:
        reply = await self.call("GET", "/v1/replicas")
        return {each["uri"]: each["size_bytes"] for each in reply.json["replicas"]}

    async def inputs(self, uid: str, order: Mapping[str, Any], **changes: Any) -> Reply:
        body = {"inputs_path": str(self.node.inputs(uid)), **signed(order), **changes}
        return await self.call("POST", f"/v1/pods/{uid}/inputs", key=None, json=body)

    async def outputs(self, uid: str, order: Mapping[str, Any], **changes: Any) -> Reply:
        body = {**signed(order), **changes}
        return await self.call("POST", f"/v1/pods/{uid}/outputs", key=None, json=body)


async def call(
    session: aiohttp.ClientSession | None, method: str, url: str, key: bytes | None = KEY, **given: Any
) -> Reply:
    assert session is not None
    headers = {"Authorization": f"Bearer {bearer_of(key)}"} if key is not None else {}
    headers |= given.pop("headers", {})
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with session.request(method, url, headers=headers, timeout=timeout, **given) as answer:
        return Reply(answer.status, await answer.read(), answer.headers)


async def until(holds: Callable[[], Any]) -> None:
    """Wait for what nobody tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


def order(pod: str = "fs-wf-s-0-1", **changes: Any) -> dict[str, Any]:
    """An order that asks for nothing, but for what is said."""
    return {
        "pod": pod,
        "inputs": [],
        "outputs": [],
        "folders": ["."],
        "gang": None,
        "expires_ms": 1 << 53,
        **changes,
    }


def reads(uri: str, path: str = "data/data.bin", name: str = "data") -> dict[str, Any]:
    return {"name": name, "uris": [uri], "manifest": False, "path": path}


def writes(path: str, uri: str = "", *, optional: bool = False, value: bool = False) -> dict[str, Any]:
    name = path.replace("/", "-")
    uri = uri or f"flowsched:wf/s/0/1/{name}"
    return {"name": name, "path": path, "uri": uri, "optional": optional, "value": value}


def signed(asked: Mapping[str, Any], key: bytes = KEY) -> dict[str, str]:
    text = packing.pack(asked)
    return {"order": text, "signature": orders.sign(signing_key_of(key), text)}


async def several(stack: AsyncExitStack, folder: Path, count: int, **changes: Any) -> list[Served]:
    """Agents of so many nodes."""
    nodes = [Node(folder / f"node-{number}", f"node-{number}") for number in range(count)]
    return [await stack.enter_async_context(Served(node, **changes)) for node in nodes]


class AgentProcess:
    """An agent as a process of its own, which can be killed."""

    def __init__(self, node: Node, *arguments: str) -> None:
        self.node = node
        self._log = node.folder / "agent.log"
        self._log.write_bytes(b"")
        program = "import typer; from flowsched.cli.agent import agent; typer.run(agent)"
        command = [
            sys.executable, "-c", program, "--node", node.name, "--port", "0", "--log-json",
            "--cache", str(node.folder / "cache"), "--state", str(node.folder / "state"),
            "--pods", str(node.folder / "pods"), "--logs", str(node.folder / "logs"), *arguments,
        ]  # fmt: skip
        with open(self._log, "wb") as log:
            env = {**os.environ, "FLOWSCHED_AGENT_KEY": KEY.decode()}
            self.process = subprocess.Popen(command, env=env, stderr=log, stdout=log)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def url(self) -> str:
        """Where it listens, once it does."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for line in self._log.read_text().splitlines():
                if '"agent ready"' in line:
                    return str(json.loads(line)["url"])
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(self._log.read_text())

    def kill(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)
