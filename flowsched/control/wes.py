"""GA4GH WES runs: workflows in the languages of other engines, whose engines the service starts as `flowsched run` does.

A run has a folder in the root, with its attachments, its parameters, and the files of its engine. Its head is a workflow like any
other: a client that may submit documents may run any command on this machine already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from flowsched import engine_programs
from flowsched.cluster.local.orders import set_secret
from flowsched.errors import InvalidRequest, NotFound, OutcomeUnknown
from flowsched.executor.protocol import Expired
from flowsched.workflow.document.reader import read_document
from flowsched.workflow.formats.heads import ENGINES, TOKEN_SECRET, TYPE_LABEL, run_name
from flowsched.workflow.views import SubmittedView, TaskPage, TaskView, WorkflowPage, WorkflowView

#: In the root: a folder for each run, which goes with the run.
FOLDER: Final = "wes"
_REQUEST: Final = "request.json"
#: In a run's folder: the id of its head's workflow, with which the folder expires.
_WORKFLOW: Final = "workflow"
_PARAMS: Final = "workflow_params.json"
_LONGEST_NAME: Final = 255
#: The ids that this module gives. Other runs have the ids that their clients chose, which may lead out of a folder.
_OWN_ID: Final = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{16}")
#: The service looks for an engine's outputs in so many bytes of the engine's standard output.
_MOST_OUTPUT: Final = 1 << 20
LANGUAGES: Final = tuple(dict.fromkeys(engine.language for engine in ENGINES))


class RunRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A workflow to run. In a form, each value that is no text is JSON."""

    workflow_params: dict[str, Any] = {}
    workflow_type: str
    workflow_type_version: str = ""
    tags: dict[str, str] = {}
    workflow_engine: str = ""
    workflow_engine_version: str = ""
    workflow_engine_parameters: dict[str, str] = {}
    workflow_url: str


class WesService:
    """Answers the routes of GA4GH WES, by the service's own answers about runs.

    Args:
        root: Of the service; None = its tasks run elsewhere, where it can start no engine.
        submit: Accepts a document.
        workflow, list_workflows, task, tasks, logs, command: As the service has them.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        submit: Callable[[bytes], Awaitable[SubmittedView]],
        workflow: Callable[[str], Awaitable[WorkflowView]],
        list_workflows: Callable[..., Awaitable[WorkflowPage]],
        task: Callable[[str, str, int], Awaitable[TaskView]],
        tasks: Callable[..., Awaitable[TaskPage]],
        logs: Callable[..., Awaitable[tuple[bytes, bool]]],
        command: Callable[[str, str], Awaitable[object]],
    ) -> None:
        self._root = root
        self._submit = submit
        self._workflow = workflow
        self._list = list_workflows
        self._task = task
        self.tasks = tasks
        self._logs = logs
        self._command = command
        self._versions: dict[str, tuple[str, str]] | None = None
        self._asking = asyncio.Lock()

    async def versions(self) -> Mapping[str, tuple[str, str]]:
        """Language and version of each engine that is installed here, by its program. The first call asks all programs at once."""
        if self._root is None:
            return {}
        async with self._asking:
            if self._versions is None:
                self._versions = await _installed()
            return self._versions

    async def begin(
        self, request: RunRequest, files: Mapping[str, bytes], url: str, token: str | None
    ) -> str:
        """Start a run; its id.

        Args:
            request: The workflow.
            files: The attachments by name.
            url: This service, as an engine on this machine reaches it.
            token: Of this service.

        Raises:
            InvalidRequest: The request names what is not there, or what may not be.
        """
        if self._root is None:
            raise InvalidRequest(
                "this service runs its tasks on another machine, and starts no engine: start it yourself, with this service as its "
                "TES endpoint (docs/engines.md)"
            )
        language = request.workflow_type.upper()
        if language not in LANGUAGES:
            raise InvalidRequest(
                f"workflow_type: found {request.workflow_type!r:.60}, expected one of {', '.join(LANGUAGES)}"
            )
        engine, program = engine_programs.find(language, request.workflow_engine or None)
        paths = {_inside(name): data for name, data in files.items()}
        name = run_name(request.workflow_url)
        ident = f"{name}-{secrets.token_hex(8)}"
        folder = self._root.absolute() / FOLDER / ident / "work"
        source = _source(request.workflow_url, paths, folder)
        arguments = [word for pair in _options(request.workflow_engine_parameters) for word in pair if word]
        if request.workflow_params:
            if _PARAMS in paths:
                raise InvalidRequest(
                    f"workflow_attachment: found {_PARAMS}, which is the file of workflow_params: give one of both"
                )
            paths[_PARAMS] = msgspec.json.encode(request.workflow_params)
            arguments += [word.replace("{}", str(folder / _PARAMS)) for word in engine.params]
        document = engine_programs.document(
            engine, program, source, str(folder), arguments,
            url=url, ident=ident, name=name, labels=request.tags, token=bool(token), again=True,
        )  # fmt: skip
        try:
            await asyncio.to_thread(self._write, folder, paths, request, token)
            head = await self._submit(document)
        except OutcomeUnknown:  # the head may be about to start
            raise
        except Exception:
            await asyncio.to_thread(shutil.rmtree, folder.parent, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):  # without it the folder stays
            await asyncio.to_thread(_write_new, folder.parent / _WORKFLOW, head.id.encode())
        return ident

    def _write(
        self, folder: Path, paths: Mapping[str, bytes], request: RunRequest, token: str | None
    ) -> None:
        assert self._root is not None
        if token:
            set_secret(self._root, TOKEN_SECRET, token.encode())
        for above in (folder.parents[1], folder.parent, folder):
            above.mkdir(mode=0o700, exist_ok=True)
        _write_new(folder.parent / _REQUEST, msgspec.json.encode(request))
        for name, data in paths.items():
            path = folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_new(path, data)
            except OSError as error:
                raise InvalidRequest(f"workflow_attachment {name!r:.200}: {error.strerror}") from error

    async def run(self, ident: str) -> WorkflowView:
        """A run that has a head.

        Raises:
            NotFound: There is none of this id.
        """
        view = await self._workflow(ident)
        if TYPE_LABEL not in view.labels:
            raise NotFound(f"there is no run of an engine with the id {ident}")
        return view

    async def head(self, view: WorkflowView) -> TaskView:
        """The task that is the engine's process."""
        return await self._task(view.id, view.source, 0)

    async def list(self, limit: int, page_token: str | None) -> WorkflowPage:
        """Runs that have a head, those that live first, each newest first."""
        return await self._list(label=f"{TYPE_LABEL}=", limit=limit, page_token=page_token)

    async def request(self, view: WorkflowView) -> msgspec.Raw:
        """The request of a run, as JSON; of one that a command began, its type alone."""
        if self._root is not None and _OWN_ID.fullmatch(view.id):
            path = self._root / FOLDER / view.id / _REQUEST
            with contextlib.suppress(OSError):
                return msgspec.Raw(await asyncio.to_thread(path.read_bytes))
        known = RunRequest(
            workflow_type=view.labels[TYPE_LABEL], workflow_url="", workflow_engine=view.source
        )
        return msgspec.Raw(msgspec.json.encode(known))

    async def outputs(self, view: WorkflowView) -> dict[str, Any]:
        """The outputs of a run that has succeeded, as far as its engine prints them as JSON (miniwdl, Toil, Sprocket)."""
        if view.state != "SUCCEEDED":
            return {}
        printed, _ = await self._logs(view.id, view.source, 0, stream="stdout", limit=_MOST_OUTPUT)
        try:
            found = await asyncio.to_thread(read_document, printed)
        except InvalidRequest:
            return {}
        found = found.get("outputs", found) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}

    async def cancel(self, ident: str) -> None:
        """Cancel a run with all its tasks; one that has ended stays as it is."""
        await self.run(ident)
        await self._command(ident, "cancel")


