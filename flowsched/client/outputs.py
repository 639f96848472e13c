"""Outputs of tasks as bytes, and as files that are there wholly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final
from urllib.parse import unquote

from flowsched.client.session import Session, back_off
from flowsched.errors import NotFound, Unavailable, no_such

#: A download that broke off is begun again so often in all.
ATTEMPTS: Final = 3


async def read_output(session: Session, path: str) -> AsyncGenerator[bytes, None]:
    """The bytes of an output, once.

    Raises:
        NotFound: It was not written.
        Conflict: No node has it any more.
        Unavailable: The connection broke: what was read so far is not the whole.
    """
    async with session.stream(path, params={}) as response:
        async for block in response.chunks:
            yield block


async def save_output(session: Session, path: str, target: str | Path | Callable[[str], Path]) -> Path:
    """Save an output: under a temporary name beside its own, until all of it is there.

    Args:
        session: Where.
        path: Of the output.
        target: A file; a folder that exists, which gets a file of the task's own name for it; or what says where a file
            of this name goes. Folders on the way are made.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _save(session, path, target)
        except Unavailable:
            if attempt == ATTEMPTS:
                raise
        await asyncio.sleep(back_off(attempt))
    raise AssertionError("the last attempt returns or raises")


async def _save(session: Session, path: str, target: str | Path | Callable[[str], Path]) -> Path:
    async with session.stream(path, params={}) as response:
        name = named(response.headers)
        if callable(target):
            file = target(name)
        else:
            folder = str(target)[-1:] == "/"
            file = Path(target)
            file = file / name if folder or await asyncio.to_thread(file.is_dir) else file
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".flowsched-{secrets.token_hex(8)}.part")
        try:
            with temporary.open("xb") as writing:
                async for block in response.chunks:
                    await asyncio.to_thread(writing.write, block)
            os.replace(temporary, file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    return file


def named(headers: Mapping[str, str]) -> str:
    """The file's name as the server says it; never a path of this machine, whatever the server sends."""
    whole = headers.get("Content-Disposition", "").partition("filename*=UTF-8''")[2]
    name = PurePath(unquote(whole.partition(";")[0], errors="surrogateescape").replace("\0", "")).name
    return name if name not in ("", ".", "..") else "output"


def declared_outputs(document: bytes) -> dict[str, list[str]]:
    """The names of the outputs that each stage of a document declares; empty where the document has faults."""
    try:
        return {
            stage["name"]: [declared["name"] for declared in stage.get("outputs", [])]
            for stage in json.loads(document)["stages"]
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def check_declared(declared: Mapping[str, Sequence[str]], stage: str, name: str | None, where: str) -> None:
    """Refuse what no run of a document writes.

    Raises:
        NotFound: It has no such stage, or the stage no such output.
    """
    if declared and stage not in declared:
        raise NotFound(f"{where}: {no_such('stage', stage, declared)}")
    if declared and name is not None and name not in declared[stage]:
        raise NotFound(f"{where}: {no_such(f'output of {stage}', name, declared[stage])}")
