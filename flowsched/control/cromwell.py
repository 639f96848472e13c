"""What a Cromwell server was given for a run: its source, imports and inputs. Only servers that the operator named are asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from flowsched.control.planner import PlanJob
from flowsched.control.wdl_path import WdlPath
from flowsched.errors import (
    ConfigurationError,
    Forbidden,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)

TIMEOUT_S: Final = 30.0
ANSWER_BYTES: Final = 32 << 20
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class _Submitted(msgspec.Struct, rename="camel"):
    workflow: str | None = None
    workflow_url: str | None = None
    inputs: str | dict[str, Any] = "{}"
    imports: dict[str, str] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    submitted_files: _Submitted | None = None


def servers(text: str) -> tuple[str, ...]:
    """The servers that a setting names, separated by commas.

    Raises:
        ConfigurationError: One of them is no URL.
    """
    found = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for each in found:
        if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", each):
            raise ConfigurationError(f"FLOWSCHED_CROMWELL: {each!r} is no URL such as http://cromwell:8000")
    return found


class Cromwell:
    """Asks the servers that may be asked.

    Args:
        allowed: Their URLs: nothing else is ever contacted, whoever asks for it.
        sources: Where imports are found: Cromwell's metadata have those of draft-2 workflows only.
    """

    def __init__(
        self, allowed: Sequence[str], sources: WdlPath | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.allowed = tuple(allowed)
        self._sources = sources or WdlPath()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def submitted(self, url: str, root: str) -> PlanJob:
        """What was submitted for a root workflow.

        Raises:
            Forbidden: The server is not one of those allowed.
            InvalidRequest: The id is none of Cromwell's.
            NotFound: The server knows no such workflow, or not yet its source: it stores both some time after the submission.
            Unsupported: The workflow imports what is neither in the metadata nor in a folder of sources.
            Unavailable: It does not answer, or not in a form that can be read.
        """
        base = url.rstrip("/")
        if base not in self.allowed:
            named = ", ".join(self.allowed) or "none is"
            raise Forbidden(
                f"{url!r} is not a Cromwell server that may be asked ({named} named in FLOWSCHED_CROMWELL)"
            )
        if not UUID.fullmatch(root):
            raise InvalidRequest(f"{root[:60]!r} is no id of a Cromwell workflow (a UUID in lower case)")
        try:
            found = msgspec.json.decode(await self._metadata(base, root), type=_Metadata).submitted_files
            if found is None or not found.workflow:
                raise NotFound(f"{base} knows {root}, but has not stored its source yet")
            inputs = json.loads(found.inputs) if isinstance(found.inputs, str) else found.inputs
            imports, missing = await asyncio.to_thread(
                self._sources.imports, found.workflow, found.imports or {}, found.workflow_url
            )
            if missing:
                raise Unsupported(
                    f"it imports {', '.join(missing[:5])}{' …' * (len(missing) > 5)}, and the metadata of {base} have no "
                    "imports of WDL 1.0 and later: name the folder that holds them in `serve --wdl-path` "
                    "(FLOWSCHED_WDL_PATH), or post the plan with its imports (docs/plans.md)"
                )
            return msgspec.convert({"source": found.workflow, "imports": imports, "inputs": inputs}, PlanJob)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unavailable(f"{base} answered with metadata that cannot be read: {error}") from error

    async def any_of(self, root: str) -> PlanJob:
        """What was submitted for a root workflow, by the first server that knows it.

        Raises:
            NotFound: No server knows it (yet).
            Unavailable: One of the servers does not answer, and no other knows it.
            FlowschedError: See `submitted`.
        """
        said: list[NotFound | Unavailable] = []
        for base in self.allowed:
            try:
                return await self.submitted(base, root)
            except (NotFound, Unavailable) as error:
                said.append(error)
        kind = Unavailable if any(isinstance(each, Unavailable) for each in said) else NotFound
        raise kind("; ".join(map(str, said)))

    async def _metadata(self, base: str, root: str) -> bytes:
        address = f"{base}/api/workflows/v1/{root}/metadata"
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout, trust_env=False) as session,
                session.get(
                    address, params={"includeKey": "submittedFiles"}, allow_redirects=False
                ) as answer,
            ):
                if answer.status == 404:
                    raise NotFound(f"{base} knows no workflow {root}")
                if answer.status != 200:
                    raise Unavailable(
                        f"{base} answered {answer.status} when it was asked for the metadata of {root}"
                    )
                parts = bytearray()
                async for part in answer.content.iter_any():
                    parts += part
                    if len(parts) > ANSWER_BYTES:
                        raise TooLarge(
                            f"the metadata of {root} have more than {ANSWER_BYTES} bytes, which is the limit"
                        )
                return bytes(parts)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{base} does not answer ({error or type(error).__name__})") from error
