"""The process that plans: a JSON request on stdin, a plan or an error on stdout. `python -m flowsched.control.planning.planner`.

A process of its own, since a WDL may cost any time and memory (a regular expression that never ends, a string doubled forty times):
the kernel holds its limits, and its end harms no other process. It opens no file and no connection.
"""

from __future__ import annotations

import base64
import binascii
import resource
import sys
import tempfile
from typing import Any, Final

import msgspec

from flowsched import errors
from flowsched.workflow.formats.wdl.sources import sources
from flowsched.workflow.plan import Plan

#: The most CPU time and memory of one plan. The largest of WARP takes 3 s and 200 MiB.
SECONDS: Final = 60
MEMORY_BYTES: Final = 2 << 30


class PlanJob(msgspec.Struct, kw_only=True):
    """A workflow to be planned. See `workflow.formats.wdl.plan_wdl`."""

    source: str
    imports: dict[str, str] | str = {}  #: sources by name, or a zip file in base64
    inputs: dict[str, Any] | None = None
    sizes: dict[str, int] = {}
    contents: dict[str, str] = {}


class PlanResult(msgspec.Struct, kw_only=True):
    """A plan, or the error that there is none: its class in `errors`, its words, its faults."""

    plan: Plan | None = None
    kind: str = ""
    message: str = ""
    faults: list[tuple[str, str, str]] = []


def planned(job: PlanJob) -> Plan:
    """Plan in this process.

    Raises:
        InvalidRequest: The imports are no zip file.
        InvalidDocument: The WDL or its inputs have faults.
        TooLarge: A limit is exceeded.
        Unsupported: miniwdl is not installed.
    """
    imports = job.imports if isinstance(job.imports, dict) else _unpacked(job.imports)
    found = sources(job.source, imports)
    try:
        from flowsched.workflow.formats.wdl.plan import plan_wdl
    except ModuleNotFoundError as error:
        raise errors.Unsupported(
            f"planning WDL needs miniwdl ({error}): pip install 'flowsched[wdl]'"
        ) from error
    return plan_wdl(found, job.inputs, sizes=job.sizes, contents=job.contents)


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.InvalidRequest(
            f"`imports` is neither an object of sources nor base64: {error}"
        ) from error


def answered(raw: bytes) -> PlanResult:
    """The result for a request, whatever it is."""
    try:
        return PlanResult(plan=planned(msgspec.json.decode(raw, type=PlanJob)))
    except errors.FlowschedError as error:
        faults = [(fault.path, fault.found, fault.expected) for fault in getattr(error, "faults", ())]
        return PlanResult(kind=type(error).__name__, message=str(error), faults=faults)
    except MemoryError:
        return PlanResult(
            kind="TooLarge", message=f"planning this takes more than {MEMORY_BYTES >> 20} MiB of memory"
        )


def main() -> None:
    """Limit this process, read, plan, write."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file
    tempfile.tempdir = "/nonexistent"  # miniwdl asks for one, and Python would try to write there
    result = answered(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
