"""Refuses a document at its submission if it names paths that no task may read or write, or stores that the service cannot reach.

The service knows some paths only later, and then the task fails: paths with `{item}` or `{index}`, paths through links that a task
makes, and files behind mounts. The module knows which fields of a document are paths of this machine; `refusal` knows the rules.
"""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable, Iterator
from typing import Final

from flowsched.credentials import S3
from flowsched.errors import InvalidRequest
from flowsched.workflow.document.uris import file_path
from flowsched.workflow.spec import WorkflowSpec

#: Why a path, or the scheme of a store (`s3://`), may not be an input or output, in words; "" if it may. The second argument:
#: whether the task also copies all below it.
Refusal = Callable[[str, bool], str]
#: `check` looks at so many paths of one document: some 0.1 ms each. The runner checks the others when it reads or writes them.
MOST_PATHS: Final = 10_000
#: One answer names so many refused paths.
_NAMED: Final = 5


async def check(spec: WorkflowSpec, refusal: Refusal | None) -> None:
    """Refuse a document with paths or stores that the service refuses.

    Args:
        spec: The document.
        refusal: The service's rules; None = it has none (Kubernetes).

    Raises:
        InvalidRequest: The document names such ones. The message says which, where, and how to allow them.
    """
    if refusal is None:
        return
    asked: dict[tuple[str, bool], str] = {}
    for path, whole, where in paths_of(spec):
        if len(asked) == MOST_PATHS:
            break
        asked.setdefault((path, whole), where)
    if not asked:
        return

    def refused() -> list[str]:
        answers = ((where, refusal(path, whole)) for (path, whole), where in asked.items())
        return [f"{where}: {why}" for where, why in answers if why]

    found = await asyncio.to_thread(refused)
    if found:
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise InvalidRequest("; ".join(found[:_NAMED]) + more)


def paths_of(spec: WorkflowSpec) -> Iterator[tuple[str, bool, str]]:
    """(path or scheme, whether all below it is meant, where it stands) of each path of this machine and each URL of a store
    that a document names.
    """
    for stage in spec.stages:
        for declared in stage.inputs:
            path = None if declared.uri is None else _local(declared.uri)
            if path is not None:
                yield path, True, f"input {declared.name!r} of stage {stage.name!r}"
        container = stage.container
        if container is None:
            continue
        for placed in container.inputs:
            path = None if placed.source is None else _local(placed.source)
            if path is not None:
                yield path, True, f"the input at {placed.path} of stage {stage.name!r}"
        for output in container.outputs:
            path = _local(output.uri)
            if path is not None:
                yield path, False, f"the output {output.path} of stage {stage.name!r}"
        for mount in container.mounts:
            if not _is_template(mount.source):
                yield mount.source, False, f"the mount at {mount.path} of stage {stage.name!r}"


def _local(uri: str) -> str | None:
    """The path of this machine that a uri names, or the scheme of an object store; None if it names neither, or a path that is
    known only once it is expanded.
    """
    scheme, is_url, _ = uri.partition("://")
    if is_url and scheme in S3:
        return f"{scheme}://"
    return None if _is_template(uri) else file_path(uri, os.path.lexists)


def _is_template(text: str) -> bool:
    return "{item}" in text or "{index}" in text
