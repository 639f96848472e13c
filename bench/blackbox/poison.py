"""Poison: documents and requests that cost their sender little and the service much. `body` makes each one once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from bench.blackbox.client import TES, WORKFLOWS
from bench.blackbox.service import TOKEN


def _scatter(name: str, stages: int, count: int, **stage: Any) -> bytes:
    command = {"command": ["sleep", "1"], "queue": None} | stage
    command.pop("queue")
    made = [{"name": f"s{i}", "scatter": {"count": count}, **command} for i in range(stages)]
    return json.dumps({"name": name, "queue": "poison", "stages": made}).encode()


def _million() -> bytes:
    return _scatter("poison-million", 5, 1_000_000)


def _never() -> bytes:
    return _scatter("poison-never", 5, 1_000_000, resources={"cpu": 900})


def _hundred_thousand() -> bytes:
    return _scatter("poison-100k", 1, 100_000, resources={"cpu": 0.001, "memory": 1})


def _gang() -> bytes:
    stage = {"name": "g", "gang": True, "command": ["true"], "scatter": {"count": 10_000}}
    return json.dumps({"name": "poison-gang", "queue": "poison", "stages": [stage]}).encode()


def _big() -> bytes:
    items = [f"{i:07d}" + "x" * 990 for i in range(9_400)]
    stage = {"name": "s", "scatter": {"items": items}, "command": ["true"], "resources": {"cpu": 900}}
    return json.dumps({"name": "poison-big", "queue": "poison", "stages": [stage]}).encode()


def _stages() -> bytes:
    stages: list[dict[str, Any]] = [{"name": "s0", "command": ["sleep", "30"]}]
    stages += [{"name": f"s{i}", "command": ["true"], "needs": [f"s{i - 1}"]} for i in range(1, 10_000)]
    return json.dumps({"name": "poison-stages", "queue": "poison", "stages": stages}).encode()


def _edges() -> bytes:
    stages: list[dict[str, Any]] = [{"name": f"a{i}", "command": ["sleep", "30"]} for i in range(400)]
    needs = [f"a{i}" for i in range(400)]
    stages += [{"name": f"b{i}", "command": ["true"], "needs": needs} for i in range(490)]
    return json.dumps({"name": "poison-edges", "queue": "poison", "stages": stages}).encode()


def _environment() -> bytes:
    env = {f"V{i}": "x" * 900 for i in range(1000)}
    stages = [{"name": f"s{i}", "command": ["true"], "env": env, "resources": {"cpu": 900}} for i in range(9)]
    return json.dumps({"name": "poison-env", "queue": "poison", "stages": stages}).encode()


def _labels() -> bytes:
    labels = {f"l{i}": "x" for i in range(1_000_000)}
    return json.dumps(
        {"name": "poison-labels", "labels": labels, "stages": [{"name": "s", "command": ["true"]}]}
    ).encode()


def _unknown() -> bytes:
    keys = {f"k{i}": 1 for i in range(1_000_000)}
    return json.dumps(
        {"name": "poison-unknown", "stages": [{"name": "s", "command": ["true"]}]} | keys
    ).encode()


def _deep() -> bytes:
    return b'{"name":"poison-deep","stages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def _number() -> bytes:
    return (
        b'{"name":"poison-number","priority":'
        + b"9" * 5_000
        + b',"stages":[{"name":"s","command":["true"]}]}'
    )


def _tags() -> bytes:
    tags = {f"t{i}": "x" for i in range(800_000)}
    return json.dumps(
        {"name": "poison-tags", "tags": tags, "executors": [{"image": "a", "command": ["true"]}]}
    ).encode()


def _executors() -> bytes:
    return json.dumps(
        {"name": "poison-exec", "executors": [{"image": "a", "command": ["true"]}] * 400_000}
    ).encode()


def _filter() -> bytes:
    nodes = [
        {"metadata": {"name": f"n{i}", "labels": {f"l{j}": "x" * 50 for j in range(20)}}}
        for i in range(40_000)
    ]
    return json.dumps({"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": nodes}}).encode()


def _bomb() -> bytes:
    return gzip.compress(b'{"name":"' + b"x" * (200 << 20) + b'"}', 9)


#: name -> (path, body). The service may accept the first eight; the run then cancels them.
POISON: dict[str, tuple[str, Callable[[], bytes]]] = {
    "million": (WORKFLOWS, _million),
    "never": (WORKFLOWS, _never),
    "100k": (WORKFLOWS, _hundred_thousand),
    "gang": (WORKFLOWS, _gang),
    "big": (WORKFLOWS, _big),
    "stages": (WORKFLOWS, _stages),
    "edges": (WORKFLOWS, _edges),
    "environment": (WORKFLOWS, _environment),
    "labels": (WORKFLOWS, _labels),
    "unknown": (WORKFLOWS, _unknown),
    "deep": (WORKFLOWS, _deep),
    "number": (WORKFLOWS, _number),
    "tags": (TES, _tags),
    "executors": (TES, _executors),
    "filter": ("/scheduler/filter", _filter),
    "bomb": (WORKFLOWS, _bomb),
}
#: Twenty in a row, of every kind. Documents of millions of tasks come late: while one lives, the service refuses the next cheaply.
ROW = [
    *("stages", "edges", "environment", "100k", "gang", "big"),
    *("labels", "unknown", "deep", "number", "tags", "executors", "filter", "bomb"),
    *("never", "million"),
    *("stages", "edges", "environment", "100k"),
]


@functools.cache
def body(name: str) -> bytes:
    """The bytes of one kind."""
    return POISON[name][1]()


def path_and_headers(name: str, key: str) -> tuple[str, dict[str, str]]:
    """The path and headers of one kind."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if name == "bomb":
        headers["Content-Encoding"] = "gzip"
    return POISON[name][0], headers


async def half_sent(port: int, count: int, seconds: float, seed: int) -> None:
    """Open connections that send at most a part of a request, and nothing more for some seconds."""
    pick = random.Random(seed)
    head = f"POST {WORKFLOWS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100000\r\n"
    writers = []
    for _ in range(count):
        with contextlib.suppress(OSError, TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 5)
            text = pick.choice([b"", b"POST ", head.encode(), head.encode() + b'\r\n{"name": "half'])
            writer.write(text)
            writers.append(writer)
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.transport.abort()
