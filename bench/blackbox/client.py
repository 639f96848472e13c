"""An HTTP client for the documented routes, with a token, and with patience while the service is away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from hashlib import sha256
from typing import Any

import aiohttp

from bench.blackbox.arena import now
from bench.blackbox.service import TOKEN

WORKFLOWS = "/api/v1/workflows"
TES = "/ga4gh/tes/v1/tasks"
_TIMEOUT = aiohttp.ClientTimeout(total=45)


class Web:
    """One connection pool, and the counts of its answers by status.

    Args:
        url: Address of the service.
        errors: Takes every 5xx that is not 503, with its request.
    """

    def __init__(self, url: str, errors: list[str]) -> None:
        self._url, self._errors = url, errors
        self._session: aiohttp.ClientSession | None = None
        self.statuses: Counter[str] = Counter()

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, bytes]:
        """One request; status 0 and the reason if there was no answer."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=200)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector, headers=headers)
        try:
            async with self._session.request(method, self._url + path, **more) as answer:
                body = await answer.read()
                self.statuses[str(answer.status)] += 1
                if answer.status >= 500 and answer.status != 503:
                    text = body[:600].decode(errors="replace")
                    self._errors.append(f"{method} {path} -> {answer.status} at {now():.2f}: {text}")
                return answer.status, body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.statuses[type(error).__name__] += 1
            return 0, repr(error).encode()

    async def insist(
        self, method: str, path: str, *, until: float = float("inf"), **more: Any
    ) -> tuple[int, bytes]:
        """Repeat a request while there is no answer, a 5xx or a 429; until a moment."""
        while True:
            status, body = await self.call(method, path, **more)
            if (0 < status < 500 and status != 429) or now() > until:
                return status, body
            await asyncio.sleep(0.3)

    async def output(self, path: str) -> str:
        """The hash of an output, or the answer in its place."""
        status, body = await self.insist("GET", path, until=now() + 120)
        return (
            sha256(body).hexdigest() if status == 200 else f"{status} {body[:300].decode(errors='replace')}"
        )

    async def close(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()


def idempotency(label: str) -> dict[str, str]:
    """The header that makes a repeated submission one workflow; unlike labels it is unique over runs."""
    return {"Idempotency-Key": f"{label}-{_RUN}", "Content-Type": "application/json"}


_RUN = time.time_ns()
