"""The comparison in `flowsched demo`: the same gangs under a policy that places pod by pod, as a stock cluster does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from flowsched.cli.demo import GANGS, gang_document, service

#: The deadlock is called one when nothing has started or ended for so long.
STILL_S: Final = 5.0
#: And the comparison ends after this long at the latest.
COMPARE_S: Final = 20.0


async def deadlock(console: Console, root: Path) -> bool:
    """The same gangs, pod by pod: each gets some of its members, none gets all."""
    console.print(
        Text(
            f"\nThe same {GANGS} gangs under --policy kube-like: pod by pod, as a stock cluster places them.",
            "bold",
        )
    )
    async with service(root, "kube-like") as (_, client):
        gang = gang_document()
        gang["stages"][0]["retry"] = {"attempts": 1}
        runs = [await client.submit(gang | {"name": f"train-{number + 1}"}) for number in range(GANGS)]
        idents = [run.id for run in runs]
        placed, still = await _until_still(client, idents)
        names = dict(zip(idents, (f"train-{number + 1}" for number in range(GANGS)), strict=True))
        order = [f"{names[ident]}/{role}" for _, ident, role in sorted(placed)]
        console.print("Placed in this order: " + ", ".join(order), soft_wrap=True)
        views = [await client.get(ident) for ident in idents]
        for view in views:
            running = sum(view.counts.get(state, 0) for state in ("BINDING", "BOUND", "RUNNING"))
            console.print(
                f"  {view.name}: {running} of {view.tasks} members hold room and wait for the others"
            )
        done = sum(view.state == "SUCCEEDED" for view in views)
        if done == 0 and still:
            console.print(
                Text(
                    f"Deadlock: for {STILL_S:.0f} s nothing has started or ended, and no gang is complete. "
                    "(They would wait for ever; this is where the demo gives up.)",
                    "bold red",
                )
            )
        else:
            console.print(Text(f"No deadlock this time: {done} of {GANGS} gangs finished.", "bold yellow"))
        for ident in idents:
            await client.cancel(ident)
        for ident in idents:
            await client.wait(ident, timeout=20)
        return done == 0 and still


async def _until_still(client: Any, idents: Sequence[str]) -> tuple[set[tuple[Any, str, str]], bool]:
    """Watch until nothing moves for a while: what was placed when, and whether it stood still."""
    begun = moved = time.monotonic()
    before: Any = None
    placed: set[tuple[Any, str, str]] = set()
    while time.monotonic() - begun < COMPARE_S:
        views = [await client.get(ident) for ident in idents]
        now = [(view.state, sorted(view.counts.items())) for view in views]
        for ident in idents:
            async for task in client.tasks(ident):
                if task.bound_at is not None:
                    placed.add((task.bound_at, ident, f"{task.role}-{task.index}"))
        if now != before or not placed:
            before, moved = now, time.monotonic()
        elif time.monotonic() - moved > STILL_S:
            return placed, True
        await asyncio.sleep(0.3)
    return placed, False
