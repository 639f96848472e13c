"""The users of a run: each submits one workload, watches it to its end, and reads its outputs."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.blackbox.arena import now
from bench.blackbox.client import TES, WORKFLOWS, Web, idempotency
from bench.blackbox.judge import GOOD, TERMINAL, Story
from bench.blackbox.workloads import Work

_LOOK_S = 1.0


class User:
    """One workload on its way.

    Args:
        web: The client for the service.
        work: The workload.
    """

    def __init__(self, web: Web, work: Work) -> None:
        self._web, self.work = web, work
        self.story = Story(work.label, work.kind, expected=list(work.expected))
        self.began_s = now()

    async def live(self) -> None:
        """Submit, act, watch, read."""
        await self._submit()
        actions = []
        if self.work.cancel_s is not None:
            actions.append(asyncio.create_task(self._cancel(self.work.cancel_s)))
        if self.work.pause:
            actions.append(asyncio.create_task(self._pause()))
        try:
            await self._watch()
            if self.work.gate and self.story.states[-1][1] == "FAILED":
                await self._open_gate()
                await self._watch()
            await asyncio.gather(*actions)
        finally:
            for action in actions:
                action.cancel()
        await self.read_outputs()

    async def _submit(self) -> None:
        path = WORKFLOWS if self.work.api == "workflow" else TES
        body = json.dumps(self.work.document).encode()
        while not self.story.id:
            status, answer = await self._web.insist(
                "POST", path, data=body, headers=idempotency(self.work.label)
            )
            if status in (200, 202):
                self.story.id = json.loads(answer)["id"]
            else:
                self.story.reason = f"submission: {status} {answer[:300].decode(errors='replace')}"
                await asyncio.sleep(2)

    async def look(self) -> str:
        """The state in the service's answer; empty without an answer."""
        if self.work.api == "workflow":
            status, body = await self._web.call("GET", f"{WORKFLOWS}/{self.story.id}")
        else:
            status, body = await self._web.call("GET", f"{TES}/{self.story.id}?view=BASIC")
        if status == 404:
            self.story.missing.append(now())
        if status != 200:
            return ""
        view = json.loads(body)
        state = str(view["state"])
        self.story.reason = str(view.get("reason") or "")
        if not self.story.states or self.story.states[-1][1] != state:
            self.story.states.append((now(), state))
        return state

    async def _watch(self) -> None:
        while True:
            state = await self.look()
            if state in TERMINAL:
                if not (self.work.gate and state == "FAILED"):
                    self.story.ended_s = now()
                return
            if len(self.story.missing) > 3:
                return
            await asyncio.sleep(_LOOK_S)

    async def _cancel(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.work.api == "tes":
            status, _ = await self._web.insist("POST", f"{TES}/{self.story.id}:cancel")
        else:
            path = f"{WORKFLOWS}/{self.story.id}/cancel"
            status, _ = await self._web.insist("POST", path, json={"reason": "the user of a black-box run"})
        if status == 200:
            self.story.cancelled_s = now()
        elif status == 404:
            self.story.missing.append(now())

    async def _pause(self) -> None:
        await self._web.insist("POST", f"{WORKFLOWS}/{self.story.id}/pause")
        await asyncio.sleep(3)
        await self._web.insist("POST", f"{WORKFLOWS}/{self.story.id}/resume")

    async def _open_gate(self) -> None:
        await asyncio.to_thread(Path(self.work.gate).touch)
        status = 0
        while status != 200:
            status, body = await self._web.insist("POST", f"{WORKFLOWS}/{self.story.id}/retry")
            if status == 409:  # the service has carried out a retry without an answer
                break
            if status != 200:
                self.story.reason = f"retry: {status} {body[:200].decode(errors='replace')}"
                await asyncio.sleep(1)
        self.story.retried_s = now()

    # ------------------------------------------------------------------------------------------------ the results

    async def read_outputs(self) -> None:
        """Compare the outputs with the expected ones, if the workflow succeeded."""
        if not self.story.states or self.story.states[-1][1] not in GOOD:
            return
        read = []
        for (stage, index, name), expected in self.work.outputs.items():
            path = f"{WORKFLOWS}/{self.story.id}/tasks/{stage}/{index}/outputs/{name}"
            read.append({"name": path, "expected": expected, "found": await self._web.output(path)})
        for file, expected in self.work.files.items():
            read.append({"name": file, "expected": expected, "found": _hash_of(Path(file), expected)})
        self.story.outputs = [*[old for old in self.story.outputs if old["found"] != old["expected"]], *read]

    async def audit(self) -> None:
        """Read the state, the outputs and all attempts again at the end of the run."""
        if not self.story.id:
            return
        for _ in range(100):
            if await self.look() or self.story.missing:
                break
            await asyncio.sleep(0.5)
        if self.work.api == "workflow":
            await self.read_outputs()
        status, body = await self._web.insist(
            "GET", f"{WORKFLOWS}/{self.story.id}/tasks?limit=1000", until=now() + 60
        )
        if status != 200:
            return
        rows = json.loads(body)["tasks"]
        for row in rows:
            await self._attempts(row)
        if self.story.ended_s is None:
            _, body = await self._web.call("GET", f"{WORKFLOWS}/{self.story.id}/explain")
            open_rows = [
                f"{row['stage']}.{row['index']} {row['state']}"
                for row in rows
                if row["state"] not in TERMINAL
            ]
            self.story.reason = f"{open_rows[:8]} explained: {body[:600].decode(errors='replace')}"

    async def _attempts(self, row: dict[str, Any]) -> None:
        path = f"{WORKFLOWS}/{self.story.id}/tasks/{row['stage']}/{row['index']}"
        status, body = await self._web.insist("GET", path, until=now() + 60)
        if status != 200:
            return
        task = json.loads(body)
        role = task["role"] if self.work.kind == "gang" else ""
        member = f"{role}{_member(task)}" if role else ""
        key = f"{self.work.label}.{task['stage']}.{task['shard']}.{member}"
        fields = ("attempt", "exit_code", "reason", "message", "bound_at", "ended_at")
        self.story.attempts[key] = [{name: each[name] for name in fields} for each in task["attempts"]]


def _member(task: dict[str, Any]) -> int:
    """The index in its role: gangs here are one server, then two workers."""
    return 0 if task["role"] == "ps" else int(task["index"]) % 3 - 1


def _hash_of(path: Path, expected: str) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"{error.strerror}"
    found = sha256(content).hexdigest()
    return (
        found
        if found == expected
        else f"{found}: {len(content)} bytes, {content.count(b'%c' % 10)} lines: {content[:60]!r}"
    )
