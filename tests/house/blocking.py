"""Writes `flowsched/client/blocking.pyi`: the signatures of the client that waits, for type checkers and editors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from flowsched.client.blocking import SyncClient, SyncRun
from flowsched.workflow import views
from tests.house.reference import Bare

PLACE = Path(__file__).parents[2] / "flowsched" / "client" / "blocking.pyi"
_HEAD = '''"""Written by `python -m tests.house.blocking` from `flowsched.client.calls`. Do not edit."""

# ruff: noqa
# fmt: off
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from flowsched.client.building import Workflow
from flowsched.client.calls import {calls}
from flowsched.workflow.views import {views}

V = TypeVar("V")

class Rows(Iterator[V]):
    def __init__(self, source: Iterator[V]) -> None: ...
    def __next__(self) -> V: ...
    def _repr_html_(self) -> str: ...

@dataclass(frozen=True, slots=True)
class SyncRun:
    id: str
    created: bool
    client: SyncClient
    notes: tuple[str, ...] = ()
    def _repr_html_(self) -> str: ...
{run}

class SyncClient:
{client}
'''
#: Names of lists in `calls`, whose class has a method called `list`.
_ALIASES = {"Lines", "Saved", "Stages", "CacheFound", "Explanations", "Queues", "Nodes", "Plugins"}
_OWN = {"__init__", "__enter__", "__exit__"}


def _methods(kind: type) -> str:
    return "\n".join(
        _declared(name, value)
        for name, value in vars(kind).items()
        if (inspect.isfunction(value) or isinstance(value, property))
        and (not name.startswith("_") or name in _OWN)
        and not (kind is SyncRun and name in _OWN)
    )


def _declared(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"    @property\n{_declared(name, value.fget)}"
    signature = inspect.signature(value)
    bare = [each.replace(annotation=Bare(each.annotation)) if isinstance(each.annotation, str) else each
            for each in signature.parameters.values()]  # fmt: skip
    return f"    def {name}{signature.replace(parameters=bare, return_annotation=Bare(signature.return_annotation))}: ..."


def text() -> str:
    """What the file is to say."""
    run, client = _methods(SyncRun), _methods(SyncClient)
    words = set(re.findall(r"\w+", run + client))
    named = {
        "calls": ", ".join(sorted(words & _ALIASES)),
        "views": ", ".join(
            sorted(word for word in words & set(vars(views)) if word.endswith(("View", "Summary")))
        ),
    }
    return _HEAD.format(run=run, client=client, **named)


if __name__ == "__main__":
    PLACE.write_text(text())
