"""Plans made in processes with limits, a few at a time."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import msgspec

from flowsched import errors
from flowsched.control.planner import MEMORY_BYTES, SECONDS, PlanJob, PlanResult
from flowsched.workflow.plan import Plan

#: Plans that are made at the same time; others wait, `WAITING` of them.
AT_ONCE: Final = 2
WAITING: Final = 20
#: A plan is not larger than this, as JSON.
PLAN_BYTES: Final = 32 << 20
#: Wall-clock seconds: more than the CPU seconds, since the machine has other work.
PATIENCE_S: Final = 2.0 * SECONDS
#: What the process sees of our environment: no token, no password.
_KEPT: Final = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT")


class Planning:
    """Makes plans."""

    def __init__(
        self, at_once: int = AT_ONCE, waiting: int = WAITING, patience_s: float = PATIENCE_S
    ) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._busy = 0
        self._patience_s = patience_s

    async def plan(self, job: PlanJob) -> Plan:
        """Plan in a process of its own.

        Raises:
            FlowschedError: What is wrong with the WDL or its inputs, or that it takes too long.
            Unavailable: Too many plans are being made already.
        """
        if self._busy >= self._most:
            raise errors.Unavailable(f"{self._busy} plans are being made already; try again in a while")
        self._busy += 1
        try:
            async with self._slots:
                return await self._plan(msgspec.json.encode(job))
        finally:
            self._busy -= 1

    async def _plan(self, request: bytes) -> Plan:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowsched.control.planner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        try:
            async with asyncio.timeout(self._patience_s):
                said, complained = await process.communicate(request)
        except TimeoutError:
            raise errors.TooLarge(f"planning this takes longer than {self._patience_s:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise _died(process.returncode, complained)
        if len(said) > PLAN_BYTES:
            raise errors.TooLarge(f"the plan has {len(said)} bytes; it may have {PLAN_BYTES}")
        return _result(said)


def _died(code: int, complained: bytes) -> errors.FlowschedError:
    """A negative code is a signal: the kernel ended it at one of its limits."""
    last = complained.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    if code < 0 or "MemoryError" in last:
        return errors.TooLarge(
            f"planning this takes more than {SECONDS} s of CPU or {MEMORY_BYTES >> 20} MiB of memory"
        )
    return errors.FlowschedError(f"the planning process ended with exit code {code}: {last}")


def _result(said: bytes) -> Plan:
    result = msgspec.json.decode(said, type=PlanResult)
    if result.plan is not None:
        return result.plan
    if result.kind == "InvalidDocument":
        raise errors.InvalidDocument([errors.Fault(*fault) for fault in result.faults])
    known = {each.__name__: each for each in (errors.InvalidRequest, errors.TooLarge, errors.Unsupported)}
    raise known.get(result.kind, errors.FlowschedError)(result.message)
