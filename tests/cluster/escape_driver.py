"""Runs tasks that try to leave something behind, and says which have: `python -m tests.cluster.escape_driver FOLDER HOW [WAY ...]`.

Prints a line of JSON: for each way the end of the attempt, and the fugitives that lived when that was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from flowsched.executor.protocol import PodEnded, PodGone
from tests.cluster.conftest import RealWorld
from tests.cluster.escape import WAYS
from tests.executors.executor_contract import Observer, pod

SCRIPT = Path(__file__).with_name("escape.py")
TIMEOUT_MS = 8_000


async def main(folder: Path, how: str, ways: list[str]) -> dict[str, Any]:
    told = {}
    (folder / "world").mkdir()
    async with RealWorld(folder / "world") as world:
        cluster, ear, _ = await world.open()
        for at in range(0, len(ways), 7):  # a few at a time: beside each other, on few cores
            some = {f"a{at + number}": way for number, way in enumerate(ways[at : at + 7])}
            for number, (name, way) in enumerate(some.items()):
                (folder / name).mkdir()
                command = (sys.executable, "-I", "-S", str(SCRIPT), way, how, str(folder / name))
                memory = 200 << 20 if how == "memory" else 1 << 30
                timeout_ms = TIMEOUT_MS if how == "timeout" else None
                await cluster.launch(
                    [pod(name, *command, index=at + number, memory_bytes=memory, timeout_ms=timeout_ms)]
                )
            results = await asyncio.gather(
                *(end(cluster, ear, folder / name, name, way, how) for name, way in some.items())
            )
            told.update(zip(some.values(), results, strict=True))
    return told


async def end(cluster: Any, ear: Observer, folder: Path, name: str, way: str, how: str) -> Any:
    if how == "cancel":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while not (folder / f"there-{way}").exists() and not ended(ear, name):
                    await asyncio.sleep(0.01)
        await cluster.release([name], 0)
    try:
        async with asyncio.timeout(20):
            final = await ear.final(name)
    except TimeoutError:
        final = None
    left = fugitives(folder)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [type(final).__name__, final.reason if isinstance(final, (PodEnded, PodGone)) else "", len(left)]


def ended(ear: Observer, name: str) -> bool:
    return any(
        getattr(event, "name", "") == name and isinstance(event, (PodEnded, PodGone)) for event in ear.heard
    )


def fugitives(folder: Path) -> list[int]:
    """The live processes whose command line names a folder."""
    found = []
    for item in Path("/proc").iterdir():
        try:
            words = (item / "cmdline").read_bytes().split(b"\0") if item.name.isdigit() else []
            if os.fsencode(folder) in words:
                found.append(int(item.name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(WAYS)))))
