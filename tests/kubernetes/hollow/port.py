"""The kubelets' port: what `kubectl logs` reaches through the API server.

Only logs are served, to whoever can reach a loopback address of this machine: this is for tests and demos.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.kubernetes.hollow.logs import entries

PORT: Final = 10250


class KubeletPort:
    """One server for all nodes of this process; each has its own address, on the same port.

    Args:
        root: Of the hollow nodes: logs are in `<root>/log/pods`.
        certificate: Files with certificate and key.
    """

    def __init__(self, root: Path, certificate: tuple[Path, Path]) -> None:
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
        # Names hold no path separators, as the API server has seen to.
        runs = sorted(
            self._pods.glob(f"{asked['namespace']}_{asked['pod']}_*/{asked['container']}/*.log"),
            key=lambda path: (path.parent.stat().st_mtime, int(path.stem)),
        )
        if not runs:
            raise web.HTTPNotFound(text=f"no log of {asked['container']} in {asked['pod']}")
        lines = [line for _, line in entries(runs[-1].read_bytes())]
        tail = request.query.get("tailLines")
        text = b"".join(lines if tail is None else lines[max(0, len(lines) - int(tail)) :])
        return web.Response(
            body=text[: int(request.query.get("limitBytes", str(1 << 62)))], content_type="text/plain"
        )
