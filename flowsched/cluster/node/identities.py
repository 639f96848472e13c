"""Identities: whether datasets from outside have changed, for the cache of results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.executor.protocol import Fingerprint

#: Datasets that are identified together: each waits for a disk or a network most of the time.
_AT_A_TIME: Final = 32
#: So many digests of contents are remembered, by what `Origins` tells without reading: to read a genome again takes minutes.
_REMEMBERED: Final = 100_000


class Identities:
    """Looks at datasets in threads of its own, which a slow server may hold up."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="identities")
        self._digests: dict[tuple[str, str], Fingerprint] = {}

    async def of(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """As `Executor.fingerprints`."""
        loop, wanted = asyncio.get_running_loop(), list(dict.fromkeys(uris))
        looks = (loop.run_in_executor(self._pool, self._identify, uri, by_content) for uri in wanted)
        return dict(zip(wanted, await asyncio.gather(*looks), strict=True))

    def _identify(self, uri: str, by_content: bool) -> Fingerprint | str:
        try:
            plain = self._origins.fingerprint(uri)
            if not by_content:
                return plain
            known = self._digests.get((uri, plain.version))
            if known is None:
                known = self._origins.fingerprint(uri, by_content=True)
                if len(self._digests) >= _REMEMBERED:
                    self._digests.clear()
                self._digests[uri, known.version] = known
            return known
        except (NotFetched, Unsafe, OSError) as error:
            return str(error)
