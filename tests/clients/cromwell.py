"""A client that behaves as Cromwell's TES backend does, written from its sources (develop of February 2026).

It is as unforgiving: of a poll only a broken connection is repeated; any other status than 2xx, another content type than JSON,
or a field that does not decode, ends the call for good. Times are those of Cromwell's configuration, many times faster.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from tests.clients import strict

#: Cromwell polls after 10 s, then each time 1.1 times later, at most after 5 minutes.
POLL_FIRST_S, POLL_LONGEST_S, POLL_FACTOR = 0.2, 2.0, 1.1
#: A connection that breaks is tried again so often, after 5 to 10 s (here 0.5 to 15: a busy machine starts a service in as long).
TRIES, RETRY_FIRST_S, RETRY_LONGEST_S, RETRY_FACTOR = 10, 0.5, 15.0, 1.5
#: akka-http's connections to one host.
CONNECTIONS: Final = 4
_BROKEN: Final = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)
_JSON: Final = "application/json"


class CallFailed(Exception):
    """The call is lost: "has not been found, failing call"."""


@dataclass
class Counts:
    """What was asked."""

    requests: Counter[str] = field(default_factory=Counter)
    broken: int = 0  #: connections that broke and were tried again
    refused: int = 0  #: of them those that were never made: the port was closed


@dataclass(frozen=True)
class Scatter:
    """The shards of one call of a workflow; root equals dockerRoot, so that nothing is staged.

    Args:
        root: Cromwell's root.
        workflow: Its id.
        name: Of the call, as `Workflow.call`.
    """

    root: Path
    workflow: str
    name: str

    def folder(self, shard: int) -> Path:
        """Of a shard: its `execution` folder."""
        workflow, call = self.name.split(".")
        return self.root / workflow / self.workflow / f"call-{call}" / f"shard-{shard}" / "execution"

    def write(self, shard: int, command: str) -> dict[str, Any]:
        """Write the script as Cromwell does; the body of the POST."""
        folder = self.folder(shard)
        folder.mkdir(parents=True)
        (folder / "script").write_text(SCRIPT.format(folder=folder, command=command))
        outputs = [
            {
                "name": name,
                "description": f"{self.name}.{name}",
                "url": f"{folder}/{name}",
                "path": f"{folder}/{name}",
            }
            | {"type": "FILE"}
            for name in ("rc", "stdout", "stderr", "result.txt")
        ]
        script = {"url": f"{folder}/script", "path": f"{folder}/script", "type": "FILE"}
        script |= {"name": "commandScript", "description": f"{self.name}.commandScript"}
        return {
            "name": self.name,
            "description": f"{self.workflow}:BackendJobDescriptorKey_CommandCallNode_{self.name}:{shard}:1",
            "inputs": [script],
            "outputs": [*outputs, script],
            "resources": {
                "cpu_cores": 1, "ram_gb": 0.25, "disk_gb": 1.0, "preemptible": False,
                "backend_parameters": {"internal_path_prefix": f"{folder.parent}/tes_task"},
            },
            "executors": [{
                "image": "ubuntu@sha256:" + "0" * 64, "command": ["/bin/bash", f"{folder}/script"],
                "stdout": f"{folder}/stdout", "stderr": f"{folder}/stderr",
            }],
            "tags": {
                "workflow_id": self.workflow, "root_workflow_id": self.workflow, "parent_workflow_id": None,
            },
        }  # fmt: skip


#: The bones of Cromwell's script: it tees its own output into the very files that the executor's are, and ends with the rc.
SCRIPT: Final = """#!/bin/bash
cd {folder}
tmpDir=$(mktemp -d)
( {command} ) > >(tee -a {folder}/stdout) 2> >(tee -a {folder}/stderr >&2)
echo $? > {folder}/rc.tmp
sync -d {folder}/rc.tmp 2> /dev/null
mv {folder}/rc.tmp {folder}/rc
"""


class Backend:
    """The actor of one backend: its connections and its polls.

    Args:
        endpoint: The collection of tasks, used verbatim.
        seed: Of the randomness in the waits.
    """

    def __init__(self, endpoint: str, seed: int = 1) -> None:
        self.endpoint = endpoint
        self.counts = Counts()
        self._random = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Backend:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        agent = {"User-Agent": "akka-http/10.1.15"}
        self._session = aiohttp.ClientSession(connector=connector, headers=agent)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def run(self, body: dict[str, Any], execution: Path) -> tuple[str, int]:
        """Submit, poll to the end, read the rc at once; the task's id and the rc.

        Raises:
            CallFailed: For whatever would have failed it in Cromwell.
        """
        ident = await self.submit(body)
        state = await self.poll(ident)
        if state != "COMPLETE":
            raise CallFailed(f"{ident} ended {state}: {(await self.full(ident)).logs}")
        try:
            rc = int((execution / "rc").read_text().strip())  # Cromwell reads it at once
        except (OSError, ValueError) as error:
            raise CallFailed(f"{ident} is COMPLETE and its rc cannot be read: {error}") from error
        await self.full(ident)  # for the metadata, at the end
        return ident, rc

    async def submit(self, body: dict[str, Any]) -> str:
        """POST; the id."""
        raw = await self._ask("POST", self.endpoint, "create", body)
        return str(msgspec.json.decode(raw, type=dict[str, str])["id"])

    async def poll(self, ident: str) -> str:
        """Until it has ended: FULL until the start and the price of the machine are known, then MINIMAL."""
        wait, known = POLL_FIRST_S, False
        while True:
            await asyncio.sleep(wait * self._random.uniform(0.7, 1.3))
            wait = min(wait * POLL_FACTOR, POLL_LONGEST_S)
            if known:
                state = await self._minimal(ident)
            else:
                task = await self.full(ident)
                log = task.logs[0] if task.logs else None
                known = bool(log and log.start_time and "vm_price_per_hour_usd" in (log.metadata or {}))
                state = str(task.state)
            if state in strict.TERMINAL:
                return state

    async def full(self, ident: str) -> strict.Task:
        """The whole task, decoded."""
        raw = await self._ask("GET", f"{self.endpoint}/{ident}?view=FULL", "full")
        return self._decoded(strict.full, raw, ident)

    async def cancel(self, ident: str) -> None:
        """Abort."""
        raw = await self._ask("POST", f"{self.endpoint}/{ident}:cancel", "cancel")
        if msgspec.json.decode(raw) != {}:
            raise CallFailed(f"cancel answered {raw!r}")

    async def _minimal(self, ident: str) -> str:
        raw = await self._ask("GET", f"{self.endpoint}/{ident}?view=MINIMAL", "minimal")
        return self._decoded(strict.minimal, raw, ident).state

    @staticmethod
    def _decoded(decode: Any, raw: bytes, ident: str) -> Any:
        try:
            return decode(raw)
        except msgspec.DecodeError as error:
            raise CallFailed(f"{ident} cannot be decoded: {error}: {raw[:2000]!r}") from error

    async def _ask(self, method: str, url: str, kind: str, body: dict[str, Any] | None = None) -> bytes:
        """One request; only broken connections are tried again."""
        wait = RETRY_FIRST_S
        for attempt in range(TRIES + 1):
            self.counts.requests[kind] += 1
            try:
                return await self._once(method, url, body)
            except _BROKEN as error:
                self.counts.broken += 1
                self.counts.refused += isinstance(error, aiohttp.ClientConnectorError)
                if attempt == TRIES:
                    raise CallFailed(f"{method} {url}: {TRIES} tries: {error!r}") from error
            await asyncio.sleep(wait * self._random.uniform(0.7, 1.3))
            wait = min(wait * RETRY_FACTOR, RETRY_LONGEST_S)
        raise AssertionError

    async def _once(self, method: str, url: str, body: dict[str, Any] | None) -> bytes:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=300)
        async with self._session.request(method, url, json=body, timeout=timeout) as answer:
            raw = await answer.read()
            if not 200 <= answer.status < 300:
                raise CallFailed(f"{method} {url} answered {answer.status}: {raw[:500]!r}")
            if answer.content_type != _JSON:
                raise CallFailed(f"{method} {url} answered {answer.content_type}")
            return raw
