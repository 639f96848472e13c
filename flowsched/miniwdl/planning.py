"""Plans of miniwdl runs: the WDL, its imports and inputs go to the service when a run begins, so that it can rank calls."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flowsched.client import Client
from flowsched.miniwdl.following import Where
from flowsched.workflow.document.uris import file_path

#: An import statement. The parser has been there before; a line of a command that looks like one is a file that is not there.
_IMPORT: Final = re.compile(r"""^[ \t]*import[ \t]+(["'])(.+?)\1""", re.M)
#: So many files of the inputs are measured.
MOST_SIZES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Program:
    """A workflow as it was written."""

    source: str
    imports: Mapping[str, str]  #: by name, relative to the folder of `source`


def read_program(path: str) -> Program:
    """Read a WDL file and the files it imports, directly or not. Imports from elsewhere (http) are left out.

    Raises:
        OSError: The file, or one it imports, cannot be read.
    """
    folder = os.path.dirname(path)
    texts: dict[str, str] = {}
    waiting = [path]
    while waiting:
        here = waiting.pop()
        name = os.path.relpath(here, folder)
        if name in texts:
            continue
        if here != path and not os.path.isfile(here):
            continue  # it was no import after all, or `path` of miniwdl's command line leads to it: then the service misses it
        with open(here, encoding="utf-8") as file:
            texts[name] = file.read()
        for _, uri in _IMPORT.findall(texts[name]):
            local = file_path(uri, os.path.lexists) or uri
            if "://" not in local:
                waiting.append(os.path.normpath(os.path.join(os.path.dirname(here), local)))
    source = texts.pop(os.path.relpath(path, folder))
    return Program(source, texts)


def sizes(inputs: Any) -> dict[str, int]:
    """Bytes of the files among the inputs, by path."""
    found: dict[str, int] = {}
    waiting = [inputs]
    while waiting and len(found) < MOST_SIZES:
        match waiting.pop():
            case Mapping() as inner:
                waiting.extend(inner.values())
            case list() as inner:
                waiting.extend(inner)
            case str() as path if path.startswith("/") and os.path.isfile(path):
                found[path] = os.path.getsize(path)
    return found


async def request_plan(where: Where, path: str, inputs: Mapping[str, Any], run: str) -> tuple[str, int]:
    """Have a run planned. Returns the plan's id, and how many calls it has.

    Raises:
        FlowschedError: The service does not plan it, for the reason it gives.
        OSError: A source cannot be read.
    """
    program = read_program(path)
    async with Client(where.url, where.token, start_timeout=0) as client:
        plan = await client.plan(
            program.source, imports=program.imports, inputs=inputs, sizes=sizes(inputs), run=run
        )
    return plan.id, plan.nodes
