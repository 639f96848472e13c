"""A process that fetches the pieces of a dataset one after the other, to be killed: root and uri are its arguments."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from flowsched.executor.protocol import Transfer
from tests.cluster.test_pieces import KB, Rig


async def main(root: Path, uri: str) -> None:
    rig = Rig(root)
    for number in range(3):
        await rig.copy(Transfer(uri, 100 * KB, "node-0", None, number * 100 * KB, whole=False))
        print(f"landed {number}", flush=True)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
