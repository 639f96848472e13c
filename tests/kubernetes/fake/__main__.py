"""The fake as a process of its own, for benches: `python -m tests.kubernetes.fake --nodes 10000`.

Its URL is the first line that it prints. It ends with its standard input, so that none is left behind by a bench that died.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.kubernetes.fake import FakeApi


async def serve(port: int, nodes: int) -> None:
    """Serve until standard input ends."""
    async with FakeApi(port=port) as api:
        for number in range(nodes):
            amounts = {"cpu": "64", "memory": "256Gi", "pods": "250"}
            ready = [{"type": "Ready", "status": "True"}]
            address = f"127.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            status = {"allocatable": amounts, "capacity": amounts, "conditions": ready}
            status |= {"addresses": [{"type": "InternalIP", "address": address}]}
            metadata = {
                "name": f"node-{number:05}",
                "labels": {"topology.kubernetes.io/zone": f"z{number % 8}"},
            }
            api.add({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        print(api.url, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.fake", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=0, help="so many nodes are there from the beginning")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.nodes))


if __name__ == "__main__":
    main()