async def expire(root: Path, expired: Expired) -> None:
    """Remove the folder of each run with an expired head, and the results in it. A folder that names no workflow stays.

    Args:
        root: Of the service.
        expired: Which of some workflows the database has removed.
    """
    folders = await asyncio.to_thread(_folders, root / FOLDER)
    for workflow in await expired(folders):
        await asyncio.to_thread(shutil.rmtree, folders[workflow], ignore_errors=True)


def _folders(above: Path) -> dict[str, str]:
    """The folders of runs, by the workflow of their head."""
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(above) as entries:
        for entry in entries:
            if not _OWN_ID.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(f"{entry.path}/{_WORKFLOW}", flags)
                try:
                    workflow = os.read(file, _LONGEST_NAME)
                finally:
                    os.close(file)
                if workflow.isalnum():  # bytes: of ASCII alone
                    found[workflow.decode()] = entry.path
    return found


async def _installed() -> dict[str, tuple[str, str]]:
    found = {}
    for engine in ENGINES:
        with contextlib.suppress(InvalidRequest):
            found[engine] = engine_programs.find(engine.language, engine.program)[1]
    said = await asyncio.gather(
        *(asyncio.to_thread(engine_programs.version, *pair) for pair in found.items())
    )
    return {engine.program: (engine.language, version) for engine, version in zip(found, said, strict=True)}


def _write_new(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _inside(name: str) -> str:
    """The path of an attachment below the folder of its run.

    Raises:
        InvalidRequest: It leads out of it, or is no name of a file.
    """
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    bad = path.is_absolute() or ".." in parts or not name.isprintable()
    if bad or not parts or any(len(part.encode()) > _LONGEST_NAME for part in parts) or len(name) > 1024:
        raise InvalidRequest(
            f"workflow_attachment: found the name {name!r:.200}, expected a path below the run's folder, without `..`"
        )
    return "/".join(parts)


def _source(url: str, paths: Mapping[str, bytes], folder: Path) -> str:
    """The workflow as its engine gets it: an attachment, a file of this machine, or a URL that the engine fetches.

    Raises:
        InvalidRequest: There is no such attachment.
    """
    if "://" in url and not url.startswith("file://"):
        return url
    path = url.removeprefix("file://")
    if path.startswith("/"):
        return path
    name = _inside(path) if path else ""
    if name not in paths:
        raise InvalidRequest(
            f"workflow_url: found {url!r:.200}, expected the name of an attachment ({', '.join(list(paths)[:10]) or 'none came'}), "
            "an absolute path or a URL"
        )
    return str(folder / name)


def _options(parameters: Mapping[str, str]) -> list[tuple[str, str]]:
    """The engine's options: each with its value, which may be empty.

    Raises:
        InvalidRequest: A name is none of an option.
    """
    for name in parameters:
        if not name.startswith("-") or "\0" in name + parameters[name]:
            raise InvalidRequest(
                f"workflow_engine_parameters: found {name!r:.60}, expected an option of the engine, as `-resume`"
            )
    return list(parameters.items())
