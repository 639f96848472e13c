"""One large dataset from a slow origin to several nodes: in pieces, as a whole, and fetched by everybody for himself.

    python bench/pieces.py [--size 1G] [--nodes 4] [--rate 100M] [--piece-size 128M] [--repeats 1]

Real processes: an HTTP server (this script again) that gives all its readers together `rate` bytes a second; the service of
`flowsched serve`, whose nodes are folders of this machine with network cards of 125 MB/s; one task on each node, which reads the
dataset once. The origin counts what it sends; every copy is compared with the original afterwards. Seconds are wall-clock
from submission to the end of the last task: what is measured is waiting for the rate, not this machine's CPU, which is told too.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.cluster.node.rates import TokenBucket
from flowsched.workflow.resources import parse_bytes

_BLOCK = 1 << 20


class Origin:
    """An HTTP server of one file, with ranges and an ETag; all readers share `rate` bytes/s."""

    def __init__(self, file: Path, rate: int) -> None:
        self.file, self.bucket, self.sent = file, TokenBucket(rate), 0

    async def give(self, request: web.Request) -> web.StreamResponse:
        size = self.file.stat().st_size
        first, last = request.http_range.start or 0, request.http_range.stop or size
        partial = "Range" in request.headers
        answer = web.StreamResponse(status=206 if partial else 200, headers={"ETag": '"one"'})
        if partial:
            answer.headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        answer.content_length = last - first
        await answer.prepare(request)
        with open(self.file, "rb") as file:  # noqa: ASYNC230 - of the page cache
            file.seek(first)
            while first < last:
                block = file.read(min(_BLOCK, last - first))
                now = time.monotonic()
                passed = self.bucket.reserve(len(block), now)
                await asyncio.sleep(max(0.0, passed - now))
                await answer.write(block)
                self.sent += len(block)
                first += len(block)
        return answer

    async def told(self, _: web.Request) -> web.Response:
        sent, self.sent = self.sent, 0
        return web.Response(text=str(sent))


def serve(file: Path, rate: int) -> None:
    """Be the origin, until the end of standard input; the port is the first line of standard output."""

    async def run() -> None:
        origin = Origin(file, rate)
        app = web.Application()
        app.router.add_get("/sent", origin.told)
        app.router.add_get("/data.bin", origin.give)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()

    asyncio.run(run())


@asynccontextmanager
async def origin_of(file: Path, rate: int) -> AsyncIterator[str]:
    """The origin in a process of its own; yields its URL."""
    command = [sys.executable, __file__, "--serve", str(file), "--rate", str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        assert process.stdin is not None
        port = await asyncio.to_thread(process.stdout.readline)
        try:
            yield f"http://127.0.0.1:{port.strip()}"
        finally:
            process.stdin.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """s until the last task had ended, bytes that the origin sent, CPU s of the service."""

    seconds: float
    sent: int
    cpu: float


async def sent_by(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/sent") as answer:
        return int(await answer.text())


def document(uri: str, size: int, nodes: int) -> bytes:
    """A task on each node that reads the file."""
    stages = [
        {
            "name": f"read-{n}",
            "command": ["sh", "-c", "wc -c < $FLOWSCHED_INPUT_DATA"],
            "selector": {"at": f"n{n}"},
            "resources": {"cpu": 1, "memory": "64Mi"},
            "inputs": [{"name": "data", "uri": uri, "size": size}],
        }
        for n in range(nodes)
    ]
    return json.dumps({"name": "pieces", "stages": stages}).encode()


def check_copies(root: Path, file: Path, nodes: int) -> None:
    copies = list(root.glob("nodes/*/cache/*/data.bin"))
    assert len(copies) == nodes, copies
    assert all(filecmp.cmp(copy, file, shallow=False) for copy in copies), "a copy differs from the original"


async def with_flowsched(url: str, file: Path, size: int, root: Path, nodes: int, piece_size: str) -> Outcome:
    """The service, and the tasks."""
    labels = tuple(f"node-{n}:at=n{n}" for n in range(nodes))
    settings = Settings(
        port=0,
        root=root,
        piece_size=piece_size,
        log_level="error",
        local=LocalSettings(
            nodes=nodes, cpu="1", memory="1Gi", labels=labels, nic_rate="125M", disk_rate="2G"
        ),
    )
    async with running(settings) as up:
        begun, cpu = time.monotonic(), time.process_time()
        told = await up.service.submit(document(f"{url}/data.bin", size, nodes))
        async for _ in up.service.events(told.id, 0):
            pass
        seconds = time.monotonic() - begun
        cpu = time.process_time() - cpu
        state = (await up.service.workflow(told.id)).state
    assert state == "SUCCEEDED", state
    await asyncio.to_thread(check_copies, root, file, nodes)
    return Outcome(seconds, await sent_by(url), cpu)


async def for_themselves(url: str, folder: Path, nodes: int) -> Outcome:
    """What nodes do that know nothing of each other: each reads all of it from the origin."""

    async def fetch(session: aiohttp.ClientSession, target: Path) -> None:
        async with session.get(f"{url}/data.bin") as answer:
            with open(target, "wb") as file:  # noqa: ASYNC230
                async for block in answer.content.iter_chunked(_BLOCK):
                    file.write(block)

    begun, cpu = time.monotonic(), time.process_time()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session,
        asyncio.TaskGroup() as all_,
    ):
        for n in range(nodes):
            all_.create_task(fetch(session, folder / f"{n}"))
    return Outcome(time.monotonic() - begun, await sent_by(url), time.process_time() - cpu)


def make(file: Path, size: int) -> None:
    """A file that compresses no better than a genome that is compressed already."""
    noise = random.Random(1)
    with open(file, "wb") as out:
        for start in range(0, size, _BLOCK):
            out.write(noise.randbytes(min(_BLOCK, size - start)))
        out.flush()
        os.fsync(out.fileno())


async def compare(size: int, nodes: int, rate: int, piece_size: str, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="flowsched-pieces-") as made:
        folder = Path(made)
        file = folder / "data.bin"
        await asyncio.to_thread(make, file, size)
        async with origin_of(file, rate) as url:
            least = size / rate
            print(f"{size / 1e6:,.0f} MB to {nodes} nodes; one copy takes {least:.1f} s from the origin")
            print("| how | s | ÷ one copy | bytes from the origin ÷ size | CPU s |\n|---|---|---|---|---|")
            for turn in range(repeats):
                rows: dict[str, Outcome] = {}
                for name, pieces in (("in pieces", piece_size), ("as a whole, from peers", "0")):
                    root = folder / f"{turn}-{pieces}"
                    rows[name] = await with_flowsched(url, file, size, root, nodes, pieces)
                    await asyncio.to_thread(shutil.rmtree, root)
                own = folder / "own"
                own.mkdir()
                rows["everybody for himself"] = await for_themselves(url, own, nodes)
                await asyncio.to_thread(shutil.rmtree, own)
                for name, row in rows.items():
                    print(
                        f"| {name} | {row.seconds:.1f} | {row.seconds / least:.2f} | {row.sent / size:.2f} | {row.cpu:.1f} |"
                    )
        print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1G")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate", default="100M")
    parser.add_argument("--piece-size", default="128M")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, int(given.rate))
        return
    asyncio.run(
        compare(
            parse_bytes(given.size), given.nodes, parse_bytes(given.rate), given.piece_size, given.repeats
        )
    )


if __name__ == "__main__":
    main()
