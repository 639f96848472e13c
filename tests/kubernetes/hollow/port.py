"""The kubelets' port: what `kubectl logs` reaches through the API server.

Only logs are served, to whoever can reach a loopback address of this machine: this is for tests and demos.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Container
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.kubernetes.hollow.logs import entries

PORT: Final = 10250
_POLL_S: Final = 0.2


class KubeletPort:
    """One server for all nodes of this process; each has its own address, on the same port.

    Args:
        root: Of the hollow nodes: logs are in `<root>/log/pods`.
        certificate: Files with certificate and key.
        writing: The logs that may still grow.
    """

    def __init__(self, root: Path, certificate: tuple[Path, Path], writing: Container[Path]) -> None:
        self._writing = writing
        self._pods = root / "log" / "pods"
        self._ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ssl.load_cert_chain(*certificate)
        self._runner: web.AppRunner | None = None
        self._sites: dict[str, web.TCPSite] = {}

    async def listen(self, address: str) -> int:
        """Serve at a node's address; returns the port."""
        if self._runner is None:
            app = web.Application()
            app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await self._runner.setup()
        site = web.TCPSite(self._runner, address, PORT, ssl_context=self._ssl)
        await site.start()
        self._sites[address] = site
        return PORT

    async def close(self, address: str) -> None:
        """Stop serving at an address."""
        site = self._sites.pop(address, None)
        if site is not None:
            await site.stop()

    async def close_all(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        asked = request.match_info
        path = self._found(asked["namespace"], asked["pod"], asked["container"], "previous" in request.query)
        if path is None:
            raise web.HTTPNotFound(text=f"no log of {asked['container']} in {asked['pod']}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        stamped = request.query.get("timestamps") == "true"
        tail = request.query.get("tailLines")
        left = int(request.query.get("limitBytes", str(1 << 62)))
        follow = request.query.get("follow") == "true"
        async for lines in self._read(path, None if tail is None else int(tail), follow=follow):
            text = b"".join((moment + b" " if stamped else b"") + line for moment, line in lines)[:left]
            left -= len(text)
            await response.write(text)
            if not left:
                break
        await response.write_eof()
        return response

    def _found(self, namespace: str, pod: str, container: str, previous: bool) -> Path | None:
        """The newest run's log, or the one before; names hold no path separators, as the API server has seen to."""
        runs = sorted(
            self._pods.glob(f"{namespace}_{pod}_*/{container}/*.log"),
            key=lambda path: (path.parent.stat().st_mtime, int(path.stem)),
        )
        wanted = runs[-2:-1] if previous else runs[-1:]
        return wanted[0] if wanted else None

    async def _read(
        self, path: Path, tail: int | None, *, follow: bool
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """The entries of a log, then further ones while the file is there and grows."""
        at = 0
        first = True
        while True:
            grows = follow and path in self._writing
            try:
                with path.open("rb") as file:
                    file.seek(at)
                    data = file.read()
            except FileNotFoundError:
                return
            whole = data[: data.rfind(b"\n") + 1]
            at += len(whole)
            found = list(entries(whole))
            if first and tail is not None:
                found = found[len(found) - tail :] if tail < len(found) else found
            first = False
            if found:
                yield found
            if not grows:
                return
            await asyncio.sleep(_POLL_S)
