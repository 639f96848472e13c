"""The prober: every 50 ms it asks `/livez` and an idle control at the same moment, and records how long each takes.

`python -m bench.blackbox.probe SERVICE_PORT CONTROL_PORT FILE`. The prober asks both over a new connection, as a supervisor
does. The control is `python -m bench.blackbox.probe control PORT`: an aiohttp server that does nothing else. A busy machine delays
both.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TextIO

from bench.blackbox.arena import die_with_parent, now

EVERY_S = 0.05
PATIENCE_S = 5.0


async def ask(port: int) -> tuple[float | None, str]:
    """Milliseconds until the answer or the failure, and the status or the reason."""
    begun = now()
    writer = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
            status = line.split()[1].decode() if line else "closed"
            return (now() - begun) * 1000, status
    except TimeoutError:
        return PATIENCE_S * 1000, "none"
    except OSError as error:
        return (now() - begun) * 1000, type(error).__name__
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def probe(service: int, control: int, out: TextIO) -> None:
    """Probe until a kill ends the process."""

    async def once() -> None:
        begun = now()
        (service_ms, status), (control_ms, _) = await asyncio.gather(ask(service), ask(control))
        print(f"{begun:.3f} {service_ms:.1f} {status} {control_ms:.1f}", file=out, flush=True)

    going: set[asyncio.Task[None]] = set()
    due = now()
    while True:
        task = asyncio.create_task(once())
        going.add(task)
        task.add_done_callback(going.discard)
        due = max(due + EVERY_S, now())
        await asyncio.sleep(due - now())


def serve_control(port: int) -> None:
    """The idle control."""
    from aiohttp import web

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    application = web.Application()
    application.router.add_get("/livez", livez)
    web.run_app(application, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    die_with_parent()
    if sys.argv[1] == "control":
        serve_control(int(sys.argv[2]))
    else:
        with open(sys.argv[3], "a", encoding="utf-8") as file:
            asyncio.run(probe(int(sys.argv[1]), int(sys.argv[2]), file))
